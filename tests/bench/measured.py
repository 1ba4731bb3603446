"""A model without tokens or arithmetic: what a row costs beside it is the data path. Text `row 17` gives `done 17`.

`build` is an engine factory. "numbers" answers at once. "numbers:wait" takes WAIT_SECONDS for each group of WAIT_ROWS
rows, and uses no processor meanwhile: as fast as a worker's GPU could be, whatever else its machine does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from db.errors import ModelMissing
from db.settings import Settings
from engine import EngineStats
from engine.format import Format
from engine.request import FinishReason, Output, Request

WAIT_ROWS, WAIT_SECONDS = 64, 0.4
ASKED, ANSWERED = "row ", "done "


@dataclass(frozen=True)
class NumbersTokenizer:
    """Tokenisation off: a row's number is its one token."""

    has_chat_template: bool = True
    bos_token_id: int | None = None
    vocab_size: int = 1 << 40
    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [int(text.removeprefix(ASKED))]

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, prefill: str = "") -> list[int]:
        return self.encode(messages[-1]["content"])

    def decode(self, ids: Sequence[int]) -> str:
        return f"{ANSWERED}{ids[0]}"


class NumbersGrammars:
    def check(self, format: Format) -> None:
        raise NotImplementedError("these benchmarks have no format")


@dataclass
class NumbersEngine:
    group_rows: int
    seconds: float
    max_model_len: int = 4096
    steps: int = 0
    waiting: deque[Request] = field(default_factory=deque)

    @property
    def has_room(self) -> bool:
        return len(self.waiting) < self.group_rows

    @property
    def idle(self) -> bool:
        return not self.waiting

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def abort(self, request_id: Hashable) -> bool:
        self.waiting = deque(request for request in self.waiting if request.id != request_id)
        return True

    def step(self) -> list[Output]:
        self.steps += 1
        if self.seconds:
            time.sleep(self.seconds)
        done, self.waiting = self.waiting, deque()
        return [Output(each.id, each.prompt, FinishReason.STOP, 1, 0, 1) for each in done]

    def stats(self) -> EngineStats:
        others = [f.name for f in fields(EngineStats) if f.name not in ("steps", "drafts", "max_sequences")]
        return EngineStats(steps=self.steps, drafts=(), max_sequences=self.group_rows, **dict.fromkeys(others, 0))

    def close(self) -> None:
        self.waiting.clear()


@dataclass(frozen=True)
class NumbersModel:
    engine: NumbersEngine
    tokenizer: NumbersTokenizer = field(default_factory=NumbersTokenizer)
    fingerprint: str = "0" * 16
    grammars: NumbersGrammars = field(default_factory=NumbersGrammars)


def build(name: str, settings: Settings) -> NumbersModel:
    engines = {
        "numbers": lambda: NumbersEngine(settings.engine_max_sequences, 0.0),
        "numbers:wait": lambda: NumbersEngine(WAIT_ROWS, WAIT_SECONDS),
    }
    if name not in engines:
        raise ModelMissing(name, "not one of these fakes")
    return NumbersModel(engines[name]())
