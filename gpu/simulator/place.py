"""Places in a kernel's source: an instruction of a code object, as a line, a column and text."""

import dis
import linecache
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

OWN_FILES = {
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("block", "memory", "ptx", "races", "shared", "trace", "vocabulary")
}


class Place(NamedTuple):
    """An instruction: a code object and the offset in it, made by `place`."""

    code: CodeType
    offset: int

    @property
    def file(self) -> str:
        """The file's name without folders."""
        return Path(self.code.co_filename).name

    @property
    def line(self) -> int:
        """Line number, from 1."""
        return _positions(self.code)[self.offset // 2][0] or self.code.co_firstlineno

    @property
    def column(self) -> int:
        """Column, from 0; 0 also where Python was told to keep none (-X no_debug_ranges)."""
        return _positions(self.code)[self.offset // 2][2] or 0

    @property
    def line_text(self) -> str:
        """The whole line."""
        return linecache.getline(self.code.co_filename, self.line).strip()

    @property
    def text(self) -> str:
        """The expression, as in `tile[i, j]`; the whole line where its columns are not known."""
        line, end_line, column, end_column = _positions(self.code)[self.offset // 2]
        if column is None or end_column is None or line != end_line:
            return self.line_text
        whole = linecache.getline(self.code.co_filename, self.line)
        return whole.encode()[column:end_column].decode(errors="replace")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place(code: CodeType, offset: int) -> Place:
    """The instruction at an offset that a frame gives; that may point into the room for caches behind it."""
    return Place(code, _instructions(code)[offset // 2])


@cache
def _instructions(code: CodeType) -> list[int]:
    """For each unit of two bytes, where the instruction begins to which it belongs."""
    begins = {i.offset for i in dis.get_instructions(code)}
    found: list[int] = []
    for offset in range(0, len(code.co_code), 2):
        found.append(offset if offset in begins else found[-1])
    return found


@cache
def _positions(code: CodeType) -> list[tuple[int | None, ...]]:
    return list(code.co_positions())


def kernel_place(frame: FrameType | None) -> Place:
    """Where the kernel is: the innermost frame that is not the simulator's own."""
    while frame is not None and frame.f_code.co_filename in OWN_FILES:
        frame = frame.f_back
    assert frame is not None, "only kernels call this"
    return place(frame.f_code, frame.f_lasti)


def error_place(traceback: TracebackType | None) -> Place | None:
    """The innermost place of an error outside of the simulator."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename not in OWN_FILES:
            found = place(code, traceback.tb_lasti)
        traceback = traceback.tb_next
    return found


@cache
def stored_name(call: Place) -> str:
    """The variable that receives the result of a call; where there is none, the place of the call."""
    instructions = list(dis.get_instructions(call.code))
    following = next((i for i in instructions if i.offset > call.offset and i.opname != "CACHE"), None)
    if following is None or not following.opname.startswith("STORE_") or not following.argval:
        return str(call)
    name = following.argval  # two names where Python joined this instruction with the next
    return name[0] if isinstance(name, tuple) else str(name)
