"""Byte-level BPE: `bpe` learns the merges, `tokenizer` encodes and decodes, `stream` decodes id by id."""

from minillm.tokenizer.stream import StreamDecoder
from minillm.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
