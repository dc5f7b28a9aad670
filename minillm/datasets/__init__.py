"""From text to batches: sources of documents, the tokenized corpus on disk, and the samplers that read it."""
