"""A kernel as machine code of this computer: translate, optimise, and load a copy for each core.

Each copy has its own global variables: its shared memory and its current thread.  It is the emulator's multiprocessor.
"""

import ctypes
import re
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from gpu.compile import nvvm_ir
from gpu.emulator import record as r
from gpu.emulator.fiber import architecture, switch_ir
from gpu.emulator.memory import callbacks
from gpu.emulator.translate import Translation
from gpu.kernel import Kernel

DYNAMIC = 232_448  # bytes: the most shared memory a block can have (sm_90)
RUNTIME = """
@emu.current = global ptr null
@emu.scheduler = global i64 0
@emu.arguments = global i64 0
@emu.dims = global [10 x i64] zeroinitializer
@emu.shared = global [{shared} x i8] zeroinitializer, align 256
@emu.dynamic = alias i8, getelementptr (i8, ptr @emu.shared, i64 {static})
define void @emu.wait(i64 %state) noinline {{
  %me = load ptr, ptr @emu.current
  %at = getelementptr i64, ptr %me, i64 1
  store i64 %state, ptr %at
  %other = load i64, ptr @emu.scheduler
  call void @emu.switch(ptr %me, i64 %other)
  ret void
}}
define void @emu.guard(ptr %address, i32 %size, i32 %kind, i32 %site) noinline {{
  %here = load ptr, ptr @emu.current
  %me = ptrtoint ptr %here to i64
  %where = ptrtoint ptr %address to i64
  %fault = call i32 @emu_check(i64 %me, i64 %where, i32 %size, i32 %kind, i32 %site)
  %bad = icmp ne i32 %fault, 0
  br i1 %bad, label %failed, label %fine
failed:
  call void @emu.wait(i64 4)
  br label %fine
fine:
  ret void
}}
define i32 @emu.bf16(float %x) {{
  %bits = bitcast float %x to i32
  %half = lshr i32 %bits, 16
  %odd = and i32 %half, 1
  %up = add i32 %odd, 32767
  %sum = add i32 %bits, %up
  %rounded = lshr i32 %sum, 16
  %nan = fcmp uno float %x, %x
  %y = select i1 %nan, i32 32767, i32 %rounded
  ret i32 %y
}}
declare i32 @emu_check(i64, i64, i32, i32, i32)
declare i32 @emu_begin_copy(i64, i64, i64, i32, i32)
declare i32 @emu_finish_copies(i64, i32, i32)
declare float @llvm.exp2.f32(float)
declare float @llvm.tanh.f32(float)
"""
# CUDA's mathematical library: our name for each function of one or two operands of one type.
SAME = ["exp", "exp2", "log", "log2", "log10", "sqrt", "sin", "cos", "tanh"]
SAME += ["fabs", "floor", "ceil", "rint", "trunc", "round"]
UNARY = {f"__nv_{n}f": (n, "float") for n in SAME} | {f"__nv_{n}": (n, "double") for n in SAME}
BINARY = {
    f"__nv_{theirs}{letter}": (ours, kind)
    for letter, kind in (("f", "float"), ("", "double"))
    for theirs, ours in (("fmax", "maxnum"), ("fmin", "minnum"), ("pow", "pow"), ("copysign", "copysign"))
}


class Program:
    """Optimised machine code of one kernel.  sites and shared: see `Translation`."""

    def __init__(self, kernel: Kernel, checked: bool) -> None:
        start_llvm()
        translation = Translation(checked)
        modules = [translation.module(source) for source in nvvm_ir(kernel)]
        main = next(i for i, text in enumerate(modules) if re.search(r"^define void @", text, re.M))
        self.sites, self.shared, self.static = translation.sites, translation.shared, translation.shared_bytes
        runtime = RUNTIME.format(shared=self.static + DYNAMIC, static=self.static)
        runtime += switch_ir(architecture()) + library("\n".join(modules)) + translation.definitions()
        machine = target_machine()
        whole = parse(runtime + entry(modules[main]))
        for text in modules:
            whole.link_in(parse(outside(text)))
        missing = [f.name for f in whole.functions if f.is_declaration and not f.name.startswith(("llvm.", "emu_"))]
        if missing:
            raise NotImplementedError(f"{kernel.name}: the emulator has no {', '.join(missing)}")
        whole.verify()
        builder = llvm.create_pass_builder(
            machine, llvm.create_pipeline_tuning_options(speed_level=2 if checked else 3)
        )
        builder.getModulePassManager().run(whole, builder)
        self.code = machine.emit_object(whole)

    def load(self) -> "Copy":
        """A copy with memory of its own."""
        return Copy(self.code)


