"""`minillm quantize`: each way is measured, and bad settings say what to change."""

import pytest

from minillm.config import DataConfig, ModelConfig, TrainConfig
from minillm.quantize import SCHEMES, Quantize, compare_schemes
from minillm.training import pretrain


@pytest.fixture
def run(tmp_path):
    """A run of one step."""
    (tmp_path / "text.txt").write_text("".join(f"{i} cats and {i + 1} dogs sat in a row.\n\n" for i in range(80)))
    config = TrainConfig(
        run=tmp_path / "run",
        steps=1,
        eval_every=0,
        sample_every=0,
        model=ModelConfig(vocab_size=280, context_len=32, num_layers=1, num_heads=2, channels=64),
        data=DataConfig(source=str(tmp_path / "text.txt"), vocab_size=280),
    )
    pretrain.start(config).run([""], show=False)
    return config.run


def command(run, **options):
    text = run.parent / "text.txt"
    return Quantize(run, data=str(text), tokens=200, calibration=200, context=24, out=run.parent / "out", **options)


def test_every_scheme_is_measured_and_drawn(run, capsys):
    rows = compare_schemes(command(run))
    assert [row.name for row in rows] == ["float32", *SCHEMES]
    assert all(row.num_bytes < rows[0].num_bytes / 2 for row in rows[1:])
    assert all(abs(row.perplexity / rows[0].perplexity - 1) < 0.05 for row in rows[1:])
    assert (run.parent / "out" / "quantize.png").read_bytes().startswith(b"\x89PNG")
    assert "GPTQ" in capsys.readouterr().out


def test_an_unknown_scheme_is_named(run):
    with pytest.raises(ValueError, match=r"quantize\.scheme must be one of int8, .*: got 'int3'"):
        command(run, scheme=("int3",))


def test_a_text_too_short_says_how_much_there_is(run):
    with pytest.raises(ValueError, match="tokens, and 200,000 to score"):
        compare_schemes(Quantize(run, data=str(run.parent / "text.txt"), tokens=200_000))
