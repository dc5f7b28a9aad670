"""A fiber: a stack of its own for each CUDA thread, and the few instructions that jump from one to another.

To switch, push the registers that a function must preserve, remember where the stack ends, take the other stack, pop
its registers and return, which continues where that fiber stopped.  A new fiber's stack is laid out as if it had just
pushed zeros and were to return to its entry.
"""

import platform
from typing import NamedTuple


class Architecture(NamedTuple):
    """How a processor switches stacks.  words: 8-byte words that a switch pushes; entry: which of them is jumped to."""

    assembly: str
    words: int
    entry: int


ARCHITECTURES = {
    "x86_64": Architecture(
        # rdi: where to remember this stack; rsi: the other stack
        "pushq %rbx; pushq %rbp; pushq %r12; pushq %r13; pushq %r14; pushq %r15;"
        "movq %rsp, (%rdi); movq %rsi, %rsp;"
        "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbp; popq %rbx; retq",
        words=7,
        entry=6,
    ),
    "aarch64": Architecture(
        # x0: where to remember this stack; x1: the other stack
        "sub sp, sp, #160;"
        "stp x19, x20, [sp]; stp x21, x22, [sp, #16]; stp x23, x24, [sp, #32]; stp x25, x26, [sp, #48];"
        "stp x27, x28, [sp, #64]; stp x29, x30, [sp, #80];"
        "stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144];"
        "mov x9, sp; str x9, [x0]; mov sp, x1;"
        "ldp x19, x20, [sp]; ldp x21, x22, [sp, #16]; ldp x23, x24, [sp, #32]; ldp x25, x26, [sp, #48];"
        "ldp x27, x28, [sp, #64]; ldp x29, x30, [sp, #80];"
        "ldp d8, d9, [sp, #96]; ldp d10, d11, [sp, #112]; ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144];"
        "add sp, sp, #160; ret",
        words=20,
        entry=11,
    ),
}
NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


def architecture(machine: str | None = None) -> Architecture:
    """That of `machine`, a name as platform.machine() gives it; None: this one.  NotImplementedError if not known."""
    name = (machine or platform.machine()).lower()
    name = NAMES.get(name, name)
    if name not in ARCHITECTURES:
        raise NotImplementedError(
            f"the emulator runs on {' and '.join(ARCHITECTURES)}, not on {name}: use the simulator"
        )
    return ARCHITECTURES[name]


def switch_ir(arch: Architecture) -> str:
    """LLVM IR of `emu.switch(where to remember this stack, the other stack)`."""
    return f"""
define void @emu.switch(ptr %save, i64 %other) naked noinline {{
  call void asm sideeffect "{arch.assembly}", ""()
  unreachable
}}
"""
