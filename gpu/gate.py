"""What the machine code of a kernel uses and does, found without a GPU, and what of it is wrong.

PTX goes through nvJitLink (NVIDIA's assembler as a library), which prints registers, stack and spills; its machine code
goes through nvdisasm, which lists the instructions with their source lines.  Neither needs a driver.
"""

import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpu import compile
from gpu.compile import Capability
from gpu.kernel import Kernel
from gpu.occupancy import Occupancy, occupancy

ARCHITECTURES: tuple[Capability, ...] = ((8, 0), (9, 0))  # what every kernel is compiled and checked for

NO_DISASSEMBLER = (
    "nvdisasm is not installed, so machine code was not read: float64, wide, tensor and asynchronous instructions "
    "are unchecked; pip install 'nvidia-cuda-nvdisasm==13.*'"
)

# A double shows in an opcode (DFMA), in a modifier (F2F.F64.F32) or as the high half of one (MUFU.RCP64H).
FLOAT64 = r"D(FMA|ADD|MUL|SETP|MNMX|MMA)\b|.*\.F64\b|.*64H\b"
LOCAL = r"(LDL|STL)\b"
WIDE_LOAD = r"(LDG|LDGSTS)\b.*\.128\b"
WIDE_STORE = r"STG\b.*\.128\b"
TENSOR = r"(HMMA|IMMA|HGMMA|IGMMA)\b"
ASYNCHRONOUS = r"LDGSTS\b"

UNKNOWN_LINE = "?"  # of the assembler's own subroutines, such as division


@dataclass(frozen=True)
class Resources:
    """What one kernel needs on one architecture, and which instructions it is made of."""

    capability: Capability
    registers: int
    """32-bit registers of a thread, from nvJitLink's log."""
    stack: int
    """Bytes of local memory of a thread: arrays that found no registers, and spilled registers.  From the log."""
    spill_stores: int
    """Bytes a thread writes because registers ran out, counted once per instruction.  From the log."""
    spill_loads: int
    """Bytes it reads back.  From the log."""
    static_shared: int
    """Bytes of shared memory of a block that the kernel declares itself, from the PTX."""
    instructions: dict[str, int] | None
    """How often each opcode stands in the machine code, as "LDG.E.128"; None where nvdisasm is missing."""
    lines: dict[str, tuple[str, ...]]
    """Where: "softmax.py:31" for each opcode, in order."""
    cubin: bytes
    """The machine code, an ELF file."""

    @property
    def spills(self) -> int:
        """Bytes written and read because registers ran out."""
        return self.spill_stores + self.spill_loads

    def count(self, pattern: str) -> int:
        """Number of instructions whose opcode begins with what the regular expression describes."""
        return sum(n for opcode, n in (self.instructions or {}).items() if re.match(pattern, opcode))

    def describe(self, pattern: str) -> str:
        """These instructions in words: "3 DFMA, 1 DMUL (rows.py:12, rows.py:14)"."""
        found = {o: n for o, n in sorted((self.instructions or {}).items()) if re.match(pattern, o)}
        places = sorted({place for opcode in found for place in self.lines[opcode]} - {UNKNOWN_LINE})
        counts = ", ".join(f"{n} {opcode}" for opcode, n in found.items())
        return f"{counts} ({', '.join(places)})" if places else counts

    def occupancy(self, kernel: Kernel) -> Occupancy:
        """How much of a multiprocessor the kernel's largest block fills, with its typical dynamic shared memory."""
        return occupancy(self.capability, kernel.threads, self.registers, self.static_shared + kernel.shared)


@cache
def resources(kernel: Kernel, capability: Capability) -> Resources:
    """Compile `kernel` for `capability` and measure it.  RuntimeError with the compiler's words where it refuses."""
    try:
        text = compile.ptx(kernel, capability)
        cubin, log = link(text, capability)
    except Exception as error:
        raise RuntimeError(f"{kernel.name} does not compile for {architecture(capability)}: {error}") from error

    def logged(pattern: str) -> list[int]:
        return [int(n) for n in re.findall(pattern, log)]

    instructions, lines = disassemble(cubin)
    return Resources(
        capability,
        registers=max(logged(r"Used (\d+) registers")),
        stack=max(logged(r"(\d+) bytes stack frame")),
        spill_stores=sum(logged(r"(\d+) bytes spill stores")),
        spill_loads=sum(logged(r"(\d+) bytes spill loads")),
        static_shared=static_shared(text),
        instructions=instructions,
        lines=lines,
        cubin=cubin,
    )


