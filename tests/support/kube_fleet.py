"""A fleet on the tests' API server: what a user does with kubectl, and what its pods say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_cluster import Kube, fetch, post, until

from nllb_engine.testing import Recording, read_recording
from nllb_operator.naming import API_VERSION, DEPLOYMENT_LABEL, LORA_ADAPTER, NLLB_DEPLOYMENT
from nllb_server.wire import INVENTORY_PATH, TRANSLATE_PATH, Inventory, InventoryAdapter


def read_pod(recordings: Path, pod: str) -> Recording:
    """What the model of a pod did, over all processes of that pod."""
    whole = Recording()
    for file in recordings.glob(f"{pod}.*.jsonl"):
        one = read_recording(file)
        whole.outputs |= one.outputs
        whole.methods |= one.methods
        whole.peer_promotions += one.peer_promotions
        whole.failed_promotions += one.failed_promotions
    return whole


@dataclass
class KubeFleet:
    """The NllbDeployment `name` of a namespace."""

    kube: Kube
    namespace: str
    name: str = "fleet"

    def deployment(self, **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": API_VERSION,
            "kind": NLLB_DEPLOYMENT,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "model": {"uri": "pvc://models/tiny-nllb"},
                "volumes": [{"name": "models", "claimName": "models"}],
                "image": "nllb-fleet-server:test",
                "engine": {"device": "cpu", "cpuThreads": 1},
                "adapters": {"slots": 4, "maxRank": 16},
                "drainSeconds": 10,
                **spec,
            },
        }

    def adapter(self, name: str, folder: str = "", **spec: Any) -> dict[str, Any]:
        source = spec.pop("source", {"uri": f"pvc://models/adapters/{folder or name}"})
        return {
            "apiVersion": API_VERSION,
            "kind": LORA_ADAPTER,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"deploymentRef": {"name": self.name}, "source": source, **spec},
        }

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kube.apply(*objects)

    def kubectl(self, *words: str) -> str:
        return self.kube.kubectl("-n", self.namespace, *words)

    def get(self, *words: str) -> Any:
        return self.kube.get("-n", self.namespace, *words)

    def wait(self, *objects: str, seconds: int = 60) -> None:
        """`kubectl wait` until they are Ready; what they say if they are not."""
        try:
            self.kube.kubectl(
                "-n", self.namespace, "wait", "--for=condition=Ready", *objects,
                f"--timeout={seconds}s", timeout=seconds + 20,
            )  # fmt: skip
        except Exception as error:
            state = self.kubectl("get", "nllb,lora,pods", "-o", "wide")
            raise AssertionError(f"{objects} did not become Ready:\n{state}") from error

    def condition(self, what: str, kind: str = "Ready") -> dict[str, Any]:
        """The condition of an object, for its present generation; empty while there is none."""
        body = self.get(what)
        for condition in body.get("status", {}).get("conditions", ()):
            current = condition["observedGeneration"] == body["metadata"]["generation"]
            if condition["type"] == kind and current:
                found: dict[str, Any] = condition
                return found
        return {}

    def until_reason(self, what: str, reason: str, seconds: float = 30) -> dict[str, Any]:
        """The Ready condition when it has this reason."""

        def wish() -> dict[str, Any]:
            condition = self.condition(what)
            assert condition.get("reason") == reason, condition
            return condition

        return until(wish, seconds, f"{what}: {reason}")

    def pods(self) -> list[dict[str, Any]]:
        """Pods that are not on their way out."""
        items = self.get("pods", "-l", f"{DEPLOYMENT_LABEL}={self.name}")["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def inventories(self) -> dict[str, Inventory]:
        """What each pod holds, by its name."""
        return {
            pod["metadata"]["name"]: Inventory.model_validate(
                fetch(f"http://{pod['status']['podIP']}:8001{INVENTORY_PATH}")
            )
            for pod in self.pods()
        }

    def entries(self, name: str) -> list[InventoryAdapter]:
        """What each pod that knows the adapter says of it."""
        return [entry for one in self.inventories().values() for entry in one.adapters if entry.name == name]

    def sources(self, name: str) -> Counter[str | None]:
        """How many pods had the adapter from where."""
        return Counter(entry.source for entry in self.entries(name))

    def is_ready(self, pod: str) -> bool:
        conditions = self.get(f"pod/{pod}").get("status", {}).get("conditions", ())
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def translate(self, pod: dict[str, Any], text: str, **options: Any) -> Any:
        """The answer of one pod."""
        body = {"text": text, "source": "eng_Latn", "target": "deu_Latn", **options}
        return post(f"http://{pod['status']['podIP']}:8000{TRANSLATE_PATH}", body)
