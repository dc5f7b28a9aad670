"""The simulator: a kernel's Python code, thread by thread, on one core; all that it touches is checked and counted."""

from gpu.simulator.machine import Simulator
from gpu.simulator.trace import Trace

__all__ = ["Simulator", "Trace"]
