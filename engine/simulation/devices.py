"""DeviceProfile: what a GPU can do, from its data sheet, and how much of that is reached. No torch here.

Peaks, memory and links are those of NVIDIA's data sheets (dense, no sparsity; a link's bytes in one direction). The
fractions were measured on one H200: 790 of 989 TFLOP/s in a bf16 product of 8192 x 8192 matrices, 4.3 of 4.8 TB/s in a
copy; they are taken for the others too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import InvalidRequest

PRODUCTS, MEMORY = 790 / 989, 4.3 / 4.8  # of the peak, in large products and in copies
HOST_PER_SEQUENCE = 0.8e-6  # seconds of planning: 0.79 ms at 1,024 sequences (docs/claims.md, 4.5)


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Rates per second."""

    name: str
    operations: Mapping[str, float]  # by what products are computed in
    bandwidth: float  # bytes of memory
    memory: float  # bytes
    link: float  # bytes to its neighbours, in one direction

    @classmethod
    def named(cls, name: str) -> DeviceProfile:
        """Raises InvalidRequest, which lists the known names."""
        if name not in DEVICES:
            raise InvalidRequest("device", name, f"has no profile; known are {', '.join(DEVICES)}")
        return DEVICES[name]

    def rate(self, dtype: str) -> float:
        """Operations per second that large products reach with weights in this format. Weights alone in few bits are
        multiplied in bf16.

        Raises InvalidRequest where the device has no products in it.
        """
        computed = "bf16" if dtype.endswith("weight_only") else dtype
        if computed not in self.operations:
            raise InvalidRequest("dtype", dtype, f"{self.name} computes no such products; {', '.join(self.operations)}")
        return self.operations[computed] * PRODUCTS


DEVICES = {
    profile.name: profile
    for profile in (
        DeviceProfile("a100", {"fp32": 19.5e12, "bf16": 312e12, "int8": 624e12}, 2.039e12, 80e9, 300e9),
        DeviceProfile("h100", {"fp32": 67e12, "bf16": 989e12, "int8": 1979e12, "fp8": 1979e12}, 3.35e12, 80e9, 450e9),
        DeviceProfile("h200", {"fp32": 67e12, "bf16": 989e12, "int8": 1979e12, "fp8": 1979e12}, 4.8e12, 141e9, 450e9),
    )
}
