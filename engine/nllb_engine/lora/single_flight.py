"""Many callers that want the same thing at the same time: one works, all get its result or its error.

Knows threads only. Must not know adapters.
"""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Invariant: at most one call per key is running."""

    def __init__(self) -> None:
        """Nothing is running."""
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[T]] = {}

    def do(self, key: Hashable, work: Callable[[], T]) -> tuple[T, bool]:
        """The result of `work`, or of the caller that is at it already; the flag says whether it was ours."""
        with self._lock:
            running = self._running.get(key)
            if running is None:
                mine: Future[T] = Future()
                self._running[key] = mine
        if running is not None:
            return running.result(), False
        try:
            result = work()
        except BaseException as error:
            self._end(key)
            mine.set_exception(error)
            raise
        self._end(key)
        mine.set_result(result)
        return result, True

    def _end(self, key: Hashable) -> None:
        with self._lock:
            del self._running[key]
