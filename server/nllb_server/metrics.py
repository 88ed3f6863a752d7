"""Every metric of the server, declared in one place.

Knows names, labels and buckets. Must not know who counts; labels never hold text, languages or request ids.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ServerMetrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        """Declare them all, so that each shows up as 0 before its first event."""
        # They double the series and say what a restart shows anyway.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "nllb_requests", "HTTP requests by route and status", ["route", "code"], registry=self.registry
        )
        self.seconds = Histogram(
            "nllb_request_seconds",
            "From the first byte of a request's head to its reply",
            ["route"],
            buckets=_LATENCY,
            registry=self.registry,
        )
        self.texts = Counter("nllb_texts", "Texts translated", registry=self.registry)
        self.source_tokens = Counter("nllb_source_tokens", "Source tokens accepted", registry=self.registry)
        self.promotions = Counter(
            "nllb_promotions",
            "Adapters brought to this pod or into a slot, by source and result",
            ["source", "result"],
            registry=self.registry,
        )
        self.promotion_seconds = Histogram(
            "nllb_promotion_seconds",
            "Fetch, check and load of an adapter, by source",
            ["source"],
            buckets=_LATENCY,
            registry=self.registry,
        )
        for source in ("origin", "peer", "disk"):
            self.promotion_seconds.labels(source)
            for result in ("ok", "failed"):
                self.promotions.labels(source, result)

    def watch(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        """Ask `gauges` at each scrape; see `_HELP` for the names."""
        self.registry.register(_Scrape(gauges))

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)


_HELP = {
    "nllb_ready": "1 when /readyz answers 200",
    "nllb_draining": "1 after SIGTERM",
    "nllb_queue_requests": "Texts waiting for rows of the batch",
    "nllb_queue_tokens": "Source tokens waiting for rows of the batch",
    "nllb_batch_rows": "Rows of the batch in use",
    "nllb_batch_rows_limit": "Rows of the batch",
    "nllb_engine_steps_total": "Decode steps",
    "nllb_engine_rows_total": "Rows decoded in all steps; over steps and limit it is the batch's fill",
    "nllb_output_tokens_total": "Tokens given out",
    "nllb_adapters_wanted": "Adapters this pod is to hold",
    "nllb_adapters_stored": "Adapters verified on disk",
    "nllb_adapters_loaded": "Adapters in a slot",
    "nllb_adapter_refs": "References of requests on adapter slots",
}


class _Scrape(Collector):
    """Values that live elsewhere and are read when asked for."""

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """One family per name."""
        for name, value in self._gauges().items():
            if name.endswith("_total"):
                yield CounterMetricFamily(name.removesuffix("_total"), _HELP[name], value=value)
            else:
                yield GaugeMetricFamily(name, _HELP[name], value=value)
