"""What a kernel can do wrong while it runs, found by the emulator in checked mode and by the simulator."""


class KernelError(RuntimeError):
    """A kernel broke a rule of the machine; the message names the kernel, the block, the threads and the line."""


def ranges(numbers: list[int]) -> str:
    """Thread numbers as text: [0, 1, 2, 5] is "0-2, 5"."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
