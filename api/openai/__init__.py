"""The OpenAI face: files, uploads, batches and completions by OpenAI's wire contract, over the same jobs."""
