"""What share of the simulator's roofline a published engine reaches: what `simulate --efficiency` is a guess of.

    python -m tests.bench.published

The output tokens per second are those of TensorRT-LLM 1.0's performance overview (docs/source/performance/
perf-overview.md, tables "Llama 3.3 70B" and "Llama 3.1 8B"), with as many requests as stand there, all of one length:
weights in fp8, and keys and values too, as in the checkpoints that it names. The simulator gets the roofline whole, the
engine's default limits there (2,048 sequences, 8,192 tokens a step), and no common beginnings. Nothing of Nightmill has
run on these devices. Prints a row of a table for each setting, and the median of the shares.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import NamedTuple

from engine.config import EngineConfig
from engine.simulation import Architecture, DeviceProfile, RooflineCost
from engine.simulation.lengths import Lengths
from engine.simulation.question import Question, answer


class Published(NamedTuple):
    model: str
    device: str
    tensor_parallel: int
    prompt: int
    output: int
    rows: int
    tokens_per_second: int  # of output


PUBLISHED = (
    Published("llama-3.1-70b", "h100", 2, 128, 2048, 3000, 6651),
    Published("llama-3.1-70b", "h100", 2, 1000, 1000, 3000, 4205),
    Published("llama-3.1-70b", "h100", 2, 2048, 128, 3000, 762),
    Published("llama-3.1-70b", "h100", 2, 5000, 500, 1500, 898),
    Published("llama-3.1-70b", "h200", 1, 128, 2048, 3000, 4336),
    Published("llama-3.1-70b", "h200", 1, 1000, 1000, 3000, 2909),
    Published("llama-3.1-70b", "h200", 1, 2048, 128, 3000, 442),
    Published("llama-3.1-8b", "h100", 1, 128, 2048, 3000, 22714),
    Published("llama-3.1-8b", "h100", 1, 1000, 1000, 3000, 15220),
    Published("llama-3.1-8b", "h100", 1, 2048, 128, 3000, 3450),
    Published("llama-3.1-8b", "h200", 1, 1000, 1000, 3000, 17744),
)


def simulated(each: Published) -> float:
    """Output tokens per second at the roofline."""
    shape, device = Architecture.named(each.model), DeviceProfile.named(each.device)
    cost = RooflineCost(shape, device, "fp8", "fp8", each.tensor_parallel)
    config = EngineConfig(max_sequences=2048, token_budget=8192)
    config = replace(config, num_blocks=cost.num_blocks(config))
    prompt, output = (Lengths(((50.0, float(tokens)),)) for tokens in (each.prompt, each.output))
    question = Question(each.rows, prompt, output, sample_rows=each.rows)
    return answer(question, config, cost).output_tokens_per_second


def main() -> None:
    shares = []
    print("| model | devices | tokens of prompt / answer | published | roofline | share |\n|---|---|---|---|---|---|")
    for each in PUBLISHED:
        rate = simulated(each)
        shares.append(each.tokens_per_second / rate)
        where = f"{each.model} | {each.tensor_parallel} x {each.device} | {each.prompt:,} / {each.output:,}"
        print(f"| {where} | {each.tokens_per_second:,} | {rate:,.0f} | {shares[-1]:.0%} |", flush=True)
    print(f"median {statistics.median(shares):.0%}, from {min(shares):.0%} to {max(shares):.0%}")


if __name__ == "__main__":
    main()
