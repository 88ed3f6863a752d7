"""A fleet whose pods are real servers: adapters travel, pods come and go, versions are swapped under load."""

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import OperatorProcess, Program, fetch, until
from kube_fleet import KubeFleet

from nllb_engine.lora.digest import folder_digest
from nllb_engine.testing import read_recording
from nllb_server.wire import Inventory, InventoryAdapter

SENTENCE = "Do you see the old house?"


def entries(inventories: dict[str, Inventory], name: str) -> list[InventoryAdapter]:
    return [entry for one in inventories.values() for entry in one.adapters if entry.name == name]


def sources(fleet: KubeFleet, name: str) -> Counter[str | None]:
    return Counter(entry.source for entry in entries(fleet.inventories(), name))


@pytest.fixture
def adapter(served: KubeFleet) -> Iterator[str]:
    """Applies nothing yet; what the test makes of that name is deleted afterwards."""
    yield "extra"
    served.kubectl("delete", "lora", "extra", "--ignore-not-found", "--wait=false")


def test_the_scheduler_gave_each_pod_a_gpu_of_a_node(served: KubeFleet) -> None:
    for pod in served.pods():
        assert pod["spec"]["nodeName"].startswith("process-node-")
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_each_pod_translates_and_names_the_adapter_that_did_it(served: KubeFleet, models: Path) -> None:
    digest = folder_digest(models / "adapters" / "formal")
    for pod in served.pods():
        plain = served.translate(pod, SENTENCE)
        formal = served.translate(pod, SENTENCE, adapter="formal")

        assert plain["adapter"] is None
        assert formal["adapter"] == {"name": "formal", "digest": digest}
        assert plain["translations"][0]["text"] != formal["translations"][0]["text"]
        assert formal["pod"] == pod["metadata"]["name"]


def test_one_pod_asked_the_origin_and_every_peer_transfer_was_one_call_of_the_model(
    served: KubeFleet, recordings: Path
) -> None:
    assert sources(served, "formal") == {"origin": 1, "peer": 1}

    for name, inventory in served.inventories().items():
        calls = [
            call
            for file in recordings.glob(f"{name}.*.jsonl")
            for call in read_recording(file).peer_promotions
        ]
        by_peer = [entry for entry in inventory.adapters if entry.source == "peer"]
        assert len(calls) == len(by_peer) == inventory.promote_calls
        assert [call[1] for call in calls] == [entry.digest for entry in by_peer]


def test_the_columns_tell_the_story(served: KubeFleet, models: Path) -> None:
    digest = folder_digest(models / "adapters" / "formal")
    lora = served.kubectl("get", "lora", "formal", "--no-headers").split()
    nllb = served.kubectl("get", "nllb", "fleet", "--no-headers").split()

    assert lora[:-1] == ["formal", "fleet", digest[:12], "2", "2", "1", "1", "Resident"]
    assert nllb[:-1] == ["fleet", "2", "2", "2", "1", "AllPodsReady"]


def test_an_adapter_with_a_digest_is_everywhere_in_seconds(
    served: KubeFleet, adapter: str, models: Path
) -> None:
    source = {"uri": "pvc://models/adapters/one", "sha256": folder_digest(models / "adapters" / "one")}
    began = time.monotonic()
    served.apply(served.adapter(adapter, source=source))
    served.wait(f"lora/{adapter}")
    took = time.monotonic() - began

    assert sources(served, adapter) == {"origin": 1, "peer": 1}
    assert served.get(f"lora/{adapter}")["status"]["digestSource"] == "Spec"
    assert took < 8, f"{took:.1f} s"

    served.kubectl("delete", "lora", adapter, "--timeout=5s")
    until(lambda: not entries(served.inventories(), adapter), what="unloaded from every pod")
    for pod in served.pods():
        assert served.translate(pod, SENTENCE, adapter=adapter)["error"]["code"] == "unknown_adapter"


