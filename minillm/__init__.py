"""minillm: a whole small LLM stack that one person can read."""

__version__ = "0.1.0"
