"""load_model: from a path to a Model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import torch

from engine.devices import torch_device, uses_kernels
from engine.dtypes import WEIGHT_ONLY_BITS, products_dtype, weight_dtype
from engine.errors import ModelError
from engine.gguf_file import GGUFFile
from engine.models import gguf_model, hugging_face
from engine.models.attention import EAGER, with_attention
from engine.models.config import ModelConfig
from engine.models.fusion import Named, plain
from engine.models.layers import Weights
from engine.models.llama import Llama
from engine.models.model import Model
from engine.models.native import NativeLlama
from engine.models.ops import TorchOps
from engine.models.weight_only import in_codes
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
    between = products_dtype(number_format, device)
    if bits:
        return Llama(own, in_codes(own, _parts(tensors, ranks), bits), TorchOps(), ranks)
    weights = Weights.allocate(own, between, torch_device(device))
    views = weights.by_name(own)
    for name, tensor in _parts(tensors, ranks):
        views[name].copy_(plain(tensor))
    if not uses_kernels(device):
        ops = with_attention(TorchOps(), attention)
        return Llama(own, weights.quantised() if number_format == torch.int8 else weights, ops, ranks)
    from engine.models.gpu_ops import GpuOps  # imports Triton, which not every machine has

    fp8 = number_format == torch.float8_e4m3fn
    return Llama(own, weights.in_fp8() if fp8 else weights, with_attention(GpuOps(fp8=fp8), attention), ranks)


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
