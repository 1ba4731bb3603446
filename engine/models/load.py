"""load_model: from a path to a Model."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.cache import DTYPES
from engine.errors import InvalidRequest, ModelError
from engine.gguf_file import GGUFFile
from engine.models import gguf_model, hugging_face
from engine.models.layers import Weights
from engine.models.llama import Llama
from engine.models.model import Model
from engine.models.weights import fill


def load_model(path: Path, dtype: str = "fp32", device: str = "cpu") -> Model:
    """Load a Hugging Face folder or a GGUF file.

    Raises ModelError for files that are missing, damaged or do not fit together, and UnsupportedModel for what is not
    supported; both name it. InvalidRequest for an unknown dtype.
    """
    if dtype not in DTYPES:
        raise InvalidRequest("dtype", dtype, f"must be one of {', '.join(DTYPES)}")
    if not path.exists():
        raise ModelError(path, "there is no such file or folder")
    if path.is_dir():
        config = hugging_face.read_config(path)
        tensors = hugging_face.tensors(path, config)
    elif path.suffix == ".gguf":
        file = GGUFFile.open(path)
        config = gguf_model.read_config(file)
        tensors = gguf_model.tensors(file, config)
    else:
        raise ModelError(path, "is neither a folder nor a .gguf file")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        heads = f"{config.num_heads} query heads, {config.num_kv_heads} key/value heads of {config.head_dim}"
        raise ModelError(path, f"the heads do not fit together: {heads}")
    weights = Weights.allocate(config, DTYPES[dtype], torch.device(device))
    fill(weights.by_name(config), tensors, path)
    return Llama(config, weights)
