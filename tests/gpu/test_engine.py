"""The engine's path for GPUs, in the interpreter, against its path for CPUs: the same tokens, whatever the request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, Format, Output, Request, SamplingParams, computation, gpu_runner
from engine.drafter import Drafter, ForcedDrafter, HistoryDrafter, ModelDrafter, PromptDrafter, Speculation, StepCosts
from engine.models import load_model
from tests.engine import tiny_models
from tests.engine.fakes import HashModel, continuation
from tests.engine.grammar.languages import END, RECORD, grammars, texts, vocab_size

BACKEND = grammars()
FREE = StepCosts(((1, 1.0), (1000, 1.001)))
# Few sequences and a small budget: prompts come in parts, decodes, drafts and prompts share steps.
CONFIG = EngineConfig(max_sequences=4, token_budget=48, block_size=8, num_blocks=64, num_threads=1, max_model_len=256)
SHARED = tuple(range(20, 45))


# (family, layers); one is enough for every test run, the others take minutes.
MODELS = [("llama", 1), *(pytest.param(kind, marks=pytest.mark.slow) for kind in (("llama", 2), ("qwen3", 2)))]


@pytest.fixture(scope="module", params=MODELS, ids=lambda kind: f"{kind[0]} of {kind[1]}")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind, num_layers = request.param
    path: Path = tmp_path_factory.mktemp(kind)
    made = tiny_models.make(kind, vocab_size=vocab_size(), num_hidden_layers=num_layers)
    made.save_pretrained(path)
    return path


def requests() -> list[Request]:
    """Greedy rows, plain, structured and with choices; prompts that share beginnings, one longer than a step."""
    greedy = SamplingParams(max_tokens=8, logprobs=1)
    return [
        Request("short", (5, 6, 7), greedy),
        Request("shared", (*SHARED, 3), greedy),
        Request("shared too", (*SHARED, 4, 5, 6, 7, 8), SamplingParams(max_tokens=12, repetition_penalty=1.3)),
        Request("long", tuple((11 * i) % vocab_size() for i in range(90)), greedy),
        Request("repeating", (7, 8, 9, 10) * 5, SamplingParams(max_tokens=12)),
        Request("record", (9, 9), SamplingParams(max_tokens=24), format=Format.schema(RECORD)),
        Request("labels", (30, 31), choices=((5, 6, 7), (5, 6, 8), (9,))),
    ]


def run(folder: Path, config: EngineConfig, *, drafts: bool) -> dict[object, Output]:
    model = load_model(folder, "fp32", config.device)
    speculation = None
    if drafts:
        drafters: list[Drafter] = [ForcedDrafter(BACKEND), HistoryDrafter(), PromptDrafter()]
        drafters.append(ModelDrafter(model, config, vocab_size=vocab_size(), grammars=BACKEND))
        speculation = Speculation(drafters, lambda: FREE)
    options = {"token_bytes": texts(), "grammars": BACKEND, "speculation": speculation}
    engine = Engine(model, config, eos_token_ids=frozenset({END}), **options)
    outputs = {output.id: output for output in engine.generate(requests())}
    engine.check()
    assert sum(drafter.accepted for drafter in engine.stats().drafts) > 0 or not drafts
    engine.close()
    return outputs


@pytest.mark.parametrize("drafts", [pytest.param(False, marks=pytest.mark.slow), True])
def test_greedy_tokens_are_those_of_the_cpu(folder: Path, drafts: bool):
    expected = run(folder, CONFIG, drafts=False)
    found = run(folder, replace(CONFIG, device="interpret"), drafts=drafts)
    assert {i: output.tokens for i, output in found.items()} == {i: output.tokens for i, output in expected.items()}
    assert len(found) == len(requests())
    for i, output in found.items():
        assert output.finish_reason == expected[i].finish_reason
        assert output.choice_logprobs == pytest.approx(expected[i].choice_logprobs, abs=1e-4)
        for one, other in zip(output.logprobs or (), expected[i].logprobs or (), strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_tokens_are_fed_and_drawn_on_the_device(monkeypatch: pytest.MonkeyPatch):
    """The same as when the host reads every step's tokens before the next; with a model of no cost, unpadded."""
    monkeypatch.setattr(gpu_runner, "SIZES", (0,))
    config = replace(CONFIG, device="interpret", max_model_len=None)
    wanted = [Request(f"greedy {i}", (i, 3), SamplingParams(max_tokens=5)) for i in range(2)]
    wanted.append(Request("drawn", (1, 4), SamplingParams(temperature=0.9, seed=5, max_tokens=5)))
    wanted.append(Request("drawn above", (2, 4), SamplingParams(temperature=1.5, min_p=0.01, seed=6, max_tokens=4)))
    tokens = {}
    for ahead in (True, False):
        if not ahead:
            monkeypatch.setattr(computation, "chooser_of", lambda runner: None)
        engine = Engine(HashModel(), config, eos_token_ids=frozenset())
        for request in wanted:
            engine.add(request)
        outputs = engine.step()
        assert (engine._flight is not None) == ahead
        while not engine.idle:
            outputs += engine.step()
        engine.check()
        tokens[ahead] = {output.id: output.tokens for output in outputs}
    assert tokens[True] == tokens[False]
    assert tokens[True]["greedy 1"] == continuation((1, 3), 5)
    assert len(tokens[True]) == 4
