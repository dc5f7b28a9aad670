"""Text from a stream of token ids: a character is given out once all its bytes are there.

A token is bytes, and may end in the middle of a character: an emoji has four bytes, which may be four tokens.
"""

import codecs

from minillm.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids into text one by one; the pieces joined are `tokenizer.decode` of all ids.

    At most three bytes are held back, and only while they may still become a character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The text that `id` completes, often "".  ValueError for an unknown id, which leaves the stream as it was."""
        return self._decoder.decode(self._tokenizer.token_bytes(id))

    def flush(self) -> str:
        """End the stream: "" or, if it stopped within a character, U+FFFD.  A new stream may follow."""
        return self._decoder.decode(b"", final=True)
