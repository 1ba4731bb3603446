"""`python -m worker.bench`: a sample workload on the engine, as one JSON object. `nightmill bench` asks it.

Everything runs in one thread, so that the parts add up to the wall time: in a job, tokenising and detokenising happen
in other threads, beside the engine.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from db.settings import Settings
from engine import LoadedModel, Request, SamplingParams
from worker.models import load_model
from worker.rows import prompt_tokens

WARM_ROWS = 8
TEXT = """the of and to in is that for it was on are as with they at this from have by one had not but what all were
when water people house river number world school paper music winter garden morning letter window market engine"""
WORDS = TEXT.split()
WORDS_PER_ROW = 120
QUESTION = "Summarize the following text in two sentences.\n\n"


@dataclass(frozen=True, slots=True)
class Measured:
    """`parts`: seconds by part of the work, engine.clock.PARTS and what is around them; together `seconds`."""

    rows: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    steps: int
    seconds: float
    parts: Mapping[str, float]

    @property
    def host_share(self) -> float:
        """The share of the wall time that was not the model's."""
        return 1 - self.parts["model"] / self.seconds


def measure(model: LoadedModel, requests: Iterable[Request]) -> Measured:
    """Run the requests, detokenising what comes out. Making a request is counted as tokenising."""
    engine, spent = model.engine, {"tokenise": 0.0, "detokenise": 0.0}

    def made() -> Iterator[Request]:
        source, start = iter(requests), time.perf_counter()
        while (request := next(source, None)) is not None:
            spent["tokenise"] += time.perf_counter() - start
            yield request
            start = time.perf_counter()

    before, steps, rows = dict(engine.profile()), engine.stats().steps, 0
    tokens = [0, 0, 0]
    began = time.perf_counter()
    for output in engine.generate(made()):
        start = time.perf_counter()
        model.tokenizer.decode(output.tokens)
        spent["detokenise"] += time.perf_counter() - start
        rows += 1
        counts = (output.num_prompt_tokens, output.num_cached_tokens, output.num_output_tokens)
        tokens = [a + b for a, b in zip(tokens, counts, strict=True)]
    seconds = time.perf_counter() - began
    parts = {name: value - before[name] for name, value in engine.profile().items()} | spent
    parts["other"] = seconds - sum(parts.values())
    return Measured(rows, tokens[0], tokens[1], tokens[2], engine.stats().steps - steps, seconds, parts)


def sample(model: LoadedModel, rows: int, max_tokens: int, salt: int = 0) -> Iterator[Request]:
    """Texts of 120 common words in an order of their own, behind one question; exactly `max_tokens` are written."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    dice = random.Random(salt)  # noqa: S311 - no secret
    for row in range(rows):
        text = QUESTION + " ".join(dice.choices(WORDS, k=WORDS_PER_ROW))
        tokens = prompt_tokens(model.tokenizer, [{"role": "user", "content": text}])
        yield Request(row, tokens, sampling, group=salt)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.bench")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    settings = Settings()
    start = time.perf_counter()
    model = load_model(settings.model, settings)
    loaded = time.perf_counter() - start
    measure(model, sample(model, WARM_ROWS, options.max_tokens, salt=1))
    measured = measure(model, sample(model, options.rows, options.max_tokens, salt=2))
    about = {"model": settings.model, "dtype": settings.engine_dtype, "sequences": settings.engine_max_sequences}
    print(json.dumps({**about, "load_seconds": loaded, "host_share": measured.host_share, **asdict(measured)}))


if __name__ == "__main__":
    main()