def link(text: str, capability: Capability) -> tuple[bytes, str]:
    """PTX to machine code: a cubin, and the assembler's log.  RuntimeError with the log where it refuses."""
    from cuda.bindings import nvjitlink

    options = [f"-arch={architecture(capability)}", "-Xptxas=-v", "-lineinfo"]
    handle, source = nvjitlink.create(len(options), options), text.encode()
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, source, len(source), "kernel.ptx")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        raise RuntimeError(log.decode().strip("\0\n ")) from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), log.decode()


def static_shared(text: str) -> int:
    """Bytes of the shared arrays that PTX declares with a size, each at a multiple of its alignment.

    The cubin has the sum too, but for sm_90 with the 1024 bytes in it that the driver keeps.
    """
    total = 0
    for alignment, size in re.findall(r"\.shared \.align (\d+) \.b8 \w+\[(\d+)\]", text):
        total += -total % int(alignment) + int(size)
    return total


def disassemble(cubin: bytes) -> tuple[dict[str, int] | None, dict[str, tuple[str, ...]]]:
    """How often each opcode stands in the machine code, and at which source lines.  (None, {}) without nvdisasm."""
    from cuda.pathfinder import find_nvidia_binary_utility

    program = find_nvidia_binary_utility("nvdisasm")
    if program is None:
        return None, {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        listing = subprocess.run([program, "-c", "-gi", file], capture_output=True, text=True, check=True).stdout
    counts: Counter[str] = Counter()
    lines: dict[str, dict[str, None]] = defaultdict(dict)  # a set that keeps its order
    here = UNKNOWN_LINE
    for row in listing.splitlines():
        if place := re.search(r'//## File "([^"]+)", line (\d+)', row):
            here = f"{Path(place[1]).name}:{place[2]}"
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", row):
            counts[found[1]] += 1
            lines[found[1]][here] = None
    return dict(counts), {opcode: tuple(places) for opcode, places in lines.items()}


def findings(kernel: Kernel, used: Resources) -> list[str]:
    """What is wrong with a kernel's machine code, and what to do about it; an empty list where nothing is."""
    found = [*_registers(kernel, used), *_room(kernel, used)]
    if used.instructions is not None:
        found += [*_float64(used), *_promises(kernel, used)]
    return found


def architecture(capability: Capability) -> str:
    """(8, 0) is "sm_80"."""
    return f"sm_{capability[0]}{capability[1]}"


def _registers(kernel: Kernel, used: Resources) -> list[str]:
    if used.spills:
        return [
            f"{used.spill_stores} bytes of registers spilled and {used.spill_loads} read back: "
            f"{used.registers} registers a thread do not suffice; "
            f"keep fewer values alive, or lower threads={kernel.threads} or blocks={kernel.blocks}"
        ]
    if used.stack > kernel.claims.stack or (used.count(LOCAL) and not kernel.claims.stack):
        return [
            f"{used.stack} bytes of stack, {kernel.claims.stack} allowed: {used.describe(LOCAL) or 'not accessed'}; "
            "a local array stays in registers only if every index into it is known when compiling: "
            "loop over it with constant bounds"
        ]
    return []


def _room(kernel: Kernel, used: Resources) -> list[str]:
    fits = used.occupancy(kernel)
    if fits.blocks >= kernel.blocks:
        return []
    return [
        f"blocks={kernel.blocks} should fit on a multiprocessor and {fits.blocks} do, "
        f"limited by {' and '.join(fits.limits)}: {kernel.threads} threads of {used.registers} registers, "
        f"{used.static_shared + kernel.shared} bytes of shared memory"
    ]


def _float64(used: Resources) -> list[str]:
    if not used.count(FLOAT64):
        return []
    return [
        f"float64: {used.describe(FLOAT64)}; a Python float, an int divisor or an int32 added to a float32 made it: "
        "write np.float32(0.5), np.float32(n)"
    ]


def _promises(kernel: Kernel, used: Resources) -> list[str]:
    """What the kernel claims and its machine code does not show."""
    wanted = {
        "wide": ((WIDE_LOAD, "16-byte load from global memory"), (WIDE_STORE, "16-byte store to global memory")),
        "tensor": ((TENSOR, "tensor-core instruction"),),
        "asynchronous": ((ASYNCHRONOUS, "asynchronous copy to shared memory"),),
    }
    remedy = {
        "wide": "use ptx.load4, ptx.copy16 and ptx.store4",
        "tensor": "use ptx.mma_bf16, ptx.mma_tf32 or ptx.mma_int8",
        "asynchronous": "use ptx.copy16",
    }
    return [
        f"claims {claim}, but has no {what}; {remedy[claim]}, or drop the claim"
        for claim, needs in wanted.items()
        if getattr(kernel.claims, claim)
        for pattern, what in needs
        if not used.count(pattern)
    ]
