"""Text to token ids and back, and the model's chat template."""

from engine.tokenizer.load import load_tokenizer
from engine.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
