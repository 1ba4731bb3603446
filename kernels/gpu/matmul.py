"""Products in fp8. Those in bf16 are cuBLAS's own, by torch.nn.functional.linear."""

import torch
from torch import Tensor

from kernels import reference


def fp8_linear(values: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """reference.fp8_linear by cuBLAS, where there is a GPU; it takes multiples of 16 features, and bf16 as `dtype`."""
    if not values.is_cuda:
        return reference.fp8_linear(values, scales, weight, weight_scales, dtype)
    return torch._scaled_mm(values, weight.t(), scales, weight_scales.t(), out_dtype=dtype)
