"""The text of a growing completion: whole characters only, and nothing past a stop string."""

from minillm.tokenizer import StreamDecoder, Tokenizer


class TextStream:
    """Tokens in, text out as soon as it is certain; what might begin a stop string waits."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self.decoder = StreamDecoder(tokenizer)
        self.stop, self.held, self.stopped = stop, "", False

    def push(self, token: int) -> str:
        """The text that `token` settles.  Sets `stopped` once a stop string is complete, and drops it."""
        return self._release(self.decoder.push(token))

    def flush(self) -> str:
        """The end has come: whatever was waiting."""
        text = self._release(self.decoder.flush())
        text, self.held = text + self.held, ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self.held + text
        found = [(place + len(stop), place) for stop in self.stop if (place := text.find(stop)) >= 0]
        if found:  # the first to be complete counts, as it would if the text came letter by letter
            self.stopped, self.held = True, ""
            return text[: min(found)[1]]
        waiting = max((_overlap(text, stop) for stop in self.stop), default=0)
        self.held = text[len(text) - waiting :]
        return text[: len(text) - waiting]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
