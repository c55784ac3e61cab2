"""A bounded queue whose clients take turns."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Turns(Generic[_Item]):
    """Items of the client who has waited longest come first, one at a time. Thread-safe."""

    def __init__(self, most: int):
        """Holds nothing yet, and never more than `most` items."""
        self._most = most
        self._ready = threading.Condition()
        self._clients: OrderedDict[Hashable, deque[_Item]] = OrderedDict()

    def __len__(self) -> int:
        with self._ready:
            return self._count()

    def _count(self) -> int:
        return sum(map(len, self._clients.values()))

    def put(self, client: Hashable, item: _Item) -> bool:
        """Adds an item of a client's. Returns whether there was room."""
        with self._ready:
            if self._count() >= self._most:
                return False
            self._clients.setdefault(client, deque()).append(item)
            self._ready.notify()
            return True

    def take(self) -> _Item:
        """Waits for an item and removes it; its client goes to the end of the line."""
        with self._ready:
            while not self._clients:
                self._ready.wait()
            client, items = self._clients.popitem(last=False)
            item = items.popleft()
            if items:
                self._clients[client] = items
            return item

    def drop(self, client: Hashable, item: _Item) -> None:
        """Removes an item that may have been taken already."""
        with self._ready:
            items = self._clients.get(client, deque())
            if item in items:
                items.remove(item)
                if not items:
                    del self._clients[client]
