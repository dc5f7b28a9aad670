"""From NVVM IR to LLVM IR for this computer's processor, as text.

NVVM IR is LLVM's language as it was some years ago: pointers have types and address spaces.  Both go:
`float addrspace(1)*` becomes `ptr`.  Shared memory becomes places in one arena; what only a GPU has (intrinsics, inline
PTX) becomes calls of the functions in `operations.py`; and in checked mode each access to memory is preceded by a
question whether it may.
"""

import re
from dataclasses import dataclass, field

from gpu.emulator.operations import definition
from gpu.emulator.record import ATOMIC, READ, WRITE

LINE = 64  # bytes: shared arrays begin at multiples
OPEN = {"}": "{", "]": "[", ")": "(", ">": "<"}
NAME = r'(?:"[^"]*"|[\w.$]+)'
SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8, "bfloat": 2}


@dataclass
class Translation:
    """What the modules of one kernel share while they are translated.

    sites: where in the source each number stands, as "file:line".  shared: offset and size of each shared array.
    """

    checked: bool
    sites: list[str] = field(default_factory=list)
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    dynamic: str | None = None
    functions: dict[tuple[str, str], tuple[str, list[str]]] = field(default_factory=dict)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the arena before dynamic shared memory."""
        return max((start + size + gap(size) for start, size in self.shared.values()), default=0)

    def module(self, source: str) -> str:
        """One module: opaque pointers, the arena, calls instead of intrinsics; without declarations of these."""
        lines = locations(source)
        self._find_shared(source)
        guards = Guards() if self.checked else None
        out: list[str] = []
        used: dict[str, str] = {}
        for line in source.split("\n"):
            if line.startswith(("target ", "!", ";", '@"llvm.used"', "@llvm.used")) or line[:14] == '@"_cudapy_smem':
                continue
            if "llvm.dbg." in line or re.match(r'declare .*@"?llvm\.nvvm\.', line):
                continue
            place = re.search(r"!dbg !(\d+)", line)
            site = self._site(lines.get(place[1], "?")) if place else 0
            line = re.sub(r"\s*,?\s*!(?:dbg|range|prof|noundef|invariant\.load|tbaa|nosanitize) !\d+", "", line)
            line = self._arena(opaque(line)).replace(", align 16", ", align 4")  # misaligned is slow here, no crash
            if guards:
                out += guards.before(line, site)
            out.append(self._calls(line, site, used))
        return "\n".join(out + list(used.values()))

    def _site(self, place: str) -> int:
        if place not in self.sites:
            self.sites.append(place)
        return self.sites.index(place)

    def _find_shared(self, source: str) -> None:
        for name, count, kind in re.findall(
            r'^@"(_cudapy_smem\w*)" = addrspace\(3\) global \[(\d+) x ([\w. ]+)\]', source, re.M
        ):
            self.shared[name] = (self.shared_bytes, int(count) * SIZES[kind])
        for name in re.findall(r'^@"(_cudapy_smem[^"]*)" = external', source, re.M):
            self.dynamic = name

    def _arena(self, line: str) -> str:
        """Shared arrays as places in the arena.  The dynamic one begins at `emu.dynamic`."""
        if "_cudapy_smem" not in line:
            return line

        def place(found: re.Match) -> str:
            name = found[1]
            return (
                "@emu.dynamic"
                if name == self.dynamic
                else f"getelementptr (i8, ptr @emu.shared, i64 {self.shared[name][0]})"
            )

        return re.sub(r'@"(_cudapy_smem[^"]*)"', place, line)

    def _calls(self, line: str, site: int, used: dict[str, str]) -> str:
        """A call of an intrinsic or of inline PTX as a call of our function, with the site as one more operand."""
        found = re.match(r'(.*?)call (.+?) asm\s+(?:sideeffect )?"([^"]*)", "[^"]*"\s*\((.*)\)\s*$', line) or re.match(
            r'(.*?)call (.+?) @"?(llvm\.nvvm\.[\w.]+)"?\((.*)\)\s*$', line
        )
        if not found:
            return line
        before, result, text, operands = found.groups()
        types = [o.strip().split(" ")[0] for o in operands.split(",")] if operands.strip() else []
        if text.startswith("llvm.nvvm.atomic.load.add"):
            value = operands.split(",", 1)[1]
            return f"{before}atomicrmw fadd {operands.split(',', 1)[0]}, {value.strip()} monotonic"
        if (text, result) not in self.functions:
            self.functions[text, result] = (f"@emu.operation.{len(self.functions)}", types)
        name = self.functions[text, result][0]
        used[name] = f"declare {result} {name}({', '.join([*types, 'i32'])})"
        return f"{before}call {result} {name}({operands}{', ' if types else ''}i32 {site})"

    def definitions(self) -> str:
        """The functions that the translated modules call."""
        return "\n".join(
            definition(name, text, result, types) for (text, result), (name, types) in self.functions.items()
        ).replace("define internal", "define")


class Guards:
    """A question before each access to memory that may be shared or global: `emu.guard(address, bytes, kind, site)`.

    Variables of a thread (`alloca`) and fields of structures need none; their names are collected on the way.
    """

    def __init__(self) -> None:
        self.own: set[str] = set()

    def before(self, line: str, site: int) -> list[str]:
        """The lines to put before `line`."""
        if (found := re.match(rf"\s*(%{NAME}) = alloca", line)) or (
            (found := re.match(rf"\s*(%{NAME}) = (?:getelementptr|bitcast)[^%]*?ptr (%{NAME})", line))
            and found[2] in self.own
            and ("{" in line or "bitcast" in line)
        ):
            self.own.add(found[1])
        access = (
            re.match(rf"()\s*%{NAME} = load (?:volatile )?([^,]+), ptr (.+?)(?:, align \d+)?\s*$", line)
            or re.match(r"()\s*store (?:volatile )?(<[^>]*>|\w+) .+, ptr (.+?)(?:, align \d+)?\s*$", line)
            or re.match(rf"()\s*%{NAME} = atomicrmw \w+ ptr (.+?), (\w+)", line)
            or re.match(rf"()\s*%{NAME} = cmpxchg ptr (.+?), (\w+)", line)
            or re.match(rf"()\s*%{NAME} = call (\w+) @\"?llvm\.nvvm\.atomic[\w.]*\"?\(ptr (.+?), ", line)
            or re.match(rf"()\s*%{NAME} = call (\w+) @\"?___numba_atomic\w*\"?\(ptr (.+?), ", line)
        )
        if not access:
            return []
        _, kind, where = access.groups()
        if "atomicrmw" in line or "cmpxchg" in line:
            kind, where = where, kind
        size = size_of(kind)
        if where in self.own or not size:
            return []
        use = WRITE if line.lstrip().startswith("store") else READ if " = load " in line else ATOMIC
        return [f"  call void @emu.guard(ptr {where}, i32 {size}, i32 {use}, i32 {site})"]


def gap(size: int) -> int:
    """Bytes behind a shared array that belong to none: as many again, up to the next boundary."""
    return (2 * size // LINE + 1) * LINE - size


def size_of(kind: str) -> int:
    """Bytes of a scalar or vector type; 0 for structures and pointers, which only variables of a thread hold."""
    if found := re.fullmatch(r"<(\d+) x (\w+)>", kind.strip()):
        return int(found[1]) * SIZES[found[2]]
    return SIZES.get(kind.strip(), 0)


def opaque(line: str) -> str:
    """The line with `ptr` for each pointer type."""
    line = re.sub(r"\s*addrspace\(\d+\)", "", line).replace("addrspacecast", "bitcast")
    star = line.find("*")
    while star >= 0:
        line = line[: _type_start(line, star - 1)] + "ptr" + line[star + 1 :]
        star = line.find("*")
    return line


def _type_start(line: str, end: int) -> int:
    """Where the type begins whose last character is at `end`."""
    while line[end] == " ":
        end -= 1
    if line[end] == '"':
        return line.rindex('"', 0, end) - 1
    if line[end] not in OPEN:
        while end >= 0 and (line[end].isalnum() or line[end] in "_.%"):
            end -= 1
        return end + 1
    depth, close, i = 0, line[end], end
    while True:
        if line[i] == '"':
            i = line.rindex('"', 0, i)
        depth += (line[i] == close) - (line[i] == OPEN[close])
        if depth == 0:
            break
        i -= 1
    return _type_start(line, i - 1) if close == ")" else i  # a function's type begins with its result


def locations(source: str) -> dict[str, str]:
    """From the numbers of `!dbg` to "file:line"."""
    file = re.search(r'!DIFile\(directory: "[^"]*", filename: "([^"]*)"\)', source)
    name = file[1] if file else "?"
    return {
        number: f"{name}:{line}" for number, line in re.findall(r"^!(\d+) = !DILocation\(.*?line: (\d+)", source, re.M)
    }
