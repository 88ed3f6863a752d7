"""Every kopf decorator of the project. kopf watches; this module hands what it sees to the backend.

Knows kopf. Must not decide anything. Only `on.event`, `startup`, `cleanup` and `login` are used: no change
handlers, timers or daemons, hence no finalizers, no annotations and no writes by kopf.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass, field
from typing import Any

import kopf
from aiohttp import web

from nllb_operator.backends.base import BackendUnavailable
from nllb_operator.backends.kubernetes.api import ApiServer
from nllb_operator.backends.kubernetes.backend import KubernetesBackend
from nllb_operator.controller import Controller
from nllb_operator.health import serve_health
from nllb_operator.metrics import OperatorMetrics
from nllb_operator.naming import API_VERSION, DEPLOYMENT_LABEL, GROUP, VERSION
from nllb_operator.settings import OperatorSettings

log = logging.getLogger(__name__)


@dataclass
class Operator:
    """What lives as long as the process; kopf passes it to every handler as `memo`."""

    settings: OperatorSettings
    stop: asyncio.Event
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    failed: bool = False
    api: ApiServer | None = None
    backend: KubernetesBackend | None = None
    health: web.AppRunner | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def ended(self, task: asyncio.Task[None]) -> None:
        """A task that should run for ever has not: stop the process, so that it is started anew."""
        if task.cancelled():
            return
        log.critical("%s ended", task.get_name(), exc_info=task.exception())
        self.failed = True
        self.stop.set()


CHILDREN = (
    ("apps", "v1", "replicasets"),
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
    ("", "v1", "serviceaccounts"),
    ("policy", "v1", "poddisruptionbudgets"),
)


@kopf.on.login()
async def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
    """The pod's ServiceAccount, else KUBECONFIG; without the large synchronous client."""
    return kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Configure kopf, list everything once, then start the controller."""
    configure(settings)
    memo.api = await ApiServer.connect(memo.metrics)
    memo.backend = KubernetesBackend(memo.api, memo.settings.namespaces)
    await _first_list(memo.backend)
    controller = Controller(memo.backend, memo.settings, memo.metrics)
    memo.health = await serve_health(memo.settings, memo.metrics, lambda: controller.passed)
    for name, work in (("controller", controller.run()), ("refresh", memo.backend.keep_fresh())):
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(memo.ended)
        memo.tasks.append(task)


@kopf.on.cleanup()
async def stop(memo: Operator, **_: Any) -> None:
    """End the tasks and close what they used; nothing needs to be handed over."""
    for task in memo.tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*memo.tasks, return_exceptions=True)
    if memo.health is not None:
        await memo.health.cleanup()
    if memo.api is not None:
        await memo.api.close()
    memo.stop.set()  # kopf waits five seconds for whoever still waits for this


def configure(settings: kopf.OperatorSettings) -> None:
    """Deadlines that notice dead connections, label filters at the server, no events of kopf's own."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # the first list found the CRDs; no right to read them is needed
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 1
    settings.networking.request_timeout = 30
    settings.process.ultimate_exiting_timeout = 25
    for group, version, plural in CHILDREN:
        settings.watching.label_selectors[group, version, plural] = DEPLOYMENT_LABEL


async def _first_list(backend: KubernetesBackend) -> None:
    """List everything before the first write; the API server may still be on its way."""
    pause = 1.0
    while True:
        try:
            return await backend.refresh()
        except BackendUnavailable as error:
            log.warning("cannot list the objects of %s yet: %s", API_VERSION, error)
            await asyncio.sleep(pause + random.random())
            pause = min(2 * pause, 30.0)


async def seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """An object has changed, or is there at the start of a watch."""
    if memo.backend is not None:
        memo.backend.saw(event["type"], dict(event["object"]))


for _group, _version, _plural in (
    (GROUP, VERSION, "nllbdeployments"),
    (GROUP, VERSION, "loraadapters"),
    *CHILDREN,
):
    kopf.on.event(_group, _version, _plural)(seen)
