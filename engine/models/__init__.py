"""Models: from a folder or a file of weights to logits."""

from engine.models.config import Llama3Scaling, ModelConfig
from engine.models.load import load_model
from engine.models.model import Model

__all__ = ["Llama3Scaling", "Model", "ModelConfig", "load_model"]
