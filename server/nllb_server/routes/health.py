"""/livez, /readyz and /metrics, on both ports. Readiness is not liveness: a busy pod is never killed."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from nllb_server.keys import POD


async def livez(request: web.Request) -> web.Response:
    """200 while the process can do its work, whatever its load; 503: replace it."""
    live = request.app[POD].live
    return web.Response(
        text="ok\n" if live else "the engine's thread has ended\n", status=200 if live else 503
    )


async def readyz(request: web.Request) -> web.Response:
    """200 when requests are welcome, else 503; the body says what is awaited."""
    readiness = request.app[POD].readiness()
    return web.json_response(text=readiness.model_dump_json(), status=200 if readiness.ready else 503)


async def metrics(request: web.Request) -> web.Response:
    """Prometheus' text format."""
    return web.Response(body=request.app[POD].metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})
