"""Formats of outputs as token masks: JSON Schema, regular expressions, choices, context-free grammars."""

from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Backend, Grammar
from engine.grammar.vocabulary import vocabulary

__all__ = ["Backend", "Grammar", "Grammars", "vocabulary"]
