"""What the GPU does that a CPU does not, as LLVM IR that a kernel's code can call.

An operation for which threads wait for each other becomes a *meeting*: put the operands into the thread's mail, wait,
take the results; `scheduler.py` and `warp.py` do the rest.  What a thread does alone becomes a few instructions.
"""

import re
from typing import NamedTuple

from gpu.emulator import record as r


class Meeting(NamedTuple):
    """operation: see `record.py`.  mask: number of the operand with the lanes' mask, or None: all lanes.
    mail: constants that follow the operands."""

    operation: int
    mask: int | None = None
    mail: tuple[int, ...] = ()

    def body(self, result: str, types: list[str]) -> str:
        """LLVM IR of a function with these operand types, and the site as one more."""
        state = r.AT_BLOCK if self.operation >= r.BARRIER else r.AT_WARP
        mask = "-1" if self.mask is None else f"%a{self.mask}"
        lines = [
            "  %me = load ptr, ptr @emu.current",
            *_store_word(r.OPERATION, f"{self.operation}"),
            f"  %mask = zext i32 {mask} to i64",
            *_store_word(r.MASK, "%mask"),
            "  %place = zext i32 %site to i64",
            *_store_word(r.SITE, "%place"),
        ]
        values = [(t, f"%a{i}") for i, t in enumerate(types) if i != self.mask] + [("i32", str(m)) for m in self.mail]
        slot = 0
        for kind, value in values:
            if kind == "i1":
                lines.append(f"  %wide{slot} = zext i1 {value} to i32")
                kind, value = "i32", f"%wide{slot}"
            lines += [
                f"  %to{slot} = getelementptr i32, ptr %me, i64 {r.MAIL + slot}",
                f"  store {kind} {value}, ptr %to{slot}",
            ]
            slot += 2 if kind in ("i64", "double") else 1
        lines.append(f"  call void @emu.wait(i64 {state})")
        return "\n".join(lines + _results(result)) + "\n"


def _store_word(word: int, value: str) -> list[str]:
    return [f"  %w{word} = getelementptr i64, ptr %me, i64 {word}", f"  store i64 {value}, ptr %w{word}"]


def _results(result: str) -> list[str]:
    """Take what came in the mail: nothing, one value, or a struct of several."""
    kinds = [] if result == "void" else [k.strip() for k in result.strip("{}").split(",")]
    lines, whole = [], "undef"
    for i, kind in enumerate(kinds):
        lines += [
            f"  %from{i} = getelementptr i32, ptr %me, i64 {r.MAIL + r.RESULT + i}",
            f"  %got{i} = load {'i32' if kind == 'i1' else kind}, ptr %from{i}",
        ]
        value = f"%got{i}"
        if kind == "i1":
            lines.append(f"  %bit{i} = trunc i32 %got{i} to i1")
            value = f"%bit{i}"
        if result.startswith("{"):
            lines.append(f"  %whole{i} = insertvalue {result} {whole}, {kind} {value}, {i}")
            whole = f"%whole{i}"
        else:
            whole = value
    return [*lines, f"  ret {result} {whole}" if kinds else "  ret void"]


def _load_word(base: str, word: int) -> str:
    """The end of a function whose answer is the lower half of a word."""
    return f"  %at = getelementptr i64, ptr {base}, i64 {word}\n  %n = load i32, ptr %at\n  ret i32 %n\n"


FAILS = """  %bad = icmp ne i32 %fault, 0
  br i1 %bad, label %failed, label %fine
failed:
  call void @emu.wait(i64 4)
  br label %fine
fine:
  ret void
"""
ME = "  %here = load ptr, ptr @emu.current\n  %me = ptrtoint ptr %here to i64\n"

