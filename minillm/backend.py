"""From a backend's name to its namespace of ops; chosen once, at the edge."""

from importlib import import_module
from types import ModuleType

BACKENDS = {"numpy": "minillm.ops", "cpu": "minillm.cpu"}


def load(name: str) -> ModuleType:
    """The ops of backend `name`.  ValueError names the backends there are."""
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; there is {', '.join(BACKENDS)}")
    return import_module(BACKENDS[name])
