"""A model of a few lines: bytes are its tokens, and it answers with the last message in capitals.

Under a format it answers with the last message as it is, whether that fits or not. It cannot enforce `uniqueItems`.

`build` is an engine factory (NIGHTMILL_ENGINE_FACTORY=tests.worker.fakes:build). The model's name says how it behaves:
"fake", "fake:slow" (10 ms per step), "fake:small" (a context of 64 tokens), "fake:crash" (its third step fails),
"fake:plain" (no chat template), "fake:poison" (a text with KILL ends the process, one with RAISE the engine, one with
HANG its thread); any other name is missing. Rows that are computed are written to the file NIGHTMILL_TEST_ROWS, if set.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from db.errors import ModelMissing
from db.settings import Settings
from engine import EngineStats
from engine.drafter.acceptance import DraftStats
from engine.errors import RequestTooLong, UnsupportedFormat
from engine.format import Format
from engine.request import FinishReason, Output, Request, Times, TokenLogprobs

END = 256
TIMES = Times(0.01, 0.1, 1.0)  # of every request, whatever it took
ROLES = {"system": 257, "user": 258, "assistant": 259, "tool": 260}


@dataclass
class FakeTokenizer:
    has_chat_template: bool = True
    bos_token_id: int | None = None
    vocab_size: int = 261
    eos_token_ids: frozenset[int] = frozenset({END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, prefill: str = "") -> list[int]:
        tokens: list[int] = []
        for message in messages:
            tokens += [ROLES[message["role"]], *message["content"].encode(), END]
        return [*tokens, ROLES["assistant"], *prefill.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")


def answer(request: Request) -> list[int]:
    """The text of the last message in capitals: the bytes between its markers, or the whole prompt without any."""
    marks = [place for place, token in enumerate(request.prompt) if token > END]
    start, stop = (marks[-2] + 1, marks[-1] - 1) if len(marks) > 1 else (0, len(request.prompt))
    text = bytes(request.prompt[start:stop])
    return list(text if request.format is not None else text.upper())


class FakeGrammars:
    def check(self, format: Format) -> None:
        if "uniqueItems" in format.text and not format.lenient:
            raise UnsupportedFormat(format.kind, "uniqueItems", "Unimplemented keys")


def scores(request: Request) -> tuple[float, ...]:
    """A choice that occurs in the last message is likely; the earlier of two likelier."""
    text = bytes(answer(request)).lower()
    return tuple(
        -0.5 - 0.1 * place - 2.0 * (bytes(token for token in choice if token < 256).lower() not in text)
        for place, choice in enumerate(request.choices)
    )


@dataclass
class FakeEngine:
    """Finishes out of order: a request takes 1 to 5 steps, by the sum of its prompt."""

    max_model_len: int = 4096
    max_sequences: int = 8
    cache_bytes: int = 1 << 20
    cache_size: int = 1 << 12
    step_seconds: float = 0.0
    crash_at: int = 0
    steps: int = 0
    closed: bool = False
    added: list[Hashable] = field(default_factory=list)
    aborted: list[Hashable] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    running: list[tuple[Request, int]] = field(default_factory=list)
    keep_log: bool = True
    poison: bool = False
    rows: str | None = field(default_factory=lambda: os.environ.get("NIGHTMILL_TEST_ROWS"))

    @property
    def has_room(self) -> bool:
        return len(self.waiting) < self.max_sequences

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, request: Request) -> None:
        if len(request.prompt) + request.max_new_tokens > self.max_model_len:
            raise RequestTooLong(len(request.prompt) + request.max_new_tokens, self.max_model_len, "max_model_len")
        if request.format is not None:
            FakeGrammars().check(request.format)
        if self.keep_log:
            self.added.append(request.id)
        self.waiting.append(request)

    def abort(self, request_id: Hashable) -> bool:
        self.aborted.append(request_id)
        self.waiting = deque(request for request in self.waiting if request.id != request_id)
        self.running = [(request, left) for request, left in self.running if request.id != request_id]
        return True

    def step(self) -> list[Output]:
        self.steps += 1
        if self.steps == self.crash_at:
            raise RuntimeError("the fake engine broke")
        time.sleep(self.step_seconds)
        while self.waiting and len(self.running) < self.max_sequences:
            request = self.waiting.popleft()
            self.running.append((request, 1 + sum(request.prompt) % 5))
        if self.poison:
            self._swallow()
        self.running = [(request, left - 1) for request, left in self.running]
        done = [request for request, left in self.running if left == 0]
        self.running = [(request, left) for request, left in self.running if left]
        if self.rows is not None and done:
            with open(self.rows, "a") as file:  # appended in one write each, by any number of processes
                file.write("".join(f"{request.group} {request.id[1]}\n" for request in done))  # type: ignore[index]
        return [complete(request) for request in done]

    def _swallow(self) -> None:
        text = b" ".join(bytes(answer(request)) for request, _ in self.running)
        if b"KILL" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if b"RAISE" in text:
            raise RuntimeError("the fake engine broke")
        if b"HANG" in text:
            time.sleep(3600)

    def stats(self) -> EngineStats:
        """One token forced per step, of two that were tried."""
        drafts = (DraftStats("forced", proposed=2 * self.steps, accepted=self.steps, steps=self.steps),)
        others = [f.name for f in fields(EngineStats) if f.name not in ("steps", "drafts", "max_sequences")]
        own = {"steps": self.steps, "drafts": drafts, "max_sequences": self.max_sequences}
        return EngineStats(**own, **dict.fromkeys(others, 0))

    def close(self) -> None:
        self.closed = True


def complete(request: Request) -> Output:
    size = len(request.prompt)
    if request.choices:
        logprobs = scores(request)
        best = request.choices[max(range(len(logprobs)), key=logprobs.__getitem__)]
        return Output(request.id, best, FinishReason.STOP, size, 0, len(best), choice_logprobs=logprobs, times=TIMES)
    tokens = answer(request)
    kept = tuple(tokens[: request.sampling.max_tokens])
    reason = FinishReason.STOP if len(kept) == len(tokens) else FinishReason.LENGTH
    asked = request.sampling.logprobs
    logprobs = None if asked is None else tuple(TokenLogprobs(token, -0.5, ((token, -0.5),)[:asked]) for token in kept)
    return Output(request.id, kept, reason, size, 0, len(kept), logprobs=logprobs, times=TIMES)


@dataclass(frozen=True)
class FakeModel:
    engine: FakeEngine = field(default_factory=FakeEngine)
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    fingerprint: str = "f" * 16
    grammars: FakeGrammars = field(default_factory=FakeGrammars)


def build(name: str, settings: Settings) -> FakeModel:
    engines = {
        "fake": lambda: FakeEngine(keep_log=False),
        "fake:slow": lambda: FakeEngine(step_seconds=0.01),
        "fake:small": lambda: FakeEngine(max_model_len=64),
        "fake:crash": lambda: FakeEngine(crash_at=3),
        "fake:plain": FakeEngine,
        "fake:poison": lambda: FakeEngine(step_seconds=0.005, poison=True),
    }
    if name not in engines:
        raise ModelMissing(name, "no such fake")
    return FakeModel(engines[name](), FakeTokenizer(has_chat_template=name != "fake:plain"))
