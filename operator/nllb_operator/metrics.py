"""The operator's Prometheus metrics, declared in one place.

Knows names and labels. Must not know who counts.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """Every metric of one operator, in a registry of its own."""

    def __init__(self) -> None:
        """All at zero."""
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "nllb_operator_reconciles",
            "Looks at a fleet, by result (ok, unavailable, error).",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "nllb_operator_reconcile_seconds", "How long a look at a fleet took.", registry=self.registry
        )
        self.queue_depth = Gauge(
            "nllb_operator_queue_depth", "Fleets that wait for a look.", registry=self.registry
        )
        self.api_writes = Counter(
            "nllb_operator_api_writes",
            "Requests that may change something at the API server, by verb and kind.",
            ["verb", "kind"],
            registry=self.registry,
        )
