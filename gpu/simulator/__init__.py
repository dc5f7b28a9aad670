"""The simulator: a kernel's Python code, thread by thread, on one core, with everything it touches checked and counted."""

from gpu.simulator.machine import Simulator
from gpu.simulator.trace import Trace

__all__ = ["Simulator", "Trace"]
