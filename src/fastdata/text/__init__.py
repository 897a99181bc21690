"""Text as tokens: documents, tokenizers, shards and the dataset that reads them."""
