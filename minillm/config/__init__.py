"""Every setting of the project, as frozen dataclasses; and the letters that name shapes everywhere.

    B batch    T query time    S key time    C channels    H heads    G key/value heads    D head size
    F feed-forward channels    V vocabulary    L layers    R rank    P page

Each class checks itself when it is made, so a wrong setting fails before any work is done.
"""

from minillm.config.checks import check_at_least, check_choice
from minillm.config.model import ModelConfig
from minillm.config.quantize import QuantizeConfig
from minillm.config.rope import RopeScaling
from minillm.config.sampling import SamplingConfig
from minillm.config.training import (
    DataConfig,
    DistilConfig,
    LoopConfig,
    LoraConfig,
    OptimConfig,
    SFTConfig,
    TrainConfig,
)

__all__ = [
    "DataConfig",
    "DistilConfig",
    "LoopConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "QuantizeConfig",
    "RopeScaling",
    "SFTConfig",
    "SamplingConfig",
    "TrainConfig",
    "check_at_least",
    "check_choice",
]
