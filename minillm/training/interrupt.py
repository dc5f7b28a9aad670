"""Ctrl-C that waits for a good moment."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While active, the first Ctrl-C (or termination signal) only sets `requested`; the second one acts as usual."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python cannot set handlers
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested:
            signal.signal(number, self._before[number])
            raise KeyboardInterrupt
        self.requested = True
