"""What verifying drafts costs and brings: a table of step times, drafts of a given quality, forced tokens."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import Any

import jsonschema
import numpy as np

from engine import FinishReason, Format, Output, Request, SamplingParams
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.drafter import ForcedDrafter, Speculation, StepCosts
from engine.drafter.drafter import Context, Guess
from engine.gpu_runner import GpuRunner
from engine.probe import probe
from engine.sequence import Sequence
from engine.step import Step
from tests.bench.gpu_stages.shapes import Place, median
from tests.bench.gpu_stages.throughput import requests, timed
from tests.engine.grammar.languages import END, RECORD, grammars, text_of, texts, vocab_size

FREE = StepCosts(((1, 1.0), (1000, 1.001)))  # everything proposed is verified


def verify_table(place: Place) -> Iterator[dict[str, Any]]:
    """Milliseconds of a step by sequences and draft length, for the budget's cost curve."""
    model = place.model("8b")
    context, block_size = (20, 16) if place.reduced else (576, 16)
    batches, drafts = ((1, 2), (0, 1)) if place.reduced else ((8, 32, 64, 128, 256, 512), (0, 1, 2, 4, 8))
    width = -(-context // block_size)
    config = EngineConfig(
        dtype="fp32" if place.reduced else "bf16",
        device="interpret" if place.reduced else "cuda",
        num_blocks=width * max(batches),
        block_size=block_size,
    )
    runner = GpuRunner(model, KVCache.fit(model.config, config), 2048, max(batches))
    for batch in batches:
        for drafted in drafts:
            own = np.arange(batch * width, dtype=np.int32).reshape(batch, width)
            step = probe(batch, drafted + 1, context, block_size)._replace(block_tables=own)

            def launch(step: Step = step) -> None:
                runner.largest(runner.run(runner.prepare_step(step)))[1].tolist()

            launch()
            seconds = median(place.wall(launch, 5))
            yield {"what": "step", "sequences": batch, "drafted": drafted, "ms": seconds * 1e3}


class Oracle:
    """Proposes what will come, each token right with a given probability."""

    name = "oracle"
    costly = False
    priors = (0.9,)

    def __init__(self, outputs: dict[object, Output], right: float, vocab: int) -> None:
        self._outputs, self._right, self._vocab = outputs, right, vocab
        self._random = random.Random(0)

    def guess(self, contexts: Items[Context]) -> list[Guess]:
        return [self._guess(context) for context in contexts]

    def _guess(self, context: Context) -> Guess:
        sequence = context.sequence
        done = sequence.num_output + len(context.draft)
        coming = self._outputs[sequence.request.id].tokens[done : done + min(context.room, 4)]
        drafted = [token if self._random.random() < self._right else (token + 1) % self._vocab for token in coming]
        return Guess(drafted, [0] * len(drafted))

    def finish(self, sequence: Sequence) -> None:
        """Nothing is kept."""


def oracle(place: Place) -> Iterator[dict[str, Any]]:
    """Speed and equality of outputs with drafts of a known quality."""
    model = place.model("8b")
    for count in (3,) if place.reduced else (16, 64):
        sizes = (count, 12, 5) if place.reduced else (count, 512, 128)
        wanted = requests(*sizes, model.config.vocab_size)
        engine = place.engine(model)
        timed(engine, wanted[:1])
        plain, outputs = timed(engine, wanted)
        engine.close()
        for right in (0.7,) if place.reduced else (0.5, 0.7, 0.9):
            drafter = Oracle(outputs, right, model.config.vocab_size)
            engine = place.engine(model, speculation=Speculation([drafter], lambda: FREE, longest=4))
            timed(engine, wanted[:1])
            rate, same = timed(engine, wanted)
            engine.close()
            equal = sum(same[i].tokens == outputs[i].tokens for i in outputs)
            yield {
                "what": f"drafts right with {right}, {count} sequences",
                "ratio": rate / plain, "equal outputs": equal, "outputs": count,
            }  # fmt: skip


def structured(place: Place) -> Iterator[dict[str, Any]]:
    """JSON from random weights: every output valid, forced tokens as drafts on and off."""
    model = place.model("1b", vocab_size())
    backend, schema = grammars(), Format.schema(RECORD)
    for count in (2,) if place.reduced else (64, 512):
        wanted = [
            Request(i, (5, 6, 7 + i % 50), SamplingParams(max_tokens=80, temperature=1.0, seed=i), format=schema)
            for i in range(count)
        ]
        rates, finished = {}, []
        for drafts in (False, True):
            speculation = Speculation([ForcedDrafter(backend)], lambda: FREE) if drafts else None
            engine = place.engine(model, token_bytes=texts(), grammars=backend, speculation=speculation)
            start = time.perf_counter()
            outputs = list(engine.generate(wanted))
            rates[drafts] = sum(len(output.tokens) for output in outputs) / (time.perf_counter() - start)
            finished += [output for output in outputs if output.finish_reason == FinishReason.STOP]
            engine.close()
        valid = sum(_is_valid(output) for output in finished)
        yield {
            "what": f"JSON, {count} sequences", "forced drafts' ratio": rates[True] / rates[False],
            "finished": len(finished), "valid": valid, "passed": valid == len(finished),
        }  # fmt: skip


def _is_valid(output: Output) -> bool:
    record = json.loads(text_of([token for token in output.tokens if token != END]))
    return bool(jsonschema.Draft202012Validator(RECORD).is_valid(record))
