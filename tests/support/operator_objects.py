"""Resources, pods and inventories for tests of the operator, valid unless a test says otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nllb_operator.backends.base import PodView
from nllb_operator.naming import API_VERSION, LORA_ADAPTER, NLLB_DEPLOYMENT
from nllb_operator.resources import NllbDeployment
from nllb_operator.wanted import AdapterView, resolve_adapters
from nllb_server.wire import AdapterProblem, Inventory, InventoryAdapter, ModelInfo

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Objects:
    """Names and uids are numbered."""

    numbers: Iterator[int]

    def deployment_body(self, **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": API_VERSION,
            "kind": NLLB_DEPLOYMENT,
            "metadata": {"name": "fleet", "namespace": "default", "uid": "fleet-uid", "generation": 1},
            "spec": {
                "model": {"uri": "pvc://models/tiny-nllb"},
                "volumes": [{"name": "models", "claimName": "models"}],
                "image": "server:1",
                **spec,
            },
        }

    def deployment(self, **spec: Any) -> NllbDeployment:
        return NllbDeployment.from_body(self.deployment_body(**spec))

    def adapter_body(
        self, name: str = "", *, status: Any = None, age: int = 0, **spec: Any
    ) -> dict[str, Any]:
        """`age`: minutes; the larger, the older."""
        name = name or f"adapter-{next(self.numbers)}"
        source = spec.pop("source", {"uri": f"pvc://models/{name}", "sha256": digest_of(name)})
        created = NOW - timedelta(minutes=age)
        return {
            "apiVersion": API_VERSION,
            "kind": LORA_ADAPTER,
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-of-{name}",
                "generation": 1,
                "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
            "spec": {"deploymentRef": {"name": "fleet"}, "source": source, **spec},
            **({"status": status} if status is not None else {}),
        }

    def views(self, *bodies: dict[str, Any], **spec: Any) -> list[AdapterView]:
        return resolve_adapters(self.deployment(**spec), bodies, allow_file_uris=False)

    def view(self, name: str = "", **options: Any) -> AdapterView:
        return self.views(self.adapter_body(name, **options))[0]

    def pod(self, **values: Any) -> PodView:
        name = values.pop("name", f"pod-{next(self.numbers)}")
        defaults: dict[str, Any] = {
            "uid": f"uid-of-{name}",
            "phase": "Running",
            "ready": True,
            "deleting": False,
            "template_hash": "current",
            "control_addr": f"{name}:8001",
        }
        return PodView(name=name, **{**defaults, **values})

    def inventory(self, pod: str = "pod", *entries: InventoryAdapter, **values: Any) -> Inventory:
        stored = [entry.digest for entry in entries if entry.state in ("Stored", "Loaded") and entry.digest]
        defaults: dict[str, Any] = {
            "boot_id": "boot",
            "pod": pod,
            "pod_uid": f"uid-of-{pod}",
            "fleet": "fleet",
            "revision": 1,
            "model": ModelInfo(uri="pvc://models/tiny-nllb", loaded=True),
            "ready": True,
            "draining": False,
            "adapters": list(entries),
            "stored": stored,
        }
        return Inventory(**{**defaults, **values})

    def entry(self, view: AdapterView, state: str, **values: Any) -> InventoryAdapter:
        """A pod's entry about the wanted version of a view."""
        version = view.wanted
        defaults: dict[str, Any] = {
            "name": view.adapter.served_name,
            "uid": version.uid,
            "generation": version.generation,
            "digest": version.digest,
            "bytes": 1000,
            "rank": 4,
        }
        return InventoryAdapter(state=state, **{**defaults, **values})  # type: ignore[arg-type]

    def failed(self, view: AdapterView, fault: str, reason: str = "Broken") -> InventoryAdapter:
        problem = AdapterProblem(reason=reason, message=f"it is {reason}", fault=fault)  # type: ignore[arg-type]
        return self.entry(view, "Failed", error=problem)
