"""A fleet whose pods are real servers: adapters travel, and versions are swapped under load."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_grammar
from kube_cluster import OperatorProcess, Program, fetch, until
from kube_fleet import KubeFleet, read_pod

from nllb_engine.lora.digest import folder_digest
from nllb_engine.testing import INTERFACE_METHODS
from nllb_server.wire import Inventory

SENTENCE = "Were you black?"
END_TOKEN = 2


@pytest.fixture
def adapter(served: KubeFleet) -> Iterator[str]:
    """Applies nothing yet; what the test makes of that name is deleted afterwards."""
    yield "extra"
    served.kubectl("delete", "lora", "extra", "--ignore-not-found", "--wait=false")


def test_the_scheduler_gave_each_pod_a_gpu_of_a_node(served: KubeFleet) -> None:
    for pod in served.pods():
        assert pod["spec"]["nodeName"].startswith("process-node-")
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def right(adapter: str | None) -> str:
    return tiny_grammar.expected(SENTENCE, "deu_Latn", adapter)


def came_from(outputs: set[tuple[int, ...]], answer: dict[str, Any], num_beams: int = 1) -> bool:
    """Whether the token ids of an answer left the model; a greedy row is recorded with its end token."""
    (one,) = answer["translations"]
    assert one["token_ids"]
    assert one["finish_reason"] == "stop"
    ids = tuple(one["token_ids"])
    return (ids if num_beams > 1 else (*ids, END_TOKEN)) in outputs


@pytest.mark.parametrize("num_beams", [1, 4])
def test_each_pod_translates_with_tokens_of_its_model_and_names_the_adapter_that_did_it(
    served: KubeFleet, models: Path, recordings: Path, num_beams: int
) -> None:
    digest = folder_digest(models / "adapters" / "formal")
    options = {"num_beams": num_beams, "return_tokens": True}
    assert right(None) != right("formal-v1")
    for pod in served.pods():
        name = pod["metadata"]["name"]
        plain = served.translate(pod, SENTENCE, **options)
        formal = served.translate(pod, SENTENCE, adapter="formal", **options)

        assert plain["adapter"] is None
        assert formal["adapter"] == {"name": "formal", "digest": digest}
        assert plain["translations"][0]["text"] == right(None)
        assert formal["translations"][0]["text"] == right("formal-v1")
        assert (plain["pod"], formal["pod"]) == (name, name)

        recording = read_pod(recordings, name)
        assert came_from(recording.outputs, plain, num_beams)
        assert came_from(recording.outputs, formal, num_beams)
        step = "decode_batch" if num_beams == 1 else "beam_step"
        assert {step} < recording.methods <= INTERFACE_METHODS


def test_one_pod_asked_the_origin_and_every_peer_transfer_was_one_call_of_the_model(
    served: KubeFleet, recordings: Path
) -> None:
    assert served.sources("formal") == {"origin": 1, "peer": 1}

    for name, inventory in served.inventories().items():
        calls = read_pod(recordings, name).peer_promotions
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

    assert served.sources(adapter) == {"origin": 1, "peer": 1}
    assert served.get(f"lora/{adapter}")["status"]["digestSource"] == "Spec"
    assert took < 8, f"{took:.1f} s"

    served.kubectl("delete", "lora", adapter, "--timeout=5s")
    until(lambda: not served.entries(adapter), what="unloaded from every pod")
    for pod in served.pods():
        assert served.translate(pod, SENTENCE, adapter=adapter)["error"]["code"] == "unknown_adapter"


def test_a_new_version_is_swapped_in_under_load_and_each_answer_names_its_digest(
    served: KubeFleet, adapter: str, models: Path, recordings: Path
) -> None:
    served.apply(served.adapter(adapter, "formal"))
    served.wait(f"lora/{adapter}")
    digests = [folder_digest(models / "adapters" / name) for name in ("formal", "formal-v2")]
    answers: list[dict[str, Any]] = []
    stop = threading.Event()

    def load(pod: dict[str, Any]) -> None:
        while not stop.is_set():
            answers.append(served.translate(pod, SENTENCE, adapter=adapter, return_tokens=True))

    threads = [threading.Thread(target=load, args=(pod,)) for pod in served.pods()]
    for thread in threads:
        thread.start()
    try:
        began = time.monotonic()
        served.apply(served.adapter(adapter, "formal-v2"))
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
    text_of = dict(zip(digests, (right("formal-v1"), right("formal-v2")), strict=True))
    assert len(set(text_of.values())) == 2, "the versions can be told apart by what they say"
    assert {answer["adapter"]["digest"] for answer in answers} == set(digests)
    for answer in answers:
        assert answer["translations"][0]["text"] == text_of[answer["adapter"]["digest"]]
    made = {name: read_pod(recordings, name) for name in {answer["pod"] for answer in answers}}
    assert all(came_from(made[answer["pod"]].outputs, answer) for answer in answers)
    assert len(made) == 2
    assert all(one.methods <= INTERFACE_METHODS for one in made.values())
    assert served.sources(adapter) == {"origin": 1, "peer": 1}
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
    until(lambda: served.is_ready(name), 40)

    inventory = Inventory.model_validate(fetch(f"{control}/control/v1/inventory"))
    (entry,) = (one for one in inventory.adapters if one.name == "formal")
    assert (entry.state in ("Stored", "Loaded"), entry.source) == (True, "disk")
    served.wait("nllb/fleet", "lora/formal")


def kill_server(nodes: Program, pod: str) -> None:
    """SIGKILL the process of a pod."""
    (file,) = (nodes.log.parent / "pods").glob(f"*/{pod}/pid")
    os.kill(int(file.read_text().split()[0]), signal.SIGKILL)


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
