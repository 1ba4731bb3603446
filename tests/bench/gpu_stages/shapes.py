"""Models of random weights, the roofline that they are held to, and a timer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine import Engine, EngineConfig
from engine.models import ModelConfig
from engine.models.gpu_ops import GpuOps
from engine.models.layers import Weights
from engine.models.llama import Llama

FLOPS, BANDWIDTH = 790e12, 4.3e12  # of one H200, measured: bf16 products, bytes read and written by a copy


def shape(name: str, vocab_size: int | None = None) -> ModelConfig:
    """Of Llama-3-8B, Llama-3.2-1B, or one that the interpreter manages."""
    sizes = {"8b": (128256, 4096, 32, 32, 8, 128, 14336), "1b": (128256, 2048, 16, 32, 8, 64, 8192)}
    vocab, hidden, layers, heads, kv_heads, head_dim, intermediate = sizes.get(name, (160, 64, 1, 4, 2, 16, 96))
    return ModelConfig(
        "LlamaForCausalLM", vocab_size or vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, 8192,
        1e-5, 500_000.0, tie_embeddings=name == "1b",
    )  # fmt: skip


def random_model(config: ModelConfig, device: torch.device, dtype: torch.dtype, *, fp8: bool = False) -> Llama:
    """Weights that keep activations of unit size, so that logits differ and nothing overflows."""
    weights = Weights.allocate(config, dtype, device)
    generator = torch.Generator(device).manual_seed(0)
    for name, view in weights.by_name(config).items():
        if name.endswith("norm.weight"):
            view.fill_(1.0)
        else:
            view.normal_(0.0, view.shape[-1] ** -0.5, generator=generator)
    return Llama(config, weights.in_fp8() if fp8 else weights, GpuOps(torch.float8_e4m3fn if fp8 else None))


@dataclass(frozen=True)
class Place:
    """Where the script runs: on a GPU, or reduced in the interpreter."""

    reduced: bool

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.reduced else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.reduced else torch.bfloat16

    def model(self, name: str, vocab_size: int | None = None, *, fp8: bool = False) -> Llama:
        config = shape("tiny" if self.reduced else name, vocab_size)
        return random_model(config, self.device, self.dtype, fp8=fp8)

    def engine(self, model: Llama, **options: object) -> Engine:
        """With room for what the stages run, unless `options` say otherwise."""
        made: dict[str, object] = {"device": "interpret", "dtype": "fp32", "max_sequences": 4, "token_budget": 64}
        made |= {"num_blocks": 64, "max_model_len": 128, "prefix_caching": False}
        if not self.reduced:
            made |= {"device": "cuda", "dtype": "bf16", "max_sequences": 512, "token_budget": 8704}
            made |= {"num_blocks": 45_000, "max_model_len": 2048}
        extra = {name: options.pop(name) for name in ("token_bytes", "grammars", "speculation") if name in options}
        config = EngineConfig(**(made | options))  # type: ignore[arg-type]
        return Engine(model, config, eos_token_ids=frozenset(), **extra)  # type: ignore[arg-type]

    def seconds(self, launch: Callable[[], object]) -> float:
        """The median time of a launch with cold caches; in the interpreter one run."""
        if self.reduced:
            start = time.perf_counter()
            launch()
            return time.perf_counter() - start
        import triton

        return float(triton.testing.do_bench(launch, warmup=20, rep=60, return_mode="median")) / 1e3

    def wall(self, run: Callable[[], object], repeats: int = 2) -> list[float]:
        """Wall times, the device waited for."""
        times = []
        for _ in range(1 if self.reduced else repeats):
            start = time.perf_counter()
            run()
            if not self.reduced:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return times


def tokens(count: int, vocab: int, seed: int) -> tuple[int, ...]:
    """A prompt; never zeros, which are cheaper to multiply."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, vocab, (count,), generator=generator).tolist())


def normal(*size: int, place: Place, dtype: torch.dtype | None = None) -> Tensor:
    return torch.randn(size, device=place.device).to(dtype or place.dtype)


def roofline(config: ModelConfig, prompt: int, output: int, batch: int, kv_bytes: float = 2.0) -> float:
    """Output tokens per second if products ran at FLOPS and memory at BANDWIDTH, one after the other, attention being
    its reading of keys and values alone."""
    per_layer = (
        config.hidden_size * (config.query_size + 2 * config.kv_size)
        + config.query_size * config.hidden_size
        + 3 * config.hidden_size * config.intermediate_size
    )
    layers, head = per_layer * config.num_layers, config.hidden_size * config.vocab_size
    prefill = 2 * layers * prompt / FLOPS
    linear = max(2 * (layers + head) * batch / FLOPS, 2 * (layers + head) / BANDWIDTH)
    cached = 2 * config.num_layers * config.kv_size * kv_bytes  # bytes of a position
    reading = batch * (prompt + output / 2) * cached / BANDWIDTH
    return batch * output / (batch * prefill + output * (linear + reading))


def median(values: list[float]) -> float:
    return statistics.median(values)
