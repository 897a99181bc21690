"""Text to tokens: documents, tokenizers, and the shards that they fill."""
