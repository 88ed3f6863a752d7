"""ReplicaSets and Services of the local backend, with real processes and real connections."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from nllb_operator import machine
from nllb_operator.backends.base import ObjectConflict, ObjectRef
from nllb_operator.backends.local.backend import LocalBackend
from nllb_operator.backends.local.services import endpoint_of
from nllb_operator.backends.local.store import Key
from nllb_operator.backends.local.workloads import LocalMachine, is_ready
from nllb_operator.naming import DELETION_COST_ANNOTATION

SMALL_POD = (sys.executable, str(Path(__file__).with_name("small_pod.py")))
SET = Key("ReplicaSet", "default", "web")
SERVICE = Key("Service", "default", "web")


def replica_set(replicas: int, **resources: Any) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 0.05, "failureThreshold": 1}
    container = {
        "name": "server",
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": probe,
        "resources": resources,
    }
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "template": template},
    }


def service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }


@contextlib.asynccontextmanager
async def running(folder: Path, **values: Any) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(LocalMachine(folder, **{"entrypoint": SMALL_POD, **values}))
    async with backend.running():
        yield backend


async def until(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


def status_of(backend: LocalBackend) -> dict[str, Any]:
    return (backend.store.get(SET) or {}).get("status", {})


def ready(backend: LocalBackend) -> list[dict[str, Any]]:
    return [pod for pod in backend.store.objects("Pod") if is_ready(pod)]


async def ask(backend: LocalBackend, path: str = "/") -> tuple[int, Any]:
    body = backend.store.get(SERVICE)
    assert body is not None
    async with aiohttp.ClientSession() as session, session.get(f"{endpoint_of(body)}{path}") as reply:
        return reply.status, await reply.json(content_type=None)


async def test_a_replica_set_has_as_many_pods_as_it_says_and_none_afterwards(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        for replicas in (2, 3, 1):
            await backend.apply(replica_set(replicas))
            await until(lambda n=replicas: len(ready(backend)) == len(backend.store.objects("Pod")) == n)
            await until(lambda n=replicas: status_of(backend).get("readyReplicas") == n)
        pids = [int(file.read_text().split()[0]) for file in tmp_path.glob("pods/*/pid")]
        assert len(pids) == 1
        await backend.delete(ObjectRef("apps/v1", "ReplicaSet", "default", "web"))
        await until(lambda: not backend.store.objects("Pod"))
        assert [machine.birth(pid) for pid in pids] == [None]
        assert list(tmp_path.glob("pods/*")) == []


async def test_a_scale_in_takes_the_cheapest_pod(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        await backend.apply(replica_set(3))
        await until(lambda: len(ready(backend)) == 3)
        victim = ready(backend)[1]
        backend.store.annotate(Key.of(victim), DELETION_COST_ANNOTATION, "-100")
        await backend.apply(replica_set(2))
        await until(lambda: len(backend.store.objects("Pod")) == 2)
        assert victim["metadata"]["name"] not in [p["metadata"]["name"] for p in ready(backend)]


async def test_a_service_uses_every_ready_pod_and_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        await backend.apply(replica_set(3))
        await backend.apply(service())
        await until(lambda: len(ready(backend)) == 3)
        assert len({(await ask(backend))[1]["pid"] for _ in range(6)}) == 3
        gone = ready(backend)[0]["metadata"]["name"]
        backend.store.delete(Key("Pod", "default", gone))
        answers = [await ask(backend) for _ in range(20)]
        assert {status for status, _ in answers} == {200}


async def test_no_request_fails_while_pods_come_and_go(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        await backend.apply(replica_set(2))
        await backend.apply(service())
        await until(lambda: len(ready(backend)) == 2)
        stop = asyncio.Event()
        statuses: list[int] = []

        async def load() -> None:
            while not stop.is_set():
                statuses.append((await ask(backend, "/sleep/0.01"))[0])

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(load())
            for replicas in (3, 1, 2, 3, 1, 2):
                await backend.apply(replica_set(replicas))
                await until(lambda n=replicas: len(ready(backend)) == len(backend.store.objects("Pod")) == n)
            stop.set()
    assert len(statuses) > 50
    assert set(statuses) == {200}


async def test_a_service_without_a_ready_pod_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        await backend.apply(service())
        await until(lambda: endpoint_of(backend.store.get(SERVICE) or {}) is not None)
        status, problem = await ask(backend)
        assert status == 503
        assert problem["error"]["code"] == "no_ready_pod"
        assert "web" in problem["error"]["message"]


async def test_a_service_keeps_its_port_over_a_restart(tmp_path: Path) -> None:
    endpoints = []
    for _ in range(2):
        async with running(tmp_path) as backend:
            await backend.apply(service())
            await until(lambda b=backend: endpoint_of(b.store.get(SERVICE) or {}) is not None)
            assert (await ask(backend))[0] == 503
            endpoints.append(endpoint_of(backend.store.get(SERVICE) or {}))
    assert endpoints[0] == endpoints[1]


async def test_pods_share_the_gpus_and_wait_with_a_reason_when_there_are_none_left(tmp_path: Path) -> None:
    async with running(tmp_path, gpus=3) as backend:
        await backend.apply(replica_set(2, limits={"nvidia.com/gpu": "2", "cpu": "1"}))
        await until(lambda: len(ready(backend)) == 1)
        waiting = next(pod for pod in backend.store.objects("Pod") if not is_ready(pod))
        condition = waiting["status"]["conditions"][0]
        assert condition["reason"] == "Unschedulable"
        assert "--gpus N" in condition["message"]
        env = await seen_by(ready(backend)[0])
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1"
        backend.store.delete(Key.of(ready(backend)[0]))
        await until(lambda: any(p["metadata"]["name"] == waiting["metadata"]["name"] for p in ready(backend)))


async def seen_by(pod: dict[str, Any]) -> dict[str, str]:
    url = f"http://{pod['status']['podIP']}:8000/"
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        env: dict[str, str] = (await reply.json(content_type=None))["env"]
        return env


async def test_a_foreign_object_of_the_same_name_is_not_adopted(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        await backend.apply(service())
        ours = service()
        ours["metadata"]["ownerReferences"] = [{"uid": "fleet"}]
        with pytest.raises(ObjectConflict, match="rename"):
            await backend.apply(ours)


async def test_after_a_start_nothing_is_ready_that_was_before(tmp_path: Path) -> None:
    adapter = {
        "apiVersion": "fleet.nllb.io/v1alpha1",
        "kind": "LoraAdapter",
        "metadata": {"name": "formal", "namespace": "default"},
        "spec": {"deploymentRef": {"name": "tiny"}},
    }
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Resident",
        "message": "",
        "lastTransitionTime": "",
    }
    first = LocalBackend(LocalMachine(tmp_path))
    await first.apply(adapter)
    status = {"conditions": [condition], "readyReplicas": 3, "digest": "d", "lastReady": {"digest": "d"}}
    first.store.set_status(Key.of(adapter), status)
    (body,) = LocalBackend(LocalMachine(tmp_path)).store.objects("LoraAdapter")
    (after,) = body["status"].pop("conditions")
    assert (after["status"], after["reason"]) == ("Unknown", "Starting")
    assert body["status"] == {"readyReplicas": 0, "digest": "d", "lastReady": {"digest": "d"}}


@pytest.mark.parametrize("count", ["1.5", "2Mi", -1])
async def test_devices_come_in_whole_numbers_and_a_pod_that_asks_otherwise_stops_no_other(
    tmp_path: Path, count: object
) -> None:
    async with running(tmp_path) as backend:
        odd = replica_set(1, limits={"nvidia.com/gpu": count})
        odd["metadata"]["name"] = "odd"
        backend.store.apply(odd)
        backend.store.apply(replica_set(1))
        await until(lambda: len(ready(backend)) == 1)
        conditions = [c for pod in backend.store.objects("Pod") for c in pod["status"].get("conditions", ())]
        assert "InvalidResource" in [condition.get("reason") for condition in conditions]


async def test_amounts_that_are_no_devices_are_not_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        backend.store.apply(replica_set(1, limits={"hugepages-2Mi": "2Mi", "cpu": "500m"}))
        await until(lambda: len(ready(backend)) == 1)


async def test_a_deletion_cost_that_is_no_number_counts_as_none(tmp_path: Path) -> None:
    async with running(tmp_path) as backend:
        odd = replica_set(2)
        odd["spec"]["template"]["metadata"]["annotations"] = {DELETION_COST_ANNOTATION: "abc"}
        backend.store.apply(odd)
        await until(lambda: len(ready(backend)) == 2)
        backend.store.apply({**odd, "spec": {**odd["spec"], "replicas": 1}})
        await until(lambda: len(backend.store.objects("Pod")) == 1)


async def test_a_pod_that_cannot_be_made_says_so_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as backend:
        make = machine.free_loopback_address
        monkeypatch.setattr(machine, "free_loopback_address", lambda *_: 1 / 0)
        odd = replica_set(1)
        odd["metadata"]["name"] = "odd"
        backend.store.apply(odd)
        await until(lambda: "ZeroDivisionError" in str(backend.store.objects("Pod")))
        monkeypatch.setattr(machine, "free_loopback_address", make)
        backend.store.apply(replica_set(1))
        await until(lambda: len(ready(backend)) >= 1)
