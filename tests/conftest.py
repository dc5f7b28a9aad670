"""What tests of several packages share."""

from dataclasses import replace

import pytest

from minillm import checkpoint
from minillm.training.folder import RunFolder


@pytest.fixture
def resumes_exactly(tmp_path):
    """resumes_exactly(stage, config, steps): a run stopped after so many steps and resumed ends with the bytes of an
    unbroken one.  stage: a module with `start` and `resume`."""

    def check(stage, config, steps):
        assert stage.start(config).run([""], show=False)
        other = replace(config, run=tmp_path / "stopped")
        trainer = stage.start(other)
        for _ in range(steps):
            trainer.take_step()
        trainer.save()
        assert stage.resume(RunFolder(other.run)).run([""], show=False)
        one, two = (checkpoint.load(RunFolder(c.run).checkpoint_file)[0] for c in (config, other))
        assert one.keys() == two.keys()
        assert all(one[name].tobytes() == two[name].tobytes() for name in one)

    return check
