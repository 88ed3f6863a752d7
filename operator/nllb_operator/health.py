"""The operator's own HTTP server: /livez and /metrics.

Knows how old a full pass may be. Must not know what a pass does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from nllb_operator.metrics import OperatorMetrics
from nllb_operator.settings import OperatorSettings

MISSED_PASSES = 3
"""The operator is not alive when this many resyncs went by and not every fleet was looked at."""


async def serve_health(
    settings: OperatorSettings, metrics: OperatorMetrics, passed: Callable[[], float]
) -> web.AppRunner:
    """Start serving; `passed` gives the monotonic time of the last full pass."""

    async def livez(_: web.Request) -> web.Response:
        age = time.monotonic() - passed()
        limit = MISSED_PASSES * max(settings.resync_seconds, 1.0) + 30.0
        if age > limit:
            return web.Response(status=503, text=f"the last full pass ended {age:.0f} s ago\n")
        return web.Response(text="ok\n")

    async def metrics_page(_: web.Request) -> web.Response:
        body = generate_latest(metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/metrics", metrics_page)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, settings.health_host, settings.health_port).start()
    return runner
