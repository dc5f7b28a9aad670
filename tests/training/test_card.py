"""The model card says how a run was made: its command makes the same settings again."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import tyro

from minillm.cli import _commands
from minillm.config import (
    DataConfig,
    DistilConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    SFTConfig,
    TrainConfig,
)
from minillm.evaluation.exact_match import Answer
from minillm.evaluation.records import write_records
from minillm.training import pretrain
from minillm.training.card import command_of, write_card
from minillm.training.folder import RunFolder


@pytest.mark.parametrize(
    ("config", "stage"),
    [
        (TrainConfig(), "pretrain"),
        (TrainConfig(run=Path("my runs/a b"), recompute=True, model=ModelConfig(tied=False, num_kv_heads=1),
                     data=DataConfig(source="it's.txt"), optim=OptimConfig(learning_rate=1e-5)), "pretrain"),
        (SFTConfig(packing=False, last_only=True, lora=LoraConfig(rank=4, alpha=1.5)), "sft"),
        (DistilConfig(divergence="jensen-shannon", tau=0.25, teacher=Path("t")), "distil"),
    ],
)  # fmt: skip
def test_the_command_makes_the_same_settings(config, stage):
    program, *arguments = shlex.split(command_of(config, stage))
    assert program == "minillm"
    assert tyro.cli(_commands(None), args=arguments) == config


def test_a_card_is_a_page_about_the_run(tmp_path):
    (tmp_path / "text.txt").write_text("a cat and a dog\n\n" * 30)
    config = TrainConfig(
        run=tmp_path / "run", steps=2, batch_size=2, sample_every=1,
        model=ModelConfig(vocab_size=270, context_len=16, num_layers=1, num_heads=2, channels=8),
        data=DataConfig(source=str(tmp_path / "text.txt"), vocab_size=270),
    )  # fmt: skip
    trainer = pretrain.start(config, progress=False)
    assert trainer.run([""], show=False)
    folder = RunFolder(config.run)
    page = (folder.path / "README.md").read_text()
    assert f"{trainer.model.weights.num_parameters:,} parameters" in page
    assert command_of(folder.read_config(), "pretrain") in page
    assert "Validation loss" in page and "(loss.png)" in page and "at step 1" in page
    assert "| optim.learning_rate | 0.003 |" in page
    assert "Evaluation" not in page
    write_records(folder.path / "exact-match.jsonl", [Answer("a|b", [], "1", str(i)) for i in range(4)])
    page = write_card(folder).read_text()
    assert "| a\\|b | 25.0% | 25.0% | 4 |" in page


def test_settings_of_every_stage_have_defaults_to_compare_with():
    for config in (TrainConfig(), SFTConfig(), DistilConfig()):
        assert command_of(replace(config, seed=7), "sft").endswith("--seed 7")
