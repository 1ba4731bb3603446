"""Models: from a folder or a file of weights to logits."""

from engine.models.config import Llama3Scaling, ModelConfig
from engine.models.load import load_model
from engine.models.model import GreedyModel, Model

__all__ = ["GreedyModel", "Llama3Scaling", "Model", "ModelConfig", "load_model"]
