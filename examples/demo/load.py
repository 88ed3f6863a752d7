"""Requests to a fleet, one or a steady stream of them; a request that fails is never repeated."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .stage import DemoFailed

_THREADS = 3
_TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class Answer:
    """A translation, and the digest of the adapter version that made it (None: the base model)."""

    text: str
    digest: str | None
    pod: str


def ask(url: str, text: str, source: str, target: str, adapter: str | None) -> Answer:
    """Translate one text. DemoFailed with the fleet's own words if it refuses."""
    body = {"text": text, "source": source, "target": target, **({"adapter": adapter} if adapter else {})}
    request = urllib.request.Request(
        f"{url}/v1/translate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as reply:
            content = json.load(reply)
    except urllib.error.HTTPError as error:
        raise DemoFailed(f"{error.code} {error.read().decode(errors='replace')}") from None
    except OSError as error:
        raise DemoFailed(f"{url}: {error}") from None
    used = content["adapter"]
    return Answer(content["translations"][0]["text"], used and used["digest"], content["pod"])


class Load:
    """A steady stream of requests from a few threads, inside a `with` block. `answers`, `failures` grow."""

    def __init__(self, urls: Sequence[str], send: Callable[[str], Answer]) -> None:
        """`send` is called with each URL in turn."""
        self._urls = itertools.cycle(urls)
        self._send = send
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(_THREADS)]
        self.answers: list[Answer] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the last requests be answered."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.answers.append(self._send(next(self._urls)))
            except DemoFailed as error:
                self.failures.append(str(error))
