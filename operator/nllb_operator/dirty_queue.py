"""The work to do: keys that are dirty, each at most once, each with one worker at a time.

Knows time only as the loop's clock. Must not know what a key stands for.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Generic, TypeVar

K = TypeVar("K")


class DirtyQueue(Generic[K]):
    """Invariant: a key is handed to a second worker only after the first has said `done`.

    A key that is marked while a worker has it comes again afterwards, so no change is lost.
    """

    def __init__(self) -> None:
        """An empty queue."""
        self._due: dict[K, float] = {}
        self._order: list[tuple[float, int, K]] = []
        self._busy: set[K] = set()
        self._count = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait, those whose time has not come included."""
        return len(self._due)

    def mark(self, key: K, delay: float = 0.0) -> None:
        """The key needs work in `delay` seconds; an earlier appointment stands."""
        due = asyncio.get_running_loop().time() + delay
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._count += 1
        heapq.heappush(self._order, (due, self._count, key))
        self._changed.set()

    async def take(self) -> K:
        """The next key whose time has come; call `done` with it afterwards."""
        while True:
            self._changed.clear()
            now = asyncio.get_running_loop().time()
            wait = None
            held = []
            while self._order:
                due, count, key = heapq.heappop(self._order)
                if self._due.get(key) != due:
                    continue  # an earlier appointment replaced this one
                if due > now:
                    wait = due - now
                    held.append((due, count, key))
                    break
                if key in self._busy:
                    held.append((due, count, key))
                    continue
                for item in held:
                    heapq.heappush(self._order, item)
                del self._due[key]
                self._busy.add(key)
                return key
            for item in held:
                heapq.heappush(self._order, item)
            try:
                async with asyncio.timeout(wait):       # wait_for may swallow a cancellation before 3.12
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """The worker has finished with the key."""
        self._busy.discard(key)
        self._changed.set()
