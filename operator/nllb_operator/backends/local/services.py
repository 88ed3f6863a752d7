"""Sends a Service's connections to Ready pods: one listener on 127.0.0.1 per port of a Service, round robin.

Works on TCP, like kube-proxy. A pod that is not Ready, or on its way out, gets no new connection from the
very moment the store says so. When no pod is Ready the caller gets an HTTP 503 that says so, not a reset.
The port is kept in the Service's status and taken again after a restart. Headless Services have no
listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

from nllb_operator.backends.base import Manifest
from nllb_operator.backends.local.store import Key, ObjectStore
from nllb_operator.backends.local.workloads import is_ready
from nllb_operator.pod_container import ports_of
from nllb_server.wire import Problem, ProblemDetail

_ADDRESS = "127.0.0.1"
_CHUNK = 1 << 16
_CONNECT_SECONDS = 1.0


class ServiceRouter:
    """Listeners equal to the Services of a store. One task; every change of a Service wakes it."""

    def __init__(self, store: ObjectStore) -> None:
        """Listens to nothing before `run`."""
        self._store = store
        self._listeners: dict[tuple[Key, str], asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._turn = itertools.count()
        self._changed = asyncio.Event()
        store.listeners.append(self._on_change)

    def _on_change(self, body: Manifest) -> None:
        if body["kind"] == "Service":
            self._changed.set()

    async def run(self) -> None:
        """Converge, for ever. On cancellation every listener and connection is closed."""
        try:
            self._changed.set()
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self.converge()
        finally:
            for server in self._listeners.values():
                server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def converge(self) -> None:
        """Listen for exactly the Services that there are."""
        services = {Key.of(body): body for body in self._store.objects("Service") if _has_address(body)}
        for (key, name), server in list(self._listeners.items()):
            if key not in services or name not in {_name(port) for port in services[key]["spec"]["ports"]}:
                server.close()
                del self._listeners[(key, name)]
        for key, body in services.items():
            for port in body["spec"]["ports"]:
                if (key, _name(port)) not in self._listeners:
                    self._listeners[(key, _name(port))] = await self._listen(key, body, port)
            self._store.set_status(key, self._status(key, body))

    async def _listen(self, key: Key, body: Manifest, port: Mapping[str, Any]) -> asyncio.Server:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._forward(key, _name(port), reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        for number in (_former_port(body, port), 0):
            with contextlib.suppress(OSError):
                return await asyncio.start_server(accepted, _ADDRESS, number, backlog=1024)
        raise OSError(f"no free port on {_ADDRESS} for the Service {key.name}")

    def _status(self, key: Key, body: Manifest) -> dict[str, Any]:
        ports = [
            {"name": _name(port), "port": self._number(key, port), "protocol": "TCP"}
            for port in body["spec"]["ports"]
        ]
        return {"loadBalancer": {"ingress": [{"ip": _ADDRESS, "ports": ports}]}}

    def _number(self, key: Key, port: Mapping[str, Any]) -> int:
        number: int = self._listeners[(key, _name(port))].sockets[0].getsockname()[1]
        return number

    # --- connections

    async def _forward(
        self, key: Key, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.closing(writer):
            upstream = await self._connect(key, name)
            if upstream is None:
                await _refuse(reader, writer, f"no pod of {key.name} is Ready; try again in a moment")
                return
            with contextlib.closing(upstream[1]):
                await asyncio.gather(_pipe(reader, upstream[1]), _pipe(upstream[0], writer))

    async def _connect(self, key: Key, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        targets = self._targets(key, name)
        first = next(self._turn) % max(len(targets), 1)
        for host, port in targets[first:] + targets[:first]:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await asyncio.open_connection(host, port)
        return None

    def _targets(self, key: Key, name: str) -> list[tuple[str, int]]:
        """Addresses of the Ready pods, now."""
        service = self._store.get(key)
        if service is None:
            return []
        port = next((port for port in service["spec"]["ports"] if _name(port) == name), None)
        if port is None:
            return []
        target, selector = port.get("targetPort", port["port"]), service["spec"]["selector"].items()
        return [
            (pod["status"]["podIP"], target if isinstance(target, int) else ports_of(pod)[target])
            for pod in self._store.objects("Pod", key.namespace)
            if is_ready(pod) and selector <= pod["metadata"].get("labels", {}).items()
        ]


def endpoint_of(service: Mapping[str, Any]) -> str | None:
    """The URL at which a Service is reached, None while it has no listener."""
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
        return f"http://{ingress['ip']}:{ingress['ports'][0]['port']}"
    return None


def _has_address(service: Mapping[str, Any]) -> bool:
    return service["spec"].get("clusterIP") != "None" and bool(service["spec"].get("selector"))


def _name(port: Mapping[str, Any]) -> str:
    return str(port.get("name", port["port"]))


def _former_port(service: Mapping[str, Any], port: Mapping[str, Any]) -> int:
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
        for former in ingress["ports"]:
            if former["name"] == _name(port):
                return int(former["port"])
    return 0


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of the one side, then end the other: half-closed connections stay usable."""
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()  # a broken connection must not look like a complete answer


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: str) -> None:
    """Answer one HTTP request with 503."""
    with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            await reader.readuntil(b"\r\n\r\n")
    problem = Problem(error=ProblemDetail(code="no_ready_pod", message=message))
    body = problem.model_dump_json(exclude_none=True).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            writer.write(head.encode() + body)
            await writer.drain()
            writer.write_eof()
            while await reader.read(_CHUNK):
                pass  # read on, so that the answer is not lost to a reset
