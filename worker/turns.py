"""Turns: who may use the engine's one loaded model, in order of arrival. All calls under the Runner's lock."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

from engine import LoadedModel


@dataclass(eq=False, slots=True)
class Ticket:
    """A task that uses a model, or waits for it."""

    model: str
    loading: bool = False
    granted: LoadedModel | None = None
    refused: Exception | None = None

    @property
    def answered(self) -> bool:
        return self.granted is not None or self.refused is not None


class Turns:
    def __init__(self) -> None:
        self._waiting: deque[Ticket] = deque()
        self._users: set[Ticket] = set()

    def join(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)

    def leave(self, ticket: Ticket) -> None:
        self._users.discard(ticket)
        if ticket in self._waiting:
            self._waiting.remove(ticket)

    def wanted(self, loaded: str | None) -> str | None:
        """The model of the first ticket, if it can be served now: it is loaded, or nobody uses another one."""
        if not self._waiting or (self._users and self._waiting[0].model != loaded):
            return None
        return self._waiting[0].model

    def begin(self, model: str) -> None:
        """The model of the tickets in front is being loaded."""
        for ticket in itertools.takewhile(lambda ticket: ticket.model == model, self._waiting):
            ticket.loading = True

    def grant(self, model: str, loaded: LoadedModel) -> None:
        """Let in all tickets in front that want this model."""
        while self._waiting and self._waiting[0].model == model:
            ticket = self._waiting.popleft()
            ticket.granted = loaded
            self._users.add(ticket)

    def refuse(self, model: str, error: Exception) -> None:
        """Answer the first ticket with an error, unless it gave up meanwhile."""
        if self._waiting and self._waiting[0].model == model:
            self._waiting.popleft().refused = error
