"""What a store can do: the one small contract that everything that touches a dataset's bytes goes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar

from db.stores.places import Place

P = TypeVar("P", bound=Place)
TEMP = "_tmp"  # of what is being written and of checkpoints, inside the folder of a job


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or a folder (whose size and version mean nothing). Another version: other bytes, or written anew."""

    place: Place
    is_folder: bool
    num_bytes: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """The file that now has the name: made by this call, or by an earlier one. The counts are of that file."""

    created: bool
    num_bytes: int
    sha256: str


class Journal(Protocol):
    """One writer's appended bytes. What `append` has returned for is there after the end of the process."""

    def append(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Store(Protocol[P]):
    """Errors: InvalidDataset for what is not (any more) a file; StorageRefused for what a person must set right;
    OSError, StorageUnavailable among them, for what may pass by itself."""

    def look(self, place: P) -> Entry | None:
        """What is there; None when nothing is."""

    def walk(self, folder: P, prefix: str = "") -> Iterator[Entry]:
        """The files below a folder at any depth, those alone whose way there begins with `prefix`. A link to a folder
        is given as a folder, and not followed."""

    def is_empty(self, folder: P) -> bool:
        """Whether a folder is absent or has nothing in it."""

    def open(self, place: P) -> tuple[BinaryIO, str]:
        """A file for random reads, and its version. What is read is of that version, or the read fails."""

    def prepare(self, folder: P) -> None:
        """Make the folder, and make sure that of two writers of a name here only the first succeeds."""

    def create(self, place: P, write: Callable[[BinaryIO], None]) -> Published:
        """Publish what `write` fills, whole or not at all; a file of that name stays as it is."""

    def digest(self, place: P) -> tuple[int, str]:
        """Size in bytes and SHA-256 of a published file."""

    def journal(self, place: P) -> Journal:
        """A new journal. Its files are named like `place`, with or without an ending more."""

    def remove(self, places: list[P]) -> None:
        """Remove files; those that are not there are none."""

    def sweep(self, folder: P, older_than: float) -> int:
        """Remove what killed writers left under folder/_tmp more than `older_than` seconds ago, and uploads that were
        never finished; how many there were."""
