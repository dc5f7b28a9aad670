"""Models of others, and ours for others."""

from minillm.interop.source import chat_template, file_of, is_foreign, load

__all__ = ["chat_template", "file_of", "is_foreign", "load"]
