"""A fleet that grows, shrinks and is rolled: a pod has its adapter from a peer before it takes requests."""

import threading
import time

from kube_cluster import fetch, until
from kube_fleet import KubeFleet

from nllb_server.wire import INVENTORY_PATH, Inventory, InventoryAdapter

SENTENCE = "Were you black?"


def inventory_or_none(fleet: KubeFleet, pod: str) -> Inventory | None:
    """What a pod says it holds; None while it starts."""
    address = fleet.get(f"pod/{pod}").get("status", {}).get("podIP")
    try:
        return Inventory.model_validate(fetch(f"http://{address}:8001{INVENTORY_PATH}")) if address else None
    except OSError:
        return None


def held(inventory: Inventory, name: str) -> InventoryAdapter | None:
    """The adapter, if the pod can serve it."""
    entries = (one for one in inventory.adapters if one.name == name and one.state in ("Stored", "Loaded"))
    return next(entries, None)


def watch_it_start(fleet: KubeFleet, pod: str, adapter: str, seconds: float = 60) -> list[Inventory]:
    """Every inventory seen until the pod is Ready; none of them may say ready without the adapter."""
    seen: list[Inventory] = []
    limit = time.monotonic() + seconds
    while not (seen and seen[-1].ready and fleet.is_ready(pod)):
        assert time.monotonic() < limit, f"{pod} is not Ready after {seconds} s: {seen[-1:]}"
        inventory = inventory_or_none(fleet, pod)
        if inventory is not None:
            seen.append(inventory)
            assert not inventory.ready or held(inventory, adapter), "ready without the adapter"
        time.sleep(0.05)
    return seen


def test_a_third_pod_has_its_adapter_from_a_peer_before_it_is_ready(served: KubeFleet) -> None:
    before = {pod["metadata"]["name"] for pod in served.pods()}
    adapter_ready: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            adapter_ready.append(served.condition("lora/formal")["status"])
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        served.kubectl("scale", "nllb/fleet", "--replicas=3")
        new = until(lambda: next(iter({pod["metadata"]["name"] for pod in served.pods()} - before), None))
        entry = held(watch_it_start(served, new, "formal")[-1], "formal")
        assert entry is not None
        assert entry.source == "peer"
        served.wait("nllb/fleet", "lora/formal")
    finally:
        stop.set()
        watcher.join()
    assert set(adapter_ready) == {"True"}, "a scale-out takes nothing away from those that serve"
    assert served.sources("formal") == {"origin": 1, "peer": 2}


def test_of_three_pods_one_asks_the_origin_and_two_ask_peers(served: KubeFleet) -> None:
    served.apply(served.adapter("extra", "formal-v2"))
    served.wait("lora/extra")

    assert len(served.pods()) == 3
    assert served.sources("extra") == {"origin": 1, "peer": 2}
    served.kubectl("delete", "lora", "extra", "--timeout=5s")


def test_one_pod_of_three_is_left_and_serves_the_adapter(served: KubeFleet) -> None:
    served.kubectl("scale", "nllb/fleet", "--replicas=1")
    until(lambda: len(served.pods()) == 1, 30)
    served.wait("nllb/fleet", "lora/formal")
    assert served.get("lora/formal")["status"]["readyReplicas"] == 1
    assert "error" not in served.translate(served.pods()[0], SENTENCE, adapter="formal")


def test_a_change_of_the_pods_rolls_them_and_the_adapter_comes_along(served: KubeFleet) -> None:
    (old,) = served.pods()
    spec = {"replicas": 1, "podAnnotations": {"version": "two"}}
    served.apply(served.deployment(**spec))
    served.wait("nllb/fleet", seconds=60)

    (new,) = until(lambda: len(served.pods()) == 1 and served.pods())
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert new["metadata"]["annotations"]["version"] == "two"
    served.wait("lora/formal")
    assert len(served.get("rs")["items"]) == 1