class Copy:
    """Loaded machine code, and its global variables as arrays."""

    def __init__(self, code: bytes) -> None:
        self.engine = llvm.create_mcjit_compiler(parse(""), target_machine())
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()
        self.current, self.scheduler, self.shared = (self.address(n) for n in ("current", "scheduler", "shared"))
        self.arguments, self.dims = self._words("arguments", 1), self._words("dims", 10)
        self._stacks = np.empty((0, r.STACK), np.uint8)

    def stacks(self, count: int) -> np.ndarray:
        """Memory for so many stacks and one more; used again by the next launch."""
        if len(self._stacks) <= count:
            self._stacks = np.empty((count + 1, r.STACK), np.uint8)
        return self._stacks

    def address(self, name: str) -> int:
        """Of a global variable or function."""
        return self.engine.get_global_value_address(f"emu.{name}") or self.engine.get_function_address(f"emu.{name}")

    def _words(self, name: str, count: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(self.address(name)))


@cache
def start_llvm() -> dict:
    """Make LLVM ready once, and tell it where our functions are.  Returns them, to keep them alive."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    made = callbacks()
    for name, function in made.items():
        llvm.add_symbol(name, function.address)
    return made


def target_machine() -> llvm.TargetMachine:
    """This computer's processor with all it can do."""
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", jit=True)


def parse(text: str) -> llvm.ModuleRef:
    """A module from text, without the declarations of what is defined in it."""
    names = set(re.findall(r'^define [^@]*@"?([\w.$]+)"?\(', text, re.M))
    kept, seen = [], set()
    for line in text.split("\n"):
        if line.startswith("declare"):
            name = re.search(r'@"?([\w.$]+)"?\(', line)[1]  # type: ignore[index]
            if name in names or name in seen:
                continue
            seen.add(name)
        kept.append(line)
    module = llvm.parse_assembly("\n".join(kept))
    module.triple = llvm.get_process_triple()
    return module


def outside(text: str) -> str:
    """Declarations of what a module uses of the runtime."""
    lines = ["@emu.shared = external global i8", "@emu.dynamic = external global i8"]
    lines.append("declare void @emu.guard(ptr, i32, i32, i32)")
    return "\n".join(lines) + "\n" + text


def entry(module: str) -> str:
    """LLVM IR of a thread's life: take the arguments, run the kernel, be done."""
    found = re.search(r'^define void (@"[^"]+")\((.*?)\)\s*(?:!dbg !\d+)?\s*$', module, re.M)
    name, parameters = found[1], [p.strip().rsplit(" ", 1)[0] for p in found[2].split(",")]  # type: ignore[index]
    lines = [f"declare void {name}({', '.join(parameters)})", "define void @emu.entry() {"]
    lines += ["  %words = load ptr, ptr @emu.arguments"]
    for i, kind in enumerate(parameters):
        lines += [f"  %p{i} = getelementptr i64, ptr %words, i64 {i}", f"  %v{i} = load {kind}, ptr %p{i}"]
    values = ", ".join(f"{kind} %v{i}" for i, kind in enumerate(parameters))
    lines += [f"  call void {name}({values})", f"  call void @emu.wait(i64 {r.DONE})", "  unreachable", "}"]
    return "\n".join(lines) + "\n"


def library(modules: str) -> str:
    """Those functions of CUDA's mathematical library that the modules call, by means of LLVM's."""
    lines = []
    for name in set(re.findall(r"@\"?(__nv_\w+)\"?\(", modules)):
        for table, operands in ((UNARY, 1), (BINARY, 2)):
            if name in table:
                ours, kind = table[name]
                suffix = "f32" if kind == "float" else "f64"
                typed = ", ".join(f"{kind} %x{i}" for i in range(operands))
                lines += [
                    f"declare {kind} @llvm.{ours}.{suffix}({', '.join([kind] * operands)})",
                    f"define {kind} @{name}({typed}) alwaysinline {{",
                    f"  %y = call {kind} @llvm.{ours}.{suffix}({typed})",
                    f"  ret {kind} %y\n}}",
                ]
    return "\n".join(lines) + "\n"
