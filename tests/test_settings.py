"""Settings check themselves, and survive the trip to a file and back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from minillm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from minillm.settings import from_mapping, read_toml, to_mapping

FAULTS = [
    (ModelConfig, {"channels": 100, "num_heads": 8}, "100 channels, 8 heads; try 96"),
    (ModelConfig, {"channels": 3, "num_heads": 8}, "3 channels, 8 heads; try 8"),
    (ModelConfig, {"num_heads": 8, "num_kv_heads": 3}, "8 heads, 3 key/value heads; try 2"),
    (ModelConfig, {"num_heads": 4, "num_kv_heads": 0}, "num_kv_heads must be an integer of at least 1"),
    (ModelConfig, {"channels": 12, "num_heads": 4}, "must be even: 12 channels / 4 heads = 3; try 16"),
    (ModelConfig, {"family": "gpt2", "num_kv_heads": 2}, "one key/value head per head"),
    (ModelConfig, {"family": "bert"}, "model.family must be one of gpt2, llama: got 'bert'"),
    (ModelConfig, {"num_layers": 0}, "num_layers must be an integer of at least 1: got 0"),
    (ModelConfig, {"vocab_size": 2.5}, "vocab_size must be an integer"),
    (ModelConfig, {"context_len": True}, "context_len must be an integer"),
    (ModelConfig, {"norm_eps": 0.0}, "norm_eps must be positive"),
    (ModelConfig, {"rope_theta": -1.0}, "rope_theta must be positive"),
    (ModelConfig, {"dropout": 1.0}, r"dropout must be in \[0, 1\): got 1.0"),
    (DataConfig, {"vocab_size": 256}, "data.vocab_size must be an integer of at least 259"),
    (DataConfig, {"val_fraction": 0.0}, "between 0 and 1"),
    (OptimConfig, {"learning_rate": -1.0}, "learning_rate must not be negative"),
    (OptimConfig, {"beta2": 1.0}, r"beta2 must be in \[0, 1\)"),
    (OptimConfig, {"eps": 0.0}, "eps must be positive"),
    (OptimConfig, {"schedule": "linear"}, "one of cosine, wsd"),
    (OptimConfig, {"final_fraction": 1.5}, r"final_fraction must be in \[0, 1\]"),
    (TrainConfig, {"steps": 0}, "train.steps must be an integer of at least 1"),
    (TrainConfig, {"backend": "gpu"}, "train.backend must be one of numpy"),
]


@pytest.mark.parametrize(("cls", "values", "message"), FAULTS)
def test_a_wrong_setting_says_what_came_and_what_to_do(cls, values, message):
    with pytest.raises(ValueError, match=message):
        cls(**values)


def test_what_a_message_suggests_is_accepted():
    assert ModelConfig(channels=96, num_heads=8).head_size == 12
    assert ModelConfig(num_heads=8, num_kv_heads=2).kv_heads == 2
    assert ModelConfig(channels=16, num_heads=4).head_size == 4


def test_widths_follow_from_the_channels_unless_given():
    assert ModelConfig(family="gpt2", channels=128).ffn == 512
    assert ModelConfig(channels=128).ffn == 352  # 8 * 128 / 3 = 341.3, rounded up to a multiple of 32
    assert replace(ModelConfig(channels=128), channels=192).ffn == 512
    assert ModelConfig(ffn_channels=37).ffn == 37
    assert ModelConfig(num_heads=4).kv_heads == 4


def test_one_dial_sets_the_size():
    config = ModelConfig.of_depth(6, vocab_size=999)
    assert (config.num_layers, config.num_heads, config.channels, config.head_size) == (6, 6, 192, 32)
    assert config.vocab_size == 999


def test_settings_come_back_from_json_as_they_were():
    config = TrainConfig(run=Path("a/b"), steps=7, model=ModelConfig(num_kv_heads=2, dropout=0.5))
    assert from_mapping(TrainConfig, json.loads(json.dumps(to_mapping(config)))) == config


def test_toml_gives_the_settings_it_names_and_defaults_for_the_rest(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text('steps = 30\nrun = "here"\n[model]\nchannels = 64\n[optim]\nlearning_rate = 1\n')
    config = read_toml(TrainConfig, file)
    assert config == TrainConfig(
        steps=30, run=Path("here"), model=ModelConfig(channels=64), optim=OptimConfig(learning_rate=1.0)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", r"unknown setting 'stepz'; did you mean 'steps'\?"),
        ("[model]\nwidth = 3", "unknown setting 'model.width'; known settings: channels, "),
        ("steps = 'many'", "setting 'steps' must be int: got 'many'"),
        ("steps = true", "setting 'steps' must be int: got True"),
        ("[model]\nnum_kv_heads = 1.5", "'model.num_kv_heads' must be int or NoneType: got 1.5"),
        ("[model]\nfamily = 'bert'", "setting 'model.family' must be gpt2 or llama: got 'bert'"),
        ("[model]\nchannels = 100\nnum_heads = 8", "100 channels, 8 heads"),
        ("model = 3", "setting 'model' must be ModelConfig: got 3"),
        ("steps = \nseed = 1", "line 1"),
    ],
)
def test_a_faulty_file_is_named_with_its_fault(tmp_path, text, message):
    file = tmp_path / "faulty.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"faulty.toml: .*{message}"):
        read_toml(TrainConfig, file)
