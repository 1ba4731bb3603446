"""Native code against the PyTorch path, in every number format, and its promise that rows do not feel each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models import Model, load_model
from engine.models.llama import Llama
from engine.models.native import NativeLlama
from kernels import native
from kernels.native import compiler, decoder
from kernels.native.library import open_library
from tests.engine.tiny_models import KINDS, VOCAB, Paged, make

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no native code: {native.reason()}")

LENGTHS = (23, 1, 150, 9)
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
# Of the logits' spread: (the same weights in PyTorch, the cache in fp32; fp32 weights, the cache in this format).
# In int8 a sum that differs in its last bit may round to the other side: one step of 127.
TOLERANCES = {"fp32": (1e-5, 1e-5), "bf16": (0.04, 0.015), "int8": (0.02, 0.04)}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make(request.param).save_pretrained(path)
    return path


def sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]


def whole(model: Model, **options) -> torch.Tensor:
    run = Paged(model, sequences(), **options)
    run.step(dict(enumerate(LENGTHS)))
    return torch.cat([run.result(i) for i in range(len(LENGTHS))])


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Root mean square of the difference over the logits' own spread."""
    return float((one - other).pow(2).mean().sqrt() / other.std())


@pytest.mark.parametrize("dtype", FORMATS)
def test_weights_in_every_format(folder, dtype):
    cache = torch.bfloat16 if dtype == "bf16" else torch.float32
    fast, plain = load_model(folder, dtype), load_model(folder, dtype, use_native=False)
    assert isinstance(fast, NativeLlama)
    assert isinstance(plain, Llama)
    assert difference(whole(fast, cache_dtype=cache), whole(plain, cache_dtype=cache)) < TOLERANCES[dtype][0]


@pytest.mark.parametrize("block_size", [1, 5, 16, 48])
@pytest.mark.parametrize("cache", FORMATS)
def test_caches_in_every_format_and_block_size(folder, cache, block_size):
    fast, plain = load_model(folder), load_model(folder, use_native=False)
    own = whole(fast, cache_dtype=FORMATS[cache], block_size=block_size)
    assert difference(own, whole(plain)) < TOLERANCES[cache][1]


@pytest.mark.parametrize("missing", [("-mno-avx512f",), ("-mno-avx512vnni", "-mno-avx512bf16")], ids=["avx512", "vnni"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_cpus_without_the_newest_instructions(tmp_path, monkeypatch, dtype, missing):
    """The same numbers from the code that an older CPU gets."""
    make("qwen2").save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype)
    new = whole(model, cache_dtype=FORMATS[dtype], block_size=16)
    monkeypatch.setattr(decoder, "library", lambda: open_library(compiler.build(flags=missing)))
    old = whole(load_model(tmp_path, dtype), cache_dtype=FORMATS[dtype], block_size=16)
    assert difference(old, new) < {"fp32": 1e-5, "bf16": 0.01, "int8": 0.02}[dtype]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_row_is_the_same_to_the_bit_however_it_is_batched(folder, dtype, num_threads):
    model = load_model(folder, dtype)
    torch.set_num_threads(num_threads)
    together = whole(model, cache_dtype=FORMATS[dtype])
    torch.set_num_threads(1)
    pieces = Paged(model, sequences(), cache_dtype=FORMATS[dtype])
    for sizes in ({2: 61}, {0: 5, 1: 1}, {0: 11, 3: 2, 2: 1}, {0: 1, 3: 1}, {3: 3, 0: 1, 2: 64}, {0: 4, 3: 3, 2: 24}):
        pieces.step(sizes)
    pieces.step({0: 1})
    assert torch.equal(torch.cat([pieces.result(i) for i in range(len(LENGTHS))]), together)


def test_only_logit_rows_are_returned(folder):
    model = load_model(folder)
    every = Paged(model, sequences())
    every.step({0: 20, 2: 140})
    some = Paged(model, sequences())
    some.logit_rows = torch.tensor([19, 158, 159])
    some.step({0: 20, 2: 140})
    expected = torch.cat([every.result(i) for i in (0, 2)])[some.logit_rows]
    assert torch.equal(torch.cat([some.result(i) for i in (0, 2)]), expected)


def test_a_step_without_logits(folder):
    model = load_model(folder)
    silent = Paged(model, sequences())
    silent.logit_rows = torch.tensor([], dtype=torch.int64)
    silent.step({2: 100})
    silent.logit_rows = None
    silent.step({2: 50})
    every = Paged(model, sequences())
    every.step({2: 150})
    assert torch.equal(silent.result(2), every.result(2)[100:])


@pytest.mark.parametrize("block_size", [1, 5, 16, 48])
@pytest.mark.parametrize("cache", FORMATS)
def test_copied_blocks_read_like_their_originals(tmp_path, cache, block_size):
    make("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path)
    run = Paged(model, sequences(), cache_dtype=FORMATS[cache], block_size=block_size)
    run.step({2: 149})
    copied = Paged(model, sequences(), cache_dtype=FORMATS[cache], block_size=block_size)
    copied.step({2: 149})
    # What belongs to the sequence moves two blocks on, and its old first blocks are overwritten meanwhile.
    own = copied.tables[2].tolist()
    spare = sorted(set(range(copied.cache.num_blocks)) - set(own))[:2]
    moved = [*own[2:], *spare]
    copied.cache.copy(list(zip(reversed(own), reversed(moved), strict=True)))
    copied.tables[2] = torch.tensor(moved)
    run.step({2: 1})
    copied.step({2: 1})
    assert torch.equal(copied.result(2), run.result(2))


def masks_of(allowed: torch.Tensor) -> torch.Tensor:
    """[N, VOCAB] bool -> [N, words] int32."""
    words = -(-VOCAB // 32)
    padded = torch.nn.functional.pad(allowed, (0, 32 * words - VOCAB)).view(len(allowed), words, 32)
    return (padded.long() << torch.arange(32)).sum(-1).to(torch.int32)


@pytest.mark.parametrize("missing", [(), ("-mno-avx512f",)], ids=["newest", "avx2"])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_largest_logits_without_the_logits(tmp_path, monkeypatch, dtype, missing, num_threads):
    monkeypatch.setattr(decoder, "library", lambda: open_library(compiler.build(flags=missing)))
    make("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype)
    torch.set_num_threads(num_threads)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(33, model.config.hidden_size, generator=generator)
    allowed = torch.rand(31, VOCAB, generator=generator) < 0.3
    allowed[0] = False
    allowed[0, VOCAB - 1] = True  # a single token, whose logit is not computed
    allowed[1] = False  # nothing at all
    mask_rows = torch.arange(33, dtype=torch.int32) - 2  # the first two rows have no mask
    mask_rows[0] = -1
    hidden[5, 3] = torch.nan
    logits = model.logits(hidden)
    logits[2:] = logits[2:].masked_fill(~allowed, -torch.inf)
    most, tokens = model.largest(hidden, masks_of(allowed), mask_rows)
    expected, places = logits.max(-1)
    assert (most[2], tokens[2]) == (0.0, VOCAB - 1)
    assert most[3] == -torch.inf
    assert most[5].isnan()
    others = [i for i in range(33) if i not in (2, 3, 5)]
    assert torch.equal(most[others], expected[others])
    assert torch.equal(tokens[others], places[others])
    unmasked, _ = model.largest(hidden, None, None)
    assert torch.equal(unmasked[others], model.logits(hidden).max(-1).values[others])