def test_a_new_version_is_swapped_in_under_load_and_each_answer_names_its_digest(
    served: KubeFleet, adapter: str, models: Path
) -> None:
    served.apply(served.adapter(adapter, "one"))
    served.wait(f"lora/{adapter}")
    digests = [folder_digest(models / "adapters" / name) for name in ("one", "two")]
    answers: list[dict[str, Any]] = []
    stop = threading.Event()

    def load(pod: dict[str, Any]) -> None:
        while not stop.is_set():
            answers.append(served.translate(pod, SENTENCE, adapter=adapter, max_new_tokens=12))

    threads = [threading.Thread(target=load, args=(pod,)) for pod in served.pods()]
    for thread in threads:
        thread.start()
    try:
        began = time.monotonic()
        served.apply(served.adapter(adapter, "two"))
        served.wait(f"lora/{adapter}")
        took = time.monotonic() - began
        swapped = len(answers)
        until(lambda: len(answers) > swapped + 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    failed = [answer for answer in answers if "error" in answer]
    assert not failed
    by_digest: dict[str, set[str]] = {}
    for answer in answers:
        by_digest.setdefault(answer["adapter"]["digest"], set()).add(answer["translations"][0]["text"])
    assert set(by_digest) == set(digests)
    assert all(len(texts) == 1 for texts in by_digest.values()), "a digest answers always the same"
    last = {answer["adapter"]["digest"] for answer in answers[-10:]}
    assert last == {digests[1]}
    assert took < 8, f"{took:.1f} s"


def test_content_that_differs_from_its_digest_is_refused_and_heals_when_mended(
    served: KubeFleet, adapter: str, models: Path
) -> None:
    wrong = {"uri": "pvc://models/adapters/one", "sha256": "0" * 64}
    served.apply(served.adapter(adapter, source=wrong))

    condition = served.until_reason(f"lora/{adapter}", "DigestMismatch")

    assert served.condition(f"lora/{adapter}", "Progressing")["status"] == "False"
    assert len(served.get(f"lora/{adapter}")["status"]["exceptions"]) == 1, "one pod tried, no other"
    assert condition["message"]
    assert served.condition("nllb/fleet")["status"] == "True", "the fleet is none the worse"

    mended = {**wrong, "sha256": folder_digest(models / "adapters" / "one")}
    served.apply(served.adapter(adapter, source=mended))
    served.wait(f"lora/{adapter}")


def test_a_folder_that_is_missing_is_told_and_found_when_it_comes(
    served: KubeFleet, adapter: str, models: Path
) -> None:
    served.apply(served.adapter(adapter, "late"))
    condition = until(
        lambda: (
            (found := served.condition(f"lora/{adapter}")).get("reason") not in (None, "Spreading") and found
        )
    )
    assert "late" in condition["message"]

    shutil.copytree(models / "adapters" / "two", models / "adapters" / "late")
    try:
        served.wait(f"lora/{adapter}")
    finally:
        shutil.rmtree(models / "adapters" / "late")


def test_an_operator_that_was_killed_finds_everything_as_it_was(
    served: KubeFleet, operator: OperatorProcess
) -> None:
    before = served.inventories()
    operator.stop(signal.SIGKILL)
    for pod in served.pods():
        assert "error" not in served.translate(pod, SENTENCE, adapter="formal"), "pods serve without it"

    operator.start()

    served.wait("nllb/fleet", "lora/formal")
    after = served.inventories()
    assert {name: one.boot_id for name, one in after.items()} == {
        name: one.boot_id for name, one in before.items()
    }
    assert {name: one.promote_calls for name, one in after.items()} == {
        name: one.promote_calls for name, one in before.items()
    }


def test_a_process_that_dies_comes_back_with_its_adapter_before_it_is_ready(
    served: KubeFleet, nodes: Program
) -> None:
    victim = served.pods()[0]
    name = victim["metadata"]["name"]
    old = served.inventories()[name].boot_id
    control = f"http://{victim['status']['podIP']}:8001"
    kill_server(nodes, name)

    until(lambda: served.inventories()[name].boot_id != old, what="it runs again")
    until(lambda: is_ready(served, name), 40)

    inventory = Inventory.model_validate(fetch(f"{control}/control/v1/inventory"))
    (entry,) = (one for one in inventory.adapters if one.name == "formal")
    assert (entry.state in ("Stored", "Loaded"), entry.source) == (True, "disk")
    served.wait("nllb/fleet", "lora/formal")


def kill_server(nodes: Program, pod: str) -> None:
    """SIGKILL the process of a pod."""
    (file,) = (nodes.log.parent / "pods").glob(f"*/{pod}/pid")
    os.kill(int(file.read_text().split()[0]), signal.SIGKILL)


def is_ready(fleet: KubeFleet, pod: str) -> bool:
    conditions = fleet.get(f"pod/{pod}")["status"]["conditions"]
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def test_a_fleet_at_rest_writes_nothing_to_the_api_server(served: KubeFleet) -> None:
    served.wait("nllb/fleet", "lora/formal")
    time.sleep(3)
    before = served.kube.audit()
    time.sleep(12)  # more than one resync
    news = served.kube.audit()[len(before) :]

    assert len(operator_writes(before)) > 10, "the audit log knows the operator by its name"
    assert operator_writes(news) == []
    assert not [item for item in news if "kopf" in item["userAgent"] and item["verb"] not in READS]


READS = ("get", "list", "watch")


def operator_writes(audit: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (item["verb"], item["requestURI"])
        for item in audit
        if item["verb"] not in READS and item.get("userAgent") == "nllb-operator"
    ]


def test_two_to_three_to_one_and_the_new_pod_has_its_adapter_from_a_peer_before_it_is_ready(
    served: KubeFleet,
) -> None:
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
        until(lambda: is_ready(served, new), 60)
        (entry,) = (one for one in served.inventories()[new].adapters if one.name == "formal")
        assert (entry.state in ("Stored", "Loaded"), entry.source) == (True, "peer")
        served.wait("nllb/fleet", "lora/formal")
    finally:
        stop.set()
        watcher.join()
    assert set(adapter_ready) == {"True"}, "a scale-out takes nothing away from those that serve"

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
