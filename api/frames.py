"""Arrow batches as data frames of a library that the caller has installed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from db.errors import DomainError

if TYPE_CHECKING:
    import pyarrow as pa

Library = Literal["pandas", "polars"]


class FrameLibraryMissing(DomainError):
    """What data frames are wanted of cannot be imported."""

    code = "frame_library_missing"

    def __init__(self, library: str) -> None:
        super().__init__(f"frames of {library!r} are wanted, and it is not installed: pip install {library}")
        self.library = library


def require(library: Library) -> None:
    """Raises FrameLibraryMissing."""
    try:
        importlib.import_module(library)
    except ImportError:
        raise FrameLibraryMissing(library) from None


def frame(batch: pa.RecordBatch, library: Library) -> Any:
    """A pandas.DataFrame or a polars.DataFrame of the same rows and columns."""
    if library == "pandas":
        return batch.to_pandas()
    return importlib.import_module("polars").from_arrow(batch)
