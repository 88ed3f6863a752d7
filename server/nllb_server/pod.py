"""The state of one server process: loading, ready, draining; what its routes answer from.

Knows the parts of the process and when it is ready. Must not know HTTP.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from nllb_engine.async_engine import AsyncEngine
from nllb_server.adapter_manager import AdapterManager
from nllb_server.metrics import ServerMetrics
from nllb_server.problems import unavailable
from nllb_server.settings import ServerSettings
from nllb_server.translator import Translator
from nllb_server.wire import Inventory, ModelInfo, Readiness


@dataclass(frozen=True)
class Serving:
    """What exists once the model is loaded. `languages` in the order of their ids."""

    model_name: str
    device: str
    dtype: str
    languages: list[str]
    engine: AsyncEngine
    translator: Translator


class Pod:
    """Invariant: once ready, a pod is never unready again but for its end."""

    def __init__(
        self,
        settings: ServerSettings,
        manager: AdapterManager,
        metrics: ServerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A pod that is still loading its model."""
        self.settings = settings
        self.manager = manager
        self.metrics = metrics
        self.boot_id = uuid.uuid4().hex
        self.started = int(time.time())
        self.operator_called = False
        self.draining = False
        self.closing = False
        self.in_flight = 0
        self._clock = clock
        self._serving: Serving | None = None
        self._ready_deadline = 0.0
        self._was_ready = False
        metrics.watch(self._gauges)

    @property
    def serving(self) -> Serving:
        """The loaded model; ApiError 503 while there is none, or no more requests are taken."""
        if self.closing:
            raise unavailable("draining", "this pod is shutting down; retry, another one will answer")
        if self._serving is None:
            raise unavailable("model_loading", "the model is being loaded; retry when /readyz answers 200", 5)
        return self._serving

    @property
    def loaded(self) -> bool:
        """Whether the model is there."""
        return self._serving is not None

    @property
    def live(self) -> bool:
        """Whether this process can still do its work; False: replace it."""
        return self._serving is None or self._serving.engine.alive

    def start_serving(self, serving: Serving) -> None:
        """The model is loaded; the deadline of readiness runs from now."""
        self._serving = serving
        self._ready_deadline = self._clock() + self.settings.ready_deadline_seconds

    def readiness(self) -> Readiness:
        """Ready: model loaded, and every required adapter on disk or waited for long enough."""
        missing = self.manager.missing_required()
        if self.draining:
            return Readiness(ready=False, reason="Draining", missing=missing)
        if self._serving is None:
            return Readiness(ready=False, reason="LoadingModel", missing=missing)
        if not missing or self._clock() >= self._ready_deadline:
            self._was_ready = True
        if self._was_ready:
            return Readiness(ready=True, reason="Ready", missing=missing)
        return Readiness(ready=False, reason="AwaitingAdapters", missing=missing)

    def inventory(self) -> Inventory:
        """Everything the operator is told about this pod."""
        serving = self._serving
        return Inventory(
            boot_id=self.boot_id,
            pod=self.settings.pod_name,
            pod_uid=self.settings.pod_uid,
            fleet=self.settings.fleet,
            revision=self.manager.revision,
            model=ModelInfo(
                uri=self.settings.model_uri,
                loaded=serving is not None,
                device=serving.device if serving else None,
                dtype=serving.dtype if serving else None,
            ),
            ready=self.readiness().ready,
            draining=self.draining,
            adapters=self.manager.inventory(),
            stored=self.manager.stored,
            promote_calls=self.manager.promote_calls,
        )

    def _gauges(self) -> dict[str, float]:
        gauges = {
            "nllb_ready": float(self.readiness().ready),
            "nllb_draining": float(self.draining),
            **self.manager.gauges(),
        }
        if self._serving is not None:
            load = self._serving.engine.load
            gauges |= {
                "nllb_queue_requests": load.waiting_requests,
                "nllb_queue_tokens": load.waiting_tokens,
                "nllb_batch_rows": load.rows,
                "nllb_batch_rows_limit": load.max_rows,
                "nllb_engine_steps_total": load.steps_total,
                "nllb_engine_rows_total": load.rows_total,
                "nllb_output_tokens_total": load.tokens_total,
            }
        return gauges
