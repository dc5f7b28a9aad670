"""A copy of a kernel's function that finds other things under its global names: `cuda` and `ptx` become Python."""

from collections.abc import Callable
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from gpu.simulator import ptx


class Rebinding:
    """Copies functions for one launch; each at most once, so that they may call each other."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.copies: dict[int, Any] = {}

    def function(self, original: Callable) -> Callable:
        """The same code with rebound globals, defaults and closure."""
        assert isinstance(original, FunctionType), f"{original} is not a Python function"
        if id(original) not in self.copies:
            names: dict[str, Any] = {}
            cells = tuple(CellType() for _ in original.__closure__ or ())
            copy = FunctionType(original.__code__, names, original.__name__, original.__defaults__, cells or None)
            copy.__kwdefaults__ = original.__kwdefaults__
            self.copies[id(original)] = copy
            found = original.__globals__
            used = _names(original.__code__) | {"__builtins__", "__name__"}
            names.update({name: self.value(found[name]) for name in used if name in found})
            for cell, old in zip(cells, original.__closure__ or ()):
                cell.cell_contents = self.value(old.cell_contents)
        return self.copies[id(original)]

    def value(self, value: Any) -> Any:
        """What a kernel finds in the place of a global value."""
        if hasattr(value, "py_func"):  # numba's dispatcher: a device function
            return self.function(value.py_func)
        if not isinstance(value, ModuleType):
            return value
        if value.__name__ == "numba.cuda":
            return self.cuda
        if value.__name__ == "gpu.ptx":
            return ptx
        return self._module(value)

    def _module(self, module: ModuleType) -> Any:
        """A module with device functions: the names in it, with those rebound."""
        functions = {name: value for name, value in vars(module).items() if hasattr(value, "py_func")}
        if not functions:
            return module
        if id(module) not in self.copies:
            names = self.copies[id(module)] = SimpleNamespace(**vars(module))
            vars(names).update({name: self.value(value) for name, value in functions.items()})
        return self.copies[id(module)]


def _names(code: CodeType) -> set[str]:
    """The global (and attribute) names in a code object and in the functions inside it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))
