"""The local fleet's background process: the operator's controller on the local backend, and a socket for
commands.

One per state folder, by a lock that `up` takes and hands over. The socket belongs to its user alone. Knows
how to start and stop; what a command asks for goes to the store through admission. Must not decide anything
about fleets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from nllb_operator.backends.base import Manifest
from nllb_operator.backends.local.admission import Refused, admitted, located, resource_of
from nllb_operator.backends.local.backend import LocalBackend
from nllb_operator.backends.local.store import Key, ObjectStore, StoreDamaged
from nllb_operator.backends.local.workloads import LocalMachine
from nllb_operator.cli.client import StateFolder
from nllb_operator.controller import Controller
from nllb_operator.metrics import OperatorMetrics
from nllb_operator.settings import OperatorSettings

_LOG = logging.getLogger("nllb_operator.local")


def main(arguments: Sequence[str] | None = None) -> None:
    """`STATE LOCK`: run until SIGTERM, SIGINT or `down`. LOCK: the inherited handle of the folder's lock."""
    folder, lock = sys.argv[1:] if arguments is None else arguments
    state = StateFolder(Path(folder))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    with os.fdopen(int(lock), "w"):  # held for as long as this process lives
        try:
            asyncio.run(_run(state))
        except StoreDamaged as error:
            raise SystemExit(str(error)) from None


async def _run(state: StateFolder) -> None:
    settings = json.loads(state.settings.read_text(encoding="utf-8"))
    volumes = {name: Path(folder) for name, folder in settings["volumes"].items()}
    backend = LocalBackend(LocalMachine(state.path, volumes, settings["gpus"]))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    api = Api(backend, settings, stop)
    # file:// names a folder of this machine, which belongs to the user as the fleet does.
    operator = Controller(backend, OperatorSettings(allow_file_uris=True), OperatorMetrics())
    async with backend.running() as machinery:
        controller = asyncio.create_task(operator.run())
        stopping = asyncio.create_task(stop.wait())
        async with _listening(api.application(), state.socket):
            _LOG.info("local operator runs in %s", state.path)
            everything: list[asyncio.Future[Any]] = [machinery, controller, stopping]
            ended, _ = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        for task in (controller, stopping):
            task.cancel()
        await asyncio.gather(controller, stopping, return_exceptions=True)
        for future in ended:
            future.result()  # raises what ended it, if it was not the order to stop
    _LOG.info("local operator stopped")


@contextlib.asynccontextmanager
async def _listening(application: web.Application, path: Path) -> Any:
    path.unlink(missing_ok=True)  # of a process that was killed: we hold the lock
    runner = web.AppRunner(application)
    await runner.setup()
    mask = os.umask(0o177)
    try:
        await web.UnixSite(runner, str(path)).start()
    finally:
        os.umask(mask)
    try:
        yield
    finally:
        await runner.cleanup()
        path.unlink(missing_ok=True)


class Api:
    """What commands ask for, as routes. Every error is a JSON object with one sentence in `error`."""

    def __init__(self, backend: LocalBackend, settings: dict[str, Any], stop: asyncio.Event) -> None:
        """`settings` are shown by /health; `stop` is set by /down."""
        self._backend = backend
        self._store: ObjectStore = backend.store
        self._settings = settings
        self._stop = stop

    def application(self) -> web.Application:
        """All routes."""
        application = web.Application(middlewares=[_errors])
        application.add_routes(
            [
                web.get("/health", self._health),
                web.get("/objects/{kind}", self._list),
                web.get("/events", self._events),
                web.post("/objects", self._apply),
                web.delete("/objects/{kind}/{namespace}/{name}", self._delete),
                web.post("/down", self._down),
            ]
        )
        return application

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"pid": os.getpid(), **self._settings})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(self._store.objects(request.match_info["kind"], request.query["namespace"]))

    async def _events(self, request: web.Request) -> web.Response:
        shown = [
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{ref.kind}/{ref.name}".lower(), "creationTimestamp": event["time"]},
                **{field: event[field] for field in ("type", "reason", "message")},
            }
            for event in self._backend.events
            if (ref := event["object"]).namespace == request.query["namespace"]
        ]
        return web.json_response(shown)

    async def _apply(self, request: web.Request) -> web.Response:
        manifest: Manifest = located(await request.json(), request.query["namespace"])
        resource_of(manifest)
        body = admitted(self._store.applied(manifest))
        outcome = self._store.apply(manifest, body)
        return web.json_response({"outcome": outcome, "object": self._store.get(Key.of(manifest))})

    async def _delete(self, request: web.Request) -> web.Response:
        part = request.match_info
        return web.json_response(
            {"deleted": self._store.delete(Key(part["kind"], part["namespace"], part["name"]))}
        )

    async def _down(self, request: web.Request) -> web.Response:
        self._stop.set()
        return web.json_response({})


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except Refused as error:
        return web.json_response({"error": str(error)}, status=422)
    except web.HTTPException as error:
        return web.json_response({"error": error.reason}, status=error.status)
    except Exception as error:
        _LOG.exception("%s %s", request.method, request.path)
        return web.json_response({"error": f"internal error: {type(error).__name__}: {error}"}, status=500)
    return response


if __name__ == "__main__":
    main()
