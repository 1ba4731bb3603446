"""Text to ids and back, from a Hugging Face folder and from its GGUF twin."""

from __future__ import annotations

import json
import unicodedata

import pytest

from engine.errors import InvalidRequest, ModelError, UnsupportedModel
from engine.tokenizer import load_tokenizer
from engine.tokenizer.pretokenizers import LLAMA3, PATTERNS, QWEN2
from engine.tokenizer.pretokenizers import byte_level as cut
from tests.engine.tiny_tokenizers import (
    TORTURE,
    byte_level,
    composed,
    greedy_merge,
    scores,
    sentence_piece,
    write_folder,
    write_gguf,
)


@pytest.fixture(scope="module")
def reference():
    """The library's own tokenizer, told to leave control tokens' text alone."""
    tokenizer = byte_level()
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.fixture(scope="module", params=["folder", "gguf"])
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    if request.param == "folder":
        return load_tokenizer(write_folder(folder, byte_level()))
    return load_tokenizer(write_gguf(folder / "tokenizer.gguf", byte_level(), "gpt2"))


@pytest.mark.parametrize("name", TORTURE)
def test_torture(name, tokenizer, reference):
    text = TORTURE[name]
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()
    assert tokenizer.count(text) == len(ids)


def test_a_batch_equals_its_texts_one_by_one(tokenizer):
    assert tokenizer.encode_batch(list(TORTURE.values())) == [tokenizer.encode(text) for text in TORTURE.values()]
    assert tokenizer.encode_batch([]) == []


def test_names_and_sizes(tokenizer):
    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == byte_level().get_vocab_size()
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.has_chat_template


def test_control_tokens_have_no_text(tokenizer):
    assert tokenizer.token_bytes[:3] == [b"", b"", b""]
    ids = [1, *tokenizer.encode("fox"), 2, 0]
    assert tokenizer.decode(ids) == "fox"


def test_a_character_split_over_tokens(tokenizer):
    ids = tokenizer.encode("🦊")
    parts = [tokenizer.token_bytes[i] for i in ids]
    assert len(parts) == 4
    assert b"".join(parts) == "🦊".encode()
    assert tokenizer.decode(ids[:3]) == "\ufffd"


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer):
    """A model's vocabulary is often padded."""
    assert tokenizer.decode([*tokenizer.encode("fox"), tokenizer.vocab_size + 5]) == "fox"


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(InvalidRequest, match="is not valid Unicode text"):
        tokenizer.encode("a\ud800")


def test_every_byte_has_its_token(tokenizer):
    singles = {part for part in tokenizer.token_bytes if len(part) == 1}
    assert singles == {bytes([byte]) for byte in range(256)}


# How each named pre-tokenizer cuts, by hand from its pattern.
TEXT = "I'LL pay  12345.5€!!\n\n  tomorrow"
WORDS = {
    "gpt-2": ["I", "'", "LL", " pay", " ", " 12345", ".", "5", "€!!", "\n\n ", " tomorrow"],
    "smollm": ["I", "'", "LL", " pay", "  ", "1", "2", "3", "4", "5", ".", "5", "€!!", "\n\n ", " tomorrow"],
    "llama-bpe": ["I", "'LL", " pay", " ", " ", "123", "45", ".", "5", "€!!\n\n", " ", " tomorrow"],
    "qwen2": ["I", "'LL", " pay", " ", " ", "1", "2", "3", "4", "5", ".", "5", "€!!\n\n", " ", " tomorrow"],
    "tekken": ["I", "'LL", " pay", " ", " ", "1", "2", "3", "4", "5", ".", "5", "€!!\n\n", " ", " tomorrow"],
    "default": ["I", "'", "LL", " pay", " ", " ", "123", "45", ".", "5", "€", "!!", "\n\n ", " tomorrow"],
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name):
    """Offsets count characters of the text."""
    pieces = [TEXT[start:stop] for _, (start, stop) in cut(name).pre_tokenize_str(TEXT)]
    assert pieces == WORDS[name]


def test_every_pattern_is_one_of_those_tested():
    assert {PATTERNS[name] for name in WORDS} == set(PATTERNS.values())


@pytest.mark.parametrize(("pre", "pattern"), [("llama-bpe", LLAMA3), ("qwen2", QWEN2)])
@pytest.mark.parametrize("name", TORTURE)
def test_gguf_pre_tokenizers(name, pre, pattern, tmp_path):
    trained = byte_level(pattern)
    if pre == "qwen2":
        composed(trained)
    tokenizer = load_tokenizer(write_gguf(tmp_path / "x.gguf", trained, "gpt2", pre=pre))
    trained.encode_special_tokens = True
    text = TORTURE[name]
    ids = tokenizer.encode(text)
    assert ids == trained.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == (unicodedata.normalize("NFC", text) if pre == "qwen2" else text)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("name", TORTURE)
def test_sentence_piece_in_gguf(name, prefix, tmp_path):
    trained = sentence_piece()
    path = write_gguf(tmp_path / "x.gguf", trained, "llama", add_space_prefix=prefix)
    tokenizer = load_tokenizer(path)
    text = TORTURE[name][:400]  # the reference algorithm is quadratic
    state = json.loads(trained.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    spelled = ("▁" if prefix and text else "") + text.replace(" ", "▁")
    ids = tokenizer.encode(text)
    assert ids == greedy_merge(spelled, tokens, scores(tokens, [tuple(merge) for merge in state["merges"]]))
    assert tokenizer.decode(ids) == text
    joined = b"".join(tokenizer.token_bytes[i] for i in ids).decode()
    assert joined == (" " if prefix and text else "") + text


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gpt2", {"model": "bert"}, "tokenizer.ggml.model bert; supported are gpt2, llama"),
        ("gpt2", {"pre": "viking"}, f"tokenizer.ggml.pre viking; supported are {', '.join(PATTERNS)}"),
        ("gpt2", {"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ("gpt2", {"merges": ["a zz"]}, "tokenizer.ggml.merges do not fit the tokens"),
        ("gpt2", {"token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries for 410 tokens"),
        ("gpt2", {"bos_token_id": 420}, "tokenizer.ggml.bos_token_id=420 is outside the vocabulary"),
        ("llama", {"scores": [0.5]}, "tokenizer.ggml.scores has 1 entries for"),
        ("llama", {"unknown_token_id": 9999}, "tokenizer.ggml.unknown_token_id=9999, but there are"),
    ],
)
def test_refusals_of_gguf(kind, changes, reason, tmp_path):
    trained = byte_level() if kind == "gpt2" else sentence_piece()
    model = changes.pop("model", kind)
    path = write_gguf(tmp_path / "x.gguf", trained, kind, **changes, model=model)
    error = UnsupportedModel if "supported are" in reason else ModelError
    with pytest.raises(error) as caught:
        load_tokenizer(path)
    assert caught.value.reason.startswith(reason)
