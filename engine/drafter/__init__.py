"""Speculation: guesses how outputs go on, so that one step can settle several tokens of a row."""

from engine.drafter.costs import StepCosts
from engine.drafter.drafter import Context, Drafter, Guess
from engine.drafter.forced import ForcedDrafter
from engine.drafter.history import HistoryDrafter
from engine.drafter.model import ModelDrafter
from engine.drafter.prompt import PromptDrafter
from engine.drafter.speculation import Speculation

__all__ = [
    "Context",
    "Drafter",
    "ForcedDrafter",
    "Guess",
    "HistoryDrafter",
    "ModelDrafter",
    "PromptDrafter",
    "Speculation",
    "StepCosts",
]
