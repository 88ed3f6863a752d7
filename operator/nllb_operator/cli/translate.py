"""Translates texts over a fleet's HTTP API, for `translate` and `local translate`.

Knows the public API by `wire`, what to try again (503 with Retry-After) and how to say why an answer is an
error. Must not know where the endpoint comes from.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import ValidationError

from nllb_operator.cli.client import CommandError
from nllb_operator.cli.console import Progress, say
from nllb_server.wire import TRANSLATE_PATH, Problem, TranslateRequest, TranslateResponse

_TEXTS_PER_REQUEST = 64
_LONGEST_PAUSE_SECONDS = 5.0
_KNOWN_SHOWN = 20


@dataclass(frozen=True)
class TranslateOptions:
    """What a user asks of every text; `timeout` in seconds for each request, its repetitions included."""

    source: str | None = None
    target: str | None = None
    adapter: str | None = None
    num_beams: int = 1
    timeout: float = 120.0
    waiting: Callable[[str], None] = field(default=lambda reason: None)  # told why it waits, when it does


def translate_texts(url: str, parsed: argparse.Namespace) -> None:
    """The command: texts of the arguments, else lines of stdin; one translation per line on stdout."""
    try:
        texts = parsed.text or [line.rstrip("\n") for line in sys.stdin]
    except UnicodeDecodeError:
        raise CommandError("stdin is not UTF-8; convert it first, for example with iconv") from None
    for number, text in enumerate(texts, 1):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise CommandError(f"text {number} is not UTF-8; convert it first, for example with iconv")
    options = TranslateOptions(
        source=parsed.source,
        target=parsed.target,
        adapter=parsed.adapter,
        num_beams=parsed.beams,
        timeout=parsed.timeout,
        waiting=Progress().tell,
    )
    for reply in translate(url, texts, options):
        for translation in reply.translations:
            print(translation.text, flush=True)
        if parsed.verbose:
            by = reply.adapter.header if reply.adapter else "no adapter"
            say(f"  {reply.source} → {reply.target}, {by}, by {reply.pod}")


def translate(url: str, texts: Sequence[str], options: TranslateOptions) -> Iterator[TranslateResponse]:
    """The replies for `texts`, in order, in groups. CommandError says what was wrong and what to do."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"{url!r} is not an address of a fleet; write http://HOST:PORT")
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname, parts.port, timeout=options.timeout)
    try:
        for first in range(0, len(texts), _TEXTS_PER_REQUEST):
            yield _answer(
                connection, parts.path.rstrip("/"), texts[first : first + _TEXTS_PER_REQUEST], options
            )
    finally:
        connection.close()


def _answer(
    connection: http.client.HTTPConnection, base: str, texts: Sequence[str], options: TranslateOptions
) -> TranslateResponse:
    try:
        request = TranslateRequest(
            text=list(texts),
            source=options.source,
            target=options.target,
            adapter=options.adapter,
            num_beams=options.num_beams,
        )
    except ValidationError as error:
        raise CommandError("; ".join(detail["msg"] for detail in error.errors())) from None
    body = request.model_dump_json(exclude_none=True).encode()
    deadline = time.monotonic() + options.timeout
    while True:
        status, retry_after, content = _post(connection, base, body)
        if status == 200:
            return TranslateResponse.model_validate_json(content)
        message = _problem(status, content)
        if status not in (429, 503) or retry_after is None or time.monotonic() + retry_after > deadline:
            raise CommandError(message)
        options.waiting(message)
        time.sleep(min(retry_after, _LONGEST_PAUSE_SECONDS))


def _post(connection: http.client.HTTPConnection, base: str, body: bytes) -> tuple[int, float | None, bytes]:
    """Status, Retry-After in seconds, body. A kept connection that the server has closed is opened again."""
    for attempt in (1, 2):
        fresh = connection.sock is None
        try:
            connection.request("POST", base + TRANSLATE_PATH, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, _seconds(reply.getheader("Retry-After")), reply.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if fresh or attempt == 2:
                where = f"{connection.host}:{connection.port}"
                raise CommandError(f"{where} did not answer ({error}); is the fleet running?") from None
    raise AssertionError("unreachable")


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdigit() else None


def _problem(status: int, content: bytes) -> str:
    try:
        problem = Problem.model_validate_json(content).error
    except ValidationError:
        return f"the fleet answered {status} without saying why"
    if not problem.known:
        return problem.message
    more = len(problem.known) - _KNOWN_SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return f"{problem.message} (known: {', '.join(problem.known[:_KNOWN_SHOWN])}{rest})"
