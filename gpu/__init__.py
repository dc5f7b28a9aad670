"""CUDA kernels that can be read, run, checked and counted, with or without a GPU.

`Emulator`, `Simulator` and `Device` are the machines they run on (see `gpu/array.py`).  `import gpu` loads no compiler;
where something is missing it says so in one sentence, once.
"""

import ctypes
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu.device import Device
    from gpu.emulator import Emulator
    from gpu.simulator import Simulator

__all__ = ["Device", "Emulator", "Simulator", "missing"]

MACHINES = {"Device": "gpu.device", "Emulator": "gpu.emulator", "Simulator": "gpu.simulator"}
OLDEST_DRIVER = 13000  # CUDA 13.0, NVIDIA driver 580: what numba-cuda[cu13] makes code for


def missing() -> str | None:
    """What this computer lacks for running kernels on a GPU and what works in its place; None where nothing is lacking.

    Loads the driver but does not start it, so that processes can still fork.  It cannot tell whether there is a card.
    """
    if not _installed("numba_cuda"):
        return (
            "gpu: numba-cuda is not installed, so kernels run in the simulator only; "
            "pip install 'minillm[cuda]' adds the emulator, the checks of machine code and launches on a GPU"
        )
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return f"gpu: there is no NVIDIA driver ({library} cannot be loaded), so kernels run in the emulator on the CPU"
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value < OLDEST_DRIVER:
        return (
            f"gpu: the NVIDIA driver is for CUDA {version.value // 1000}.{version.value % 1000 // 10}, "
            "too old to launch kernels, which need driver 580 (CUDA 13.0) or newer; they run in the emulator on the CPU"
        )
    return None


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def __getattr__(name: str) -> Any:
    """The machines, loaded when first named."""
    if name in MACHINES:
        return getattr(import_module(MACHINES[name]), name)
    raise AttributeError(f"module 'gpu' has no attribute {name!r}")


if sentence := missing():
    warnings.warn(sentence, stacklevel=2)
