"""Attempts: what one attempt at a shard holds, and what becomes of one that broke."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from db import shards, tenants
from db.shards import Beat, Claim
from db.stores import Place, S3Path
from db.stores.errors import StorageUnavailable
from db.tenants import Folders
from db.uris import locate, resolve_made
from worker.checkpoints import Checkpoint, Saved, checkpoint_path
from worker.parts import Tally
from worker.process import Process
from worker.shards import Layout
from worker.sources import Stopped
from worker.suspects import Suspects

MOST_PAUSE_SECONDS = 300.0


@dataclass(slots=True)
class Attempt:
    """One attempt at a shard. `claim` changes when it is found that the attempts before it had got on."""

    process: Process
    claim: Claim
    output: Place | None = field(init=False, default=None)
    folders: Folders = field(init=False)
    saved: Saved = field(init=False)
    tally: Tally = field(default_factory=Tally)

    def beat(self) -> Beat:
        process, claim = self.process, self.claim
        with process.sessions.begin() as session:
            lease = process.settings.lease_seconds
            return shards.beat(session, claim, lease_seconds=lease, progress=self.tally.progress)

    @property
    def folder(self) -> Place:
        assert self.output is not None, "the attempt is not open"
        return self.output

    def open(self) -> None:
        """Look at what earlier attempts left, and count attempts from one again if they had got on.

        Raises Stopped when the lease is lost already.
        """
        with self.process.sessions.begin() as session:
            self.folders = tenants.folders(session, self.process.settings, self.claim.tenant)
        # Checked again: links inside the roots may have changed since the submission.
        roots = self.folders.roots
        self.output = resolve_made(self.claim.output_uri, roots)
        self.claim = replace(self.claim, place=locate(self.claim.file, roots))
        self.saved = self.look()
        self._count(self.saved)

    def broke(self) -> None:
        """Count attempts from one again if this one got on before it broke. Raises Stopped as `open`."""
        if self.output is not None:
            self._count(self.look())

    def waits(self, waiting: bool) -> None:
        """It waits for the engine, or no longer: other rows may end it meanwhile. Raises Stopped as `open`."""
        if self.claim.attempts > 1:  # then it matters whether it has got on, if it does not live to say so itself
            self._count(self.look())
        with self.process.sessions.begin() as session:
            self._change(shards.count(session, self.claim, counted=not waiting))

    def _count(self, saved: Saved) -> None:
        if saved.marks != self.claim.marks:
            with self.process.sessions.begin() as session:
                self._change(shards.got_on(session, self.claim, saved.marks))

    def _change(self, claim: Claim | None) -> None:
        if claim is None:
            raise Stopped
        self.claim = claim

    def look(self) -> Saved:
        """What is finished by now, this attempt's own included."""
        return Saved.find(self.folder, self.claim.index, self.claim.fence + 1)

    @contextlib.contextmanager
    def checkpoint(self, layout: Layout) -> Iterator[Checkpoint]:
        path = checkpoint_path(self.folder, self.claim.index, self.claim.fence)
        settings = self.process.settings
        seconds = settings.s3_checkpoint_seconds if isinstance(path, S3Path) else settings.checkpoint_seconds
        checkpoint = Checkpoint(path, layout.added, layout.prefix, seconds)
        try:
            yield checkpoint
        finally:
            checkpoint.close()

    def suspects(self) -> Suspects:
        """Raises EngineBroken."""
        first, begun = self.claim.first_row, self.saved.begun
        open_rows = self.saved.open_rows(first, first + self.claim.num_rows) if begun else []
        return Suspects.among(open_rows, begun, careful=self.claim.attempts > 1)


def cause(error: Exception) -> str:
    """The error's code, for the job."""
    if isinstance(error, OSError) and not isinstance(error, StorageUnavailable):
        return "no_space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "io_error"
    if isinstance(error, MemoryError):
        return "out_of_memory"
    return str(getattr(error, "code", "internal_error"))


def pause(seconds: float, attempts: int) -> float:
    """How long to wait after the attempt of this number."""
    return min(seconds * 2.0 ** (attempts - 1), MOST_PAUSE_SECONDS)
