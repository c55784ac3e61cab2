"""Rate limits: so many requests and tokens in a minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0


class Rates:
    """Lets callers through so that no minute holds more than it may. Thread-safe, first come first.

    Tokens are estimated before a request and put right after it, so a single request that takes
    more than the whole limit is let through when nothing else was in the last minute.
    """

    def __init__(
        self,
        requests: int | None = None,
        tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        window: float = WINDOW_SECONDS,
    ):
        """Sets the limits.

        Args:
            requests: Requests in a window; None is no limit.
            tokens: Tokens in a window, of prompts and answers; None is no limit.
            clock: Seconds.
            window: Length of the window in seconds.
        """
        self._limits, self._clock, self._window = (requests, tokens), clock, window
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._past: deque[list[float]] = deque()  # time, tokens

    def enter(self, tokens: int, stop: threading.Event) -> list[float]:
        """Waits for room, and takes it.

        Args:
            tokens: Estimate of what the request will take.
            stop: Ends the wait.

        Returns:
            The place, for `leave`.
        """
        with self._turn:  # who waits longest is next
            while not stop.is_set():
                with self._lock:
                    wait = self._wait(tokens)
                    if wait <= 0:
                        break
                stop.wait(wait)
            place = [self._clock(), float(tokens)]
            with self._lock:
                self._past.append(place)
            return place

    def leave(self, place: list[float], tokens: int) -> None:
        """Says what a request has really taken."""
        with self._lock:
            place[1] = float(tokens)

    def _wait(self, tokens: int) -> float:
        """Seconds until there may be room."""
        now = self._clock()
        while self._past and self._past[0][0] <= now - self._window:
            self._past.popleft()
        requests, most = self._limits
        full = requests is not None and len(self._past) >= requests
        if most is not None and self._past:
            full = full or sum(place[1] for place in self._past) + tokens > most
        return self._past[0][0] + self._window - now if full else 0.0
