"""What goes wrong with an object store. Texts name the place and the store's code, and nothing that is secret."""

from __future__ import annotations

import errno

from db.errors import DomainError


class StorageMissing(DomainError):
    """This installation cannot reach object stores."""

    code = "storage_missing"

    def __init__(self) -> None:
        super().__init__("s3:// addresses need an extra: pip install 'nightmill[s3]'")


class StorageRefused(DomainError):
    """The store answers, and refuses: credentials, permissions, the bucket, the region."""

    code = "storage_refused"

    def __init__(self, place: object, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.file = str(place)
        self.reason = reason


class StorageUnsafe(DomainError):
    """The store does not keep what it is given, or lets a second writer replace the first one's file."""

    code = "storage_unsafe"

    def __init__(self, place: object, reason: str) -> None:
        super().__init__(f"{place}: this object store {reason}; choose another one")
        self.file = str(place)
        self.reason = reason


class StorageUnavailable(OSError):
    """The store does not answer, or answers that it cannot now, after every retry. Later it may."""

    code = "storage_unavailable"

    def __init__(self, place: object, reason: str) -> None:
        super().__init__(errno.EIO, f"{place}: {reason}")
        self.file = str(place)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.strerror)


class Taken(Exception):
    """A conditional put found the name taken."""


class Conflict(Exception):
    """Another put of the same name is under way: try again."""


class NotThere(Exception):
    """No such key, or no such upload."""


class OtherVersion(Exception):
    """The object is not the one that was opened."""
