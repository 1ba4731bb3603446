"""load: from a path to everything that a worker needs of a model."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.cache import DEFAULT_BYTES
from engine.config import EngineConfig
from engine.determinism import make_deterministic
from engine.drafter import Drafter, ForcedDrafter, HistoryDrafter, ModelDrafter, PromptDrafter, Speculation, StepCosts
from engine.drafter.profile import measure
from engine.dtypes import cache_dtype
from engine.engine import Engine
from engine.errors import InvalidRequest
from engine.follower import rank_device
from engine.grammar import Grammars, vocabulary
from engine.machine import Machine
from engine.memory import sized
from engine.models import Model, load_model
from engine.models.attention import check_attention
from engine.parallel import Team
from engine.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)
SAMPLES = 64  # places of a file that the fingerprint reads
SAMPLE_BYTES = 4096
# What decides a model's outputs: weights, configuration, tokenizer, chat template.
SUFFIXES = frozenset({".gguf", ".safetensors", ".json", ".jinja", ".model"})


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`fingerprint` tells two models apart: what was computed by one must not be mixed with the other's.

    `grammars` compiles formats for this model; `grammars.check` refuses one before any request has it.
    """

    engine: Engine
    tokenizer: Tokenizer
    fingerprint: str
    grammars: Grammars


def load(path: Path, config: EngineConfig, *, draft: Path | None = None, costs: StepCosts | None = None) -> LoadedModel:
    """Load a Hugging Face folder or a .gguf file and build an engine around it.

    `draft` is a smaller model of the same vocabulary that runs ahead; its cache takes another quarter of the memory.
    `costs` of steps decide what is speculated on; None: they are measured when first needed, on GPUs and with
    tensor_parallel at once.

    Raises ModelError or UnsupportedModel, which name the file, InvalidRequest for a configuration that the model cannot
    serve, OutOfCache, RankFailed.
    """
    check_attention(config.attention, config.device, cache_dtype(config))
    if config.deterministic and config.device.startswith("cuda"):
        make_deterministic()
    if config.tensor_parallel == 1:
        return _load(path, config, draft, costs, None)
    team = Team(path, config)
    try:
        return _load(path, replace(config, device=rank_device(config.device, 0)), draft, costs, team)
    except BaseException:
        team.close()
        raise


def _load(
    path: Path, config: EngineConfig, draft: Path | None, costs: StepCosts | None, team: Team | None
) -> LoadedModel:
    log.info("dtype=%s, device=%s, on %s", config.dtype, config.device, Machine.here())
    ranks = None if team is None else team.ranks
    model = load_model(path, config.dtype, config.device, ranks=ranks, attention=config.attention)
    tokenizer = load_tokenizer(path)
    eos_token_ids = tokenizer.eos_token_ids | model.config.eos_token_ids
    grammars = Grammars(vocabulary(tokenizer.to_json(), model.config.vocab_size, eos_token_ids))
    small = None if draft is None else _draft_model(draft, config, tokenizer)
    given = config.cache_bytes
    config = sized(model, config) if team is None else team.sized(config, partial(sized, model))
    drafters: list[Drafter] = [ForcedDrafter(grammars), HistoryDrafter(), PromptDrafter()]
    if small is not None:
        if config.cache_bytes is not None and given is None:  # measured: for both together
            config = replace(config, cache_bytes=config.cache_bytes * 4 // 5)
        quarter = (config.cache_bytes or DEFAULT_BYTES) // 4
        own = replace(config, cache_bytes=quarter, num_blocks=None, tensor_parallel=1)
        drafters.append(ModelDrafter(small, own, vocab_size=grammars.vocab_size, grammars=grammars))
    # What the grammar forces comes first, then what earlier outputs said, then what stands in the prompt.
    speculation = None
    if config.speculation:
        speculation = Speculation(drafters, lambda: costs or measure(model, config), longest=config.max_draft)
    engine = Engine(
        model,
        config,
        eos_token_ids=eos_token_ids,
        token_bytes=tokenizer.token_bytes,
        grammars=grammars,
        speculation=speculation,
        team=team,
    )
    if speculation is not None and costs is None and (team is not None or config.device.startswith("cuda")):
        # Parts of a model are measured together, and a GPU with its graphs: by the engine, while its cache is empty.
        costs = engine.time_steps()
    return LoadedModel(engine, tokenizer, fingerprint(path), grammars)


def _draft_model(path: Path, config: EngineConfig, tokenizer: Tokenizer) -> Model:
    """Raises what `load` raises, and InvalidRequest when the draft model's tokens are not the target's."""
    if load_tokenizer(path).token_bytes != tokenizer.token_bytes:
        raise InvalidRequest("draft", str(path), "has other tokens than the model that it should draft for")
    return load_model(path, config.dtype, config.device, attention=config.attention)


def files_of(path: Path) -> list[Path]:
    """The files of a model that decide its outputs."""
    return sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]


def fingerprint(path: Path) -> str:
    """16 hex digits of SHA-256 over the files' names, sizes, beginnings and evenly spaced samples.

    Reads at most 260 KiB of a file, so that it costs nothing beside loading. A folder's other files do not count, nor
    does where the model lies.
    """
    digest = hashlib.sha256()
    for file in files_of(path):
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            for sample in range(SAMPLES + 1):
                stream.seek(max(size - SAMPLE_BYTES, 0) * sample // SAMPLES)
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
