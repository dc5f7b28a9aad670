"""Which module runs the training that some settings describe."""

from types import ModuleType

from minillm.config import DistilConfig, LoopConfig, SFTConfig
from minillm.training import distil, pretrain, sft


def module_of(config: LoopConfig) -> ModuleType:
    """The module whose `start(config)` begins such a run and whose `resume(folder)` goes on with it."""
    if isinstance(config, DistilConfig):
        return distil
    return sft if isinstance(config, SFTConfig) else pretrain
