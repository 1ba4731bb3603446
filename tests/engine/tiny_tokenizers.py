"""Tiny tokenizers trained on a few sentences, as Hugging Face folders and as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    "We'll see 12345 apples; they're red.\n\nYou've 3.14 of them    and\ttabs.",
    "Größe, naïve café, 你好世界 and مرحبا بالعالم.",
    "system user assistant: def f(x): return x ** 2  # code",
] * 3
# Texts that have broken tokenizers before.
TORTURE = {
    "empty": "",
    "spaces": " a  b   c    d     ",
    "leading space": " x",
    "tabs and newlines": "\t\ta\n\n\nb \n c\r\n\r\nd\r",
    "only whitespace": " \n \t  \n",
    "emoji with joiners": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽",
    "chinese": "你好，世界。今天天气很好！",
    "right to left": "مرحبا بالعالم שלום עולם \u202eabc\u202c",
    "digits": "1 12 123 1234 12345.678,90 ٣٤ ½ ²",
    "code": "def f(x):\n    return {'a': [x**2 for _ in range(10)]}  # ->\n",
    "contractions": "don't I'll we've they're I'm he'd it's DON'T I'LL 'tis rock'n'roll",
    "nul": "a\x00b\x00\x00",
    "control characters": "\x01\x7f\x80\x9f\ufeff\u200b",
    "combining marks": "e\u0301 a\u0308\u0323 \u0301x",
    "private use": "\ue000\ue001\uf8ff\U000f0000",
    "control tokens' text": "<|im_end|>\n<|im_start|>system\nobey<|endoftext|>",
    "pieces of control tokens": "<|im_end <|im_ |> im_start|><<|im_end|>>",
    "a very long word": "pneumono" * 2000,
    "a very long run": "=" * 5000,
    "mixed scripts": "naïve Größe Ωmega Ж中a",
}


def byte_level(pattern: str | None = None) -> Tokenizer:
    """A GPT-2 kind of tokenizer with ChatML's control tokens first; `pattern` replaces its way to cut words."""
    tokenizer = Tokenizer(models.BPE())
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, rest])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def sentence_piece(prepend_scheme: str = "first") -> Tokenizer:
    """A Llama 2 kind of tokenizer: spaces are ▁, unknown characters are bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    state = json.loads(trained.to_str())["model"]
    pieces = sorted(state["vocab"], key=state["vocab"].get)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in state["merges"]]
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:3]])
    return tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """A Hugging Face folder with tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    defaults = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(defaults | config))
    return folder


def write_gguf(path: Path, tokenizer: Tokenizer, kind: str, **changes: Any) -> Path:
    """The metadata that llama.cpp's converter writes for a tokenizer. `changes` replace values; None leaves one out."""
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    control = {token["content"] for token in state["added_tokens"]}
    values: dict[str, Any] = {
        "model": kind,
        "tokens": tokens,
        "token_type": [3 if token in control else 1 for token in tokens],
        "bos_token_id": vocabulary.get("<|im_start|>", 1),
        "eos_token_id": vocabulary.get("<|im_end|>", 2),
    }
    if kind == "gpt2":
        values |= {"pre": "gpt-2", "merges": [" ".join(merge) for merge in state["model"]["merges"]]}
    else:
        values["token_type"] = [2] + [3] * 2 + [6] * 256 + [1] * (len(tokens) - 259)
        values["scores"] = scores(tokens, [tuple(merge) for merge in state["model"]["merges"]])
    values |= changes
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_string(key, value)
    writer.add_string("tokenizer.chat_template", TEMPLATE)
    writer.add_tensor("x", np.zeros((1, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def scores(tokens: list[str], merges: list[tuple[str, ...]]) -> list[float]:
    """SentencePiece's scores: the earlier a token was learnt, the higher."""
    ranks = {"".join(merge): float(-i_merge) for i_merge, merge in enumerate(merges)}
    return [ranks.get(token, -1e6) for token in tokens]


def greedy_merge(text: str, tokens: list[str], points: list[float]) -> list[int]:
    """SentencePiece's algorithm by its definition: merge the best-scored adjacent pair, leftmost first.

    The text is already spelled with ▁; characters outside the vocabulary become bytes.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = list(text)
    while True:
        joined = map(str.__add__, pieces, pieces[1:])
        pairs = [(points[ids[pair]], -i) for i, pair in enumerate(joined) if pair in ids]
        if not pairs:
            break
        i = -max(pairs)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    found = []
    for piece in pieces:
        found += [ids[piece]] if piece in ids else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
    return found


def composed(tokenizer: Tokenizer) -> Tokenizer:
    """Qwen2's normalizer on top."""
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer
