"""Configs to and from plain values: the JSON of a run folder, the TOML of a user."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Config = TypeVar("Config")


def to_mapping(config: Any) -> dict[str, Any]:
    """The settings as plain nested values that JSON and TOML can hold; `from_mapping` undoes it."""
    return asdict(config, dict_factory=lambda pairs: {k: str(v) if isinstance(v, Path) else v for k, v in pairs})


def from_mapping(cls: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """Build `cls` from nested `values`; a missing key keeps its default, an unknown key or wrong type is an error."""
    hints = get_type_hints(cls)
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    made = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        if key not in known:
            close = get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known settings: {', '.join(sorted(known))}"
            raise ValueError(f"unknown setting {path!r}; {hint}")
        made[key] = _convert(hints[key], value, path)
    return cls(**made)


def read_toml(cls: type[Config], path: Path) -> Config:
    """Read settings from a TOML file; ValueError names the file and the fault."""
    try:
        return from_mapping(cls, tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _convert(hint: Any, value: Any, path: str) -> Any:
    """`value` as the annotated type, or ValueError saying what was expected."""
    if is_dataclass(hint) and isinstance(value, Mapping):
        return from_mapping(hint, value, path)  # type: ignore[arg-type]
    options = get_args(hint) if get_origin(hint) in (Union, type(int | None)) else (hint,)
    for option in options:
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(_convert(get_args(option)[0], item, path) for item in value)
        if option is Path and isinstance(value, str):
            return Path(value)
        if option is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(option, type) and type(value) is option:
            return value
    names = [get_args(o) if get_origin(o) is Literal else (str(o) if get_args(o) else o.__name__,) for o in options]
    expected = " or ".join(name for several in names for name in several)
    raise ValueError(f"setting {path!r} must be {expected}: got {value!r}")
