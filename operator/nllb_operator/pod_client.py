"""The HTTP client of the pods' control port: read an inventory, send a wanted set.

Knows paths, deadlines and how large an answer may be. Must not know what to send, or keep anything.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from nllb_server.wire import INVENTORY_PATH, WANTED_PATH, Inventory, Problem, WantedSet

MAX_ANSWER_BYTES = 16 << 20
"""A pod with ten thousand adapters answers with about 4 MB."""


class PodUnreachable(Exception):
    """A pod did not answer in time, or not in the form that is expected; the message says which."""


class PodClient:
    """Talks to pods at `host:port`. Use as an async context manager; many calls may run at once."""

    def __init__(self, timeout_seconds: float) -> None:
        """`timeout_seconds`: for a whole call, the connection included."""
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        connector = aiohttp.TCPConnector(limit=256, limit_per_host=4)
        self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        assert self._session is not None
        await self._session.close()

    async def inventory(self, addr: str) -> Inventory:
        """What the pod holds. Raises PodUnreachable."""
        return await self._call("GET", f"http://{addr}{INVENTORY_PATH}", None)

    async def send_wanted(self, addr: str, wanted: WantedSet) -> Inventory:
        """Tell the pod everything it is to hold; what it holds now comes back. Raises PodUnreachable."""
        return await self._call("PUT", f"http://{addr}{WANTED_PATH}", wanted.model_dump_json())

    async def _call(self, method: str, url: str, body: str | None) -> Inventory:
        assert self._session is not None, "use the client as an async context manager"
        headers = {"Content-Type": "application/json"} if body is not None else None
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                text = await _limited(response)
                if response.status != 200:
                    raise PodUnreachable(f"{method} {url}: {_complaint(response.status, text)}")
                return Inventory.model_validate_json(text)
        except TimeoutError:
            raise PodUnreachable(f"{method} {url}: no answer in {self._timeout.total:g} s") from None
        except aiohttp.ClientError as error:
            raise PodUnreachable(f"{method} {url}: {error}") from error
        except ValidationError as error:
            raise PodUnreachable(
                f"{method} {url}: not an inventory ({error.error_count()} errors)"
            ) from error


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    """The whole body; PodUnreachable if it is larger than any real answer."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise PodUnreachable(f"{response.url}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _complaint(status: int, text: bytes) -> str:
    try:
        detail = Problem.model_validate_json(text).error
    except ValidationError:
        return f"HTTP {status}"
    return f"HTTP {status}, {detail.code}: {detail.message}"
