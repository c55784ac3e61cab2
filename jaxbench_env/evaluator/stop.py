"""Ending an evaluation from outside, without touching those beside it."""

from __future__ import annotations

import threading
from typing import Protocol, TypeVar


class Cancellable(Protocol):
    """What can be ended from another thread, also when it has ended already."""

    def cancel(self) -> None:
        """Ends it soon, without waiting."""


_Thing = TypeVar("_Thing", bound=Cancellable)


class Stop:
    """Jobs, judges and connections that end together; stops may hold stops. Thread-safe.

    As a context manager it cancels what it holds when it is left.
    """

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._lock, self._things, self.over = threading.Lock(), [], False

    def add(self, thing: _Thing) -> _Thing:
        """Takes a thing into the list; one that comes too late is cancelled at once."""
        with self._lock:
            self._things.append(thing)
            if self.over:
                thing.cancel()
        return thing

    def discard(self, thing: Cancellable) -> None:
        """Forgets a thing. After this returns, it is not cancelled through this list."""
        with self._lock:
            self._things = [other for other in self._things if other is not thing]

    def cancel(self) -> None:
        """Cancels all that is held, and all that will come."""
        with self._lock:
            self.over = True
            for thing in self._things:
                thing.cancel()

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
