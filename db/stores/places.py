"""Places: where a file or folder lies, on this machine (a Path) or in a bucket (an S3Path).

Both know `/`, `name`, `parent`, `is_relative_to` and `str`, whose text is what the ledger keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

SCHEME = "s3://"


@dataclass(frozen=True, slots=True)
class S3Service:
    """How the process reaches its object store. Credentials are not here: the client takes them from the environment.

    `endpoint` and `region` may be empty: AWS, and what the environment says. `scratch` is the folder of this machine
    where files are made before they are sent.
    """

    endpoint: str
    region: str
    scratch: Path


@dataclass(frozen=True, slots=True)
class S3Path:
    """A key of a bucket, or all that lies below it. The key has no slash at its ends; empty: the bucket itself."""

    bucket: str
    key: str
    service: S3Service = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}" if self.key else f"{SCHEME}{self.bucket}"

    def __truediv__(self, more: str) -> S3Path:
        return S3Path(self.bucket, f"{self.key}/{more}" if self.key else more, self.service)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> S3Path:
        return S3Path(self.bucket, self.key.rpartition("/")[0], self.service)

    @property
    def prefix(self) -> str:
        """What the keys below begin with."""
        return f"{self.key}/" if self.key else ""

    def is_relative_to(self, other: object) -> bool:
        if not isinstance(other, S3Path) or self.bucket != other.bucket:
            return False
        return self.key == other.key or self.key.startswith(other.prefix)


Place: TypeAlias = Path | S3Path


def contains(folder: Place, place: Place) -> bool:
    """Whether `place` is `folder` or lies below it, by name."""
    if isinstance(place, Path):
        return isinstance(folder, Path) and place.is_relative_to(folder)
    return place.is_relative_to(folder)


def relative(place: Place, folder: Place) -> tuple[str, ...]:
    """The names that lead from `folder` to `place`, which lies below it."""
    assert contains(folder, place), (folder, place)
    if isinstance(place, S3Path):
        assert isinstance(folder, S3Path)
        return tuple(place.key[len(folder.prefix) :].split("/"))
    assert isinstance(folder, Path)
    return place.relative_to(folder).parts
