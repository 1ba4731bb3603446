"""What number formats cost in quality: the demo model in each, against fp32, over real text.

    python -m tests.bench.quality [--formats int8/int8 bf16/bf16] [--prompts 24]

The text is that of w2's prompts (news and scientific articles). Every format is WEIGHTS/CACHE. Perplexity is exp of the
mean negative log-probability of each next token; the divergence is KL(fp32 || format) in nats, a mean over positions;
agreement is how often the most probable token is the same. Prints the perplexities last.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from db.model_files import find
from db.settings import Settings
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.inputs import Inputs
from engine.models import Model, load_model
from tests.bench.workloads import load

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over positions. `divergence` and `agreement` are against fp32."""

    perplexity: float
    divergence: float
    agreement: float


def logprobs(model: Model, cache_dtype: str, tokens: Tensor) -> Tensor:
    """Log-probabilities [T, vocab] of what follows each of tokens [T]."""
    config, count = model.config, len(tokens)
    num_blocks = -(-count // BLOCK_SIZE)
    cache = KVCache.fit(config, EngineConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, kv_dtype=cache_dtype))
    inputs = Inputs(
        token_ids=tokens,
        positions=torch.arange(count),
        slots=torch.arange(count),
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lengths=torch.tensor([count], dtype=torch.int32),
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
        logit_rows=torch.arange(count),
    )
    with torch.inference_mode():
        return model.logits(model.forward(inputs, cache)).log_softmax(-1)


def measure(formats: list[str], num_prompts: int) -> dict[str, Quality]:
    """Each format's quality, fp32/fp32 first."""
    path = find("smollm2-135m", Settings())
    texts = [torch.tensor(item.prompt_ids) for item in load("w2")[:num_prompts]]
    names = ["fp32/fp32", *(name for name in formats if name != "fp32/fp32")]
    models = {name: load_model(path, name.partition("/")[0]) for name in names}
    sums = {name: [0.0, 0.0, 0.0] for name in names}
    positions = 0
    for text in texts:
        following = text[1:, None]
        positions += len(following)
        expected = None
        for name in names:
            found = logprobs(models[name], name.partition("/")[2], text)[:-1]
            expected = found if expected is None else expected
            sums[name][0] -= float(found.gather(1, following).sum())
            sums[name][1] += float((expected.exp() * (expected - found)).sum())
            sums[name][2] += float((found.argmax(-1) == expected.argmax(-1)).sum())
    return {
        name: Quality(math.exp(loss / positions), divergence / positions, agreed / positions)
        for name, (loss, divergence, agreed) in sums.items()
    }


def table(qualities: dict[str, Quality]) -> Table:
    made = Table("weights/cache", "perplexity", "divergence from fp32", "same most probable token", title="quality")
    for name, each in qualities.items():
        made.add_row(name, f"{each.perplexity:.2f}", f"{each.divergence:.4f}", f"{each.agreement:.3f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--formats", nargs="+", default=["int8/int8", "bf16/bf16"])
    parser.add_argument("--prompts", type=int, default=24)
    options = parser.parse_args()
    found = measure(options.formats, options.prompts)
    Console().print(table(found))
    print("perplexity: " + ", ".join(f"{name} {each.perplexity:.2f}" for name, each in found.items()))


if __name__ == "__main__":
    main()
