"""Results: answers of earlier requests, kept across jobs and restarts in one SQLite file on the worker's own disk.

A cache: whatever happens to the file costs time, never a row. What is damaged or cannot be read counts as unknown.
"""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import TypeAlias

import structlog

from engine.request import FinishReason, Output, TokenLogprobs

log = structlog.get_logger()

Key: TypeAlias = bytes
DAY = 86_400
FRESH = 256  # answers written together
FLUSHES_PER_SHRINK = 16
FULL = 0.9  # of the size, what is left after some were thrown out
BUSY_SECONDS = 5.0
SCHEMA = """
create table if not exists results (key blob primary key, used_at integer not null, answer text not null) without rowid;
create index if not exists results_by_use on results (used_at);
"""


class Results:
    """Owned by one thread; several processes may share the file."""

    def __init__(self, path: Path | None, *, max_bytes: int = 1 << 30, keep_days: int = 30) -> None:
        """Without a path nothing is kept. What was not used for `keep_days` goes, and where the file would grow beyond
        `max_bytes`, the least recently used."""
        self._max_bytes = max_bytes
        self._keep_seconds = keep_days * DAY
        self._fresh: dict[Key, str] = {}  # not on disk yet
        self._flushes = 0
        self._database: sqlite3.Connection | None = None
        if path is not None:
            self._open(path)

    def get(self, key: Key) -> Output | None:
        if self._database is None:
            return None
        try:
            text = self._fresh.get(key)
            if text is None:
                row = self._database.execute("select answer, used_at from results where key = ?", (key,)).fetchone()
                if row is None:
                    return None
                text = row[0]
                if time.time() - row[1] > DAY:
                    self._fresh[key] = text  # written again, with today's date
            return _decoded(text)
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            self._give_up(error)
            return None

    def put(self, key: Key, output: Output) -> None:
        """Keep an answer. It is on disk some hundred answers later, or after `flush`."""
        if self._database is None:
            return
        self._fresh[key] = _encoded(output)
        if len(self._fresh) >= FRESH:
            self.flush()

    def flush(self) -> None:
        """Put on disk what is not there yet, in one short transaction: other processes write to the file as well."""
        if self._database is None or not self._fresh:
            return
        now = int(time.time())
        rows = [(key, now, text) for key, text in self._fresh.items()]
        self._fresh.clear()
        try:
            with self._database:
                self._database.executemany("insert or replace into results values (?, ?, ?)", rows)
            self._flushes += 1
            if self._flushes % FLUSHES_PER_SHRINK == 0:
                self._shrink()
        except sqlite3.OperationalError as error:  # another process holds the file for long
            log.warning("results were not kept", answers=len(rows), reason=str(error))
        except sqlite3.Error as error:
            self._give_up(error)

    def close(self) -> None:
        self.flush()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = off")  # a lost answer is computed again
            self._database.executescript(SCHEMA)
            self._shrink()
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def _shrink(self) -> None:
        """Throw out what is old, and the least recently used where it is too much."""
        assert self._database is not None
        with self._database:
            oldest = int(time.time()) - self._keep_seconds
            self._database.execute("delete from results where used_at < ?", (oldest,))
        pages, free, size = (
            self._database.execute(f"pragma {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        used = (pages - free) * size
        if used > self._max_bytes:
            (count,) = self._database.execute("select count(*) from results").fetchone()
            surplus = int(count * (1 - FULL * self._max_bytes / used)) + 1
            with self._database:
                self._database.execute(
                    "delete from results where key in (select key from results order by used_at limit ?)", (surplus,)
                )

    def _give_up(self, error: Exception) -> None:
        log.warning("earlier results are not used", reason=str(error))
        self._fresh.clear()
        database, self._database = self._database, None
        if database is not None:
            database.close()


def _encoded(output: Output) -> str:
    record = {
        "tokens": output.tokens,
        "finish_reason": output.finish_reason.value,
        "num_prompt_tokens": output.num_prompt_tokens,
        "num_output_tokens": output.num_output_tokens,
        "stopped_by": output.stopped_by,
        "logprobs": None
        if output.logprobs is None
        else [(each.token, each.logprob, each.top) for each in output.logprobs],
        "choice_logprobs": output.choice_logprobs,
    }
    return json.dumps(record, separators=(",", ":"))


def _decoded(text: str) -> Output:
    """Raises ValueError, KeyError or TypeError for what _encoded did not make."""
    record = json.loads(text)
    logprobs = record["logprobs"]
    choices = record["choice_logprobs"]
    return Output(
        id=None,
        tokens=tuple(record["tokens"]),
        finish_reason=FinishReason(record["finish_reason"]),
        num_prompt_tokens=record["num_prompt_tokens"],
        num_cached_tokens=record["num_prompt_tokens"],
        num_output_tokens=record["num_output_tokens"],
        stopped_by=record["stopped_by"],
        logprobs=None
        if logprobs is None
        else tuple(TokenLogprobs(token, value, tuple(map(tuple, top))) for token, value, top in logprobs),
        choice_logprobs=None if choices is None else tuple(choices),
    )
