"""load_model: from a path to a Model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine.devices import torch_device, uses_kernels
from engine.dtypes import WEIGHT_ONLY_BITS, products_dtype, weight_dtype
from engine.errors import ModelError, UnsupportedModel
from engine.gguf_file import GGUFFile
from engine.models import gguf_model, hugging_face
from engine.models.assembly import assemble, in_codes
from engine.models.attention import EAGER, with_attention
from engine.models.config import ModelConfig
from engine.models.fusion import Named, plain
from engine.models.layers import Weights
from engine.models.llama import Llama
from engine.models.model import Model
from engine.models.native import NativeLlama
from engine.models.ops import Ops, TorchOps
from engine.models.weights import checked
from engine.ranks import Ranks
from kernels import native

log = logging.getLogger(__name__)


def load_model(
    path: Path,
    dtype: str = "fp32",
    device: str = "cpu",
    *,
    use_native: bool = True,
    ranks: Ranks | None = None,
    attention: str = "auto",
) -> Model:
    """Load a Hugging Face folder or a GGUF file.

    On a CPU the model runs as native code; in PyTorch where that is unwanted or cannot be built (a warning says why).

    `ranks`: only this rank's part is loaded, and computed with the others. `attention`: see EngineConfig; torch's own
    is for models in PyTorch and on GPUs.

    Raises ModelError for files that are missing, damaged or do not fit together, and UnsupportedModel for what is not
    supported; both name it. InvalidRequest for an unknown dtype, or where the model cannot be split.
    """
    number_format = weight_dtype(dtype, device)
    bits = WEIGHT_ONLY_BITS.get(number_format, 0)
    config, tensors = _open(path, stored=bits > 0)
    names = Weights.allocate(config, torch.float32, torch.device("meta")).by_name(config)
    tensors = checked({name: view.shape for name, view in names.items()}, tensors, path)
    if use_native and device == "cpu" and ranks is None and attention not in EAGER:
        reason = native.reason()
        if reason is None:
            return NativeLlama.of(config, tensors, number_format)
        log.warning("native code is not used, so this will be several times slower: %s", reason)
    own = config if ranks is None else ranks.part_of(config)
    own_tensors, ops = _parts(tensors, ranks), _ops(number_format, device)
    weights = _weights(path, own, own_tensors, number_format, device)
    return Llama(own, weights, with_attention(ops, attention), ranks)


def read_config(path: Path) -> ModelConfig:
    """The shape of a model on disk, without its weights. Raises ModelError, UnsupportedModel."""
    return _open(path, stored=False)[0]


def _ops(format: torch.dtype, device: str) -> Ops:
    if not uses_kernels(device):
        return TorchOps()
    from engine.models.gpu_ops import GpuOps  # imports Triton, which not every machine has

    return GpuOps(format if format in (torch.float8_e4m3fn, torch.int8) else None)


def _weights(
    path: Path, config: ModelConfig, tensors: Iterator[Named], format: torch.dtype, device: str
) -> Weights[Any]:
    """Weights in a format, as PyTorch computes with them, or the kernels."""
    between, place, bits = products_dtype(format, device), torch_device(device), WEIGHT_ONLY_BITS.get(format, 0)
    if uses_kernels(device) and format != between:
        try:
            return assemble(config, tensors, format, between, place)
        except ValueError as error:
            raise UnsupportedModel(path, f"{error}; take another dtype") from error
    if bits:
        return in_codes(config, tensors, bits)
    weights = Weights.allocate(config, between, place)
    views = weights.by_name(config)
    for name, tensor in tensors:
        views[name].copy_(plain(tensor))
    return weights.quantised() if format == torch.int8 else weights


def _parts(tensors: Iterator[Named], ranks: Ranks | None) -> Iterator[Named]:
    """What of the tensors this rank has."""
    return ((name, tensor if ranks is None else ranks.part(name, tensor)) for name, tensor in tensors)


def _open(path: Path, *, stored: bool) -> tuple[ModelConfig, Iterator[Named]]:
    """The configuration and the tensors of whatever `path` is; with `stored` in their own codes where it has these."""
    if not path.exists():
        raise ModelError(path, "there is no such file or folder")
    if path.is_dir():
        config = hugging_face.read_config(path)
        tensors: Iterator[Named] = hugging_face.tensors(path, config)
    elif path.suffix == ".gguf":
        file = GGUFFile.open(path)
        config = gguf_model.read_config(file)
        tensors = gguf_model.tensors(file, config, stored=stored)
    else:
        raise ModelError(path, "is neither a folder nor a .gguf file")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        heads = f"{config.num_heads} query heads, {config.num_kv_heads} key/value heads of {config.head_dim}"
        raise ModelError(path, f"the heads do not fit together: {heads}")
    return config, tensors
