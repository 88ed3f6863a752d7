"""The life of a server process: listen, load, serve, drain, exit.

Knows the order of things and how long each may take. Must not know routes or how a model is built: `load` is
given by the caller.
"""

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger as server_log

from nllb_engine.async_engine import AsyncEngine
from nllb_engine.engine import Engine
from nllb_engine.errors import EngineError
from nllb_engine.lora.store import AdapterStore
from nllb_server.adapter_manager import AdapterManager
from nllb_server.app import make_control_app, make_public_app
from nllb_server.leases import AdapterLeases
from nllb_server.metrics import ServerMetrics
from nllb_server.model_loader import LoadedModel
from nllb_server.pod import Pod, Serving
from nllb_server.settings import ServerSettings, SettingsError
from nllb_server.translator import Translator
from nllb_server.wanted_file import converge_alone, read_wanted_file

log = logging.getLogger(__name__)


class MalformedRequests(logging.Filter):
    """One short line for a request that is no HTTP: aiohttp would log a traceback that quotes it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record in place; everything else passes as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.args = "a request that is no valid HTTP: %s", (type(error).__name__,)
            record.exc_info, record.exc_text, record.levelno = None, None, logging.WARNING
            record.levelname = "WARNING"
        return True


KEEPALIVE_SECONDS = 75.0
"""Idle connections are kept this long: longer than the usual load balancer keeps them (60 s)."""

LOADER_THREAD = "nllb-load"

Load = Callable[[ServerSettings, AdapterStore], LoadedModel]


async def run_server(settings: ServerSettings, load: Load) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return the exit status: 1 when the model cannot be loaded.

    Raises SettingsError for a folder or a port that cannot be used.
    """
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    try:
        store = AdapterStore(settings.adapters_dir)
    except OSError as error:
        raise SettingsError(f"NLLB_ADAPTERS_DIR cannot be used: {error}; name a writable folder") from error
    metrics = ServerMetrics()
    pod = Pod(settings, AdapterManager(store, settings, metrics), metrics)
    if (wanted := read_wanted_file(settings.wanted_file)) is not None:
        pod.manager.expect(wanted)
    async with _listening(pod, store) as public:
        loading = asyncio.ensure_future(_in_thread(load, settings, store))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([loading, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            loading.cancel()
            return 0
        try:
            loaded = loading.result()
        except (EngineError, SettingsError) as error:
            log.error("the model cannot be served: %s", error)
            stopped.cancel()
            return 1
        async with _serving(pod, loaded):
            await stopped
            await _drain(pod, public)
    log.info("drained; exiting")
    return 0


@contextlib.asynccontextmanager
async def _listening(pod: Pod, store: AdapterStore) -> AsyncIterator[web.TCPSite]:
    settings = pod.settings
    async with contextlib.AsyncExitStack() as stack:
        malformed = MalformedRequests()
        server_log.addFilter(malformed)
        stack.callback(server_log.removeFilter, malformed)
        sites = []
        for app, port, name in (
            (make_control_app(pod, store), settings.control_port, "control"),
            (make_public_app(pod), settings.http_port, "public"),
        ):
            runner = web.AppRunner(
                app,
                access_log=None,
                handler_cancellation=True,
                keepalive_timeout=KEEPALIVE_SECONDS,
                shutdown_timeout=1.0,
                auto_decompress=False,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, settings.host, port, backlog=1024)
            try:
                await site.start()
            except OSError as error:
                raise SettingsError(
                    f"the {name} port cannot be used: {error.strerror}; set another"
                ) from error
            sites.append(site)
            log.info("%s port: %s", name, runner.addresses[0])
        yield sites[-1]


@contextlib.asynccontextmanager
async def _serving(pod: Pod, loaded: LoadedModel) -> AsyncIterator[None]:
    model, settings = loaded.model, pod.settings
    limits = model.limits()
    engine = AsyncEngine(Engine(model, model, limits), model.bind_gpu_to_thread)
    pod.manager.attach(model, model)
    leases = AdapterLeases(pod.manager, model, model, settings.adapter_slots)
    translator = Translator(loaded.name, loaded.tokenizer, engine, leases, limits, settings, pod.metrics)
    languages = loaded.tokenizer.languages
    pod.start_serving(Serving(loaded.name, loaded.device, loaded.dtype, languages, engine, translator))
    alone = asyncio.create_task(converge_alone(pod))
    try:
        yield
    finally:
        alone.cancel()
        await pod.manager.close()
        await engine.close()
        model.teardown()


async def _drain(pod: Pod, public: web.TCPSite) -> None:
    """Unready at once; serve on while endpoints still lead here; then refuse, finish and leave."""
    settings, began = pod.settings, time.monotonic()
    pod.draining = True
    log.info("draining: %d requests are running", pod.in_flight)
    await asyncio.sleep(min(settings.drain_lag_seconds, settings.drain_seconds))
    await public.stop()
    pod.closing = True
    while pod.in_flight and time.monotonic() - began < settings.drain_seconds:
        await asyncio.sleep(0.02)
    if pod.in_flight:
        log.error("%d requests did not end within NLLB_DRAIN_SECONDS and are cut", pod.in_flight)


async def _in_thread(load: Load, settings: ServerSettings, store: AdapterStore) -> LoadedModel:
    """Run `load` in a daemon thread, which a SIGTERM during a long load need not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[LoadedModel] = loop.create_future()

    def resolve(result: LoadedModel | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        elif result is not None:
            future.set_result(result)

    def work() -> None:
        try:
            result, error = load(settings, store), None
        except Exception as failure:
            result, error = None, failure
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(resolve, result, error)

    threading.Thread(target=work, name=LOADER_THREAD, daemon=True).start()
    return await future