# By the beginning of their name (NVVM's intrinsics) or text (inline PTX): a meeting, or the body of a function whose
# operands are %a0, %a1, ... and %site.
OPERATIONS: dict[str, Meeting | str] = {
    "llvm.nvvm.barrier0.popc": Meeting(r.BARRIER_COUNT),
    "llvm.nvvm.barrier0.and": Meeting(r.BARRIER_AND),
    "llvm.nvvm.barrier0.or": Meeting(r.BARRIER_OR),
    "llvm.nvvm.barrier0": Meeting(r.BARRIER),
    "llvm.nvvm.bar.warp.sync": Meeting(r.SYNC_WARP, mask=0),
    "llvm.nvvm.shfl.sync.i32": Meeting(r.SHUFFLE, mask=0),
    "llvm.nvvm.vote.sync": Meeting(r.VOTE, mask=0),
    "llvm.nvvm.match.any.sync.i32": Meeting(r.MATCH_ANY, mask=0, mail=(0,)),
    "llvm.nvvm.match.all.sync.i32": Meeting(r.MATCH_ALL, mask=0, mail=(0,)),
    "llvm.nvvm.match.any.sync.i64": Meeting(r.MATCH_ANY, mask=0),
    "llvm.nvvm.match.all.sync.i64": Meeting(r.MATCH_ALL, mask=0),
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16": Meeting(r.LDMATRIX, mail=(4,)),
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16": Meeting(r.LDMATRIX, mail=(2,)),
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16": Meeting(r.LDMATRIX_TRANSPOSED, mail=(4,)),
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16": Meeting(r.LDMATRIX_TRANSPOSED, mail=(2,)),
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": Meeting(r.MMA_BF16),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": Meeting(r.MMA_TF32),
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32": Meeting(r.MMA_INT8),
    "llvm.nvvm.membar": "  fence seq_cst\n  ret void\n",
    "llvm.nvvm.read.ptx.sreg.laneid": """  %here = load ptr, ptr @emu.current
  %at = getelementptr i64, ptr %here, i64 5
  %linear = load i32, ptr %at
  %lane = and i32 %linear, 31
  ret i32 %lane
""",
    "mov.u32 $0, %dynamic_smem_size": _load_word("@emu.dims", 9),
    "ex2.approx.ftz.f32": "  %y = call float @llvm.exp2.f32(float %a0)\n  ret float %y\n",
    "tanh.approx.f32": "  %y = call float @llvm.tanh.f32(float %a0)\n  ret float %y\n",
    "div.approx.ftz.f32": "  %y = fdiv float %a0, %a1\n  ret float %y\n",
    "cvt.rna.tf32.f32": """  %bits = bitcast float %a0 to i32
  %up = add i32 %bits, 4096
  %short = and i32 %up, -8192
  %size = and i32 %bits, 2147483647
  %finite = icmp ult i32 %size, 2139095040
  %y = select i1 %finite, i32 %short, i32 %bits
  ret i32 %y
""",
    "cvt.rn.bf16x2.f32": """  %low = call i32 @emu.bf16(float %a0)
  %high = call i32 @emu.bf16(float %a1)
  %up = shl i32 %high, 16
  %y = or i32 %up, %low
  ret i32 %y
""",
    "cvt.f32.f16": "  %h = bitcast i16 %a0 to half\n  %y = fpext half %h to float\n  ret float %y\n",
    "cvt.rn.f16.f32": "  %h = fptrunc float %a0 to half\n  %y = bitcast half %h to i16\n  ret i16 %y\n",
    "dp4a.s32.s32": "  %c0 = add i32 %a2, 0\n"
    + "".join(
        f"  %x{k} = shl i32 %a0, {24 - 8 * k}\n  %u{k} = ashr i32 %x{k}, 24\n"
        f"  %y{k} = shl i32 %a1, {24 - 8 * k}\n  %v{k} = ashr i32 %y{k}, 24\n"
        f"  %p{k} = mul i32 %u{k}, %v{k}\n  %c{k + 1} = add i32 %c{k}, %p{k}\n"
        for k in range(4)
    )
    + "  ret i32 %c4\n",
    "{ .reg .u64 t; cvta.to.shared.u64": """  %from = sub i64 %a0, ptrtoint (ptr @emu.shared to i64)
  %y = trunc i64 %from to i32
  ret i32 %y
""",
    "cp.async.cg.shared.global": ME
    + "  %to = sext i32 %a0 to i64\n"
    + "  %fault = call i32 @emu_begin_copy(i64 %me, i64 %to, i64 %a1, i32 %a2, i32 %site)\n"
    + FAILS,
    "cp.async.commit_group": f"""  %here = load ptr, ptr @emu.current
  %at = getelementptr i64, ptr %here, i64 {r.GROUP}
  %n = load i64, ptr %at
  %more = add i64 %n, 1
  store i64 %more, ptr %at
  ret void
""",
    **{
        f"cp.async.wait_group {n};": f"{ME}  %fault = call i32 @emu_finish_copies(i64 %me, i32 {n}, i32 %site)\n{FAILS}"
        for n in range(8)
    },
    "activemask.b32": "",
}
REASONS = {"activemask.b32": "which lanes happen to run together is the hardware's choice; pass the mask you mean"}
SREG = re.compile(r"llvm\.nvvm\.read\.ptx\.sreg\.(tid|ctaid|ntid|nctaid)\.([xyz])")


def definition(name: str, text: str, result: str, types: list[str]) -> str:
    """LLVM IR that defines function `name`, which does what the intrinsic or the PTX `text` does on the GPU.

    NotImplementedError where the emulator has no such operation.
    """
    key = max((k for k in OPERATIONS if text.startswith(k)), key=len, default=None)
    found = _special_register(text) if SREG.match(text) else OPERATIONS.get(key, "") if key else ""
    if not found:
        raise NotImplementedError(f"the emulator cannot do {text!r}" + (f": {REASONS[key]}" if key in REASONS else ""))
    operands = ", ".join([f"{t} %a{i}" for i, t in enumerate(types)] + ["i32 %site"])
    body = found.body(result, types) if isinstance(found, Meeting) else found
    return f"define internal {result} {name}({operands}) {{\n{body}}}\n"


def _special_register(text: str) -> str:
    kind, axis = SREG.match(text).groups()  # type: ignore[union-attr]
    number = "xyz".index(axis)
    if kind == "tid":
        return "  %here = load ptr, ptr @emu.current\n" + _load_word("%here", r.TID_X + number)
    return _load_word("@emu.dims", 3 * ("ctaid", "ntid", "nctaid").index(kind) + number)
