"""Which attention computes, and settings for repeatable products: chosen by name, refused where they cannot be had."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import EngineConfig, InvalidRequest, Request, SamplingParams, load
from engine.determinism import WORKSPACE, make_deterministic
from engine.models import attention
from engine.models.attention import check_attention
from tests.engine import tiny_models
from tests.engine.grammar.languages import tokenizer, vocab_size

CONFIG = EngineConfig(num_blocks=60, block_size=8, token_budget=40, max_sequences=4, num_threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("llama")
    tiny_models.make("llama", vocab_size=vocab_size()).save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    return path


def test_sdpa_gives_the_same_tokens(folder: Path):
    shared = tuple(range(20, 40))
    wanted = [Request(i, (*shared, i, 7) if i % 2 else (i, 3), SamplingParams(max_tokens=12)) for i in range(10)]
    outputs = {}
    for name in ("auto", "sdpa"):
        engine = load(folder, replace(CONFIG, attention=name)).engine
        outputs[name] = {output.id: output.tokens for output in engine.generate(wanted)}
        engine.close()
    assert outputs["sdpa"] == outputs["auto"]
    assert len(outputs["sdpa"]) == 10


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("triton", "cpu", "needs a GPU"),
        ("varlen", "cpu", "needs a GPU"),
        ("varlen", "interpret", "needs a GPU"),
        ("varlen", "cuda", "no pages"),
        ("flash", "cpu", "must be auto, triton, sdpa or varlen"),
    ],
)
def test_what_cannot_be_had(folder: Path, name: str, device: str, reason: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "varlen_reason", lambda: "this torch knows no pages")
    with pytest.raises(InvalidRequest, match=reason) as caught:
        load(folder, replace(CONFIG, attention=name, device=device))
    assert (caught.value.field, caught.value.value) == ("attention", name)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_torchs_attention_reads_no_bytes(dtype: torch.dtype):
    with pytest.raises(InvalidRequest, match="set kv_dtype to bf16 or fp32"):
        check_attention("sdpa", "cuda", dtype)
    check_attention("triton", "cuda", dtype)


def test_determinism_needs_a_fresh_cuda(monkeypatch: pytest.MonkeyPatch):
    for name in WORKSPACE:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(InvalidRequest, match="set CUBLAS_WORKSPACE_CONFIG=:16:8 CUBLASLT_WORKSPACE_SIZE=1"):
        make_deterministic()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    chosen: list[str] = []
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", chosen.append)
    matmul = torch.backends.cuda.matmul
    before = (
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction,
    )  # fmt: skip
    try:
        make_deterministic()
        assert {name: os.environ[name] for name in WORKSPACE} == WORKSPACE
        assert chosen == ["cublaslt"]
        assert not matmul.allow_bf16_reduced_precision_reduction
        assert not matmul.allow_tf32
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        make_deterministic()  # a second engine in the same process
    finally:
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = before[0], before[1]
        matmul.allow_fp16_reduced_precision_reduction = before[2]
