import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from operator_objects import NOW, Objects
from wire_pod import wire_pod

from nllb_operator.backends.base import (
    BackendUnavailable,
    FleetKey,
    FleetSnapshot,
    Manifest,
    ObjectConflict,
    ObjectRef,
    PodView,
)
from nllb_operator.controller import Controller
from nllb_operator.metrics import OperatorMetrics
from nllb_operator.settings import OperatorSettings

FAST = OperatorSettings(resync_seconds=0.1, busy_seconds=0.02, pod_timeout_seconds=0.2, workers=2)


class Shelf:
    """A Backend whose objects lie on a shelf: it keeps what it is given and counts. `broken` names fail."""

    def __init__(self) -> None:
        self.snapshots: dict[FleetKey, FleetSnapshot] = {}
        self.applied: list[str] = []
        self.statuses: list[tuple[str, Mapping[str, Any]]] = []
        self.events: list[str] = []
        self.looks: dict[str, int] = {}
        self.broken: dict[str, Exception] = {}
        self.news: asyncio.Queue[FleetKey] = asyncio.Queue()

    def add(self, body: Manifest, adapters: list[Manifest], *pods: PodView) -> None:
        key = FleetKey("default", body["metadata"]["name"])
        self.snapshots[key] = FleetSnapshot(key, NOW, body, adapters, (), pods)

    def keys(self) -> set[FleetKey]:
        return set(self.snapshots)

    async def changes(self) -> AsyncIterator[FleetKey]:
        while True:
            yield await self.news.get()

    async def observe(self, key: FleetKey) -> FleetSnapshot:
        self.looks[key.name] = self.looks.get(key.name, 0) + 1
        if key.name in self.broken:
            raise self.broken[key.name]
        return self.snapshots[key]

    async def apply(self, manifest: Manifest) -> None:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        if name in self.broken:
            raise self.broken[name]
        self.applied.append(name)
        key = FleetKey("default", manifest["metadata"]["ownerReferences"][0]["name"])
        before = self.snapshots[key]
        children = [
            item for item in before.children if item["metadata"]["name"] != manifest["metadata"]["name"]
        ]
        self.snapshots[key] = dataclasses.replace(before, children=[*children, manifest])

    async def delete(self, ref: ObjectRef) -> None:
        raise AssertionError("nothing is to be deleted here")

    async def set_deletion_cost(self, namespace: str, pod: PodView, cost: int) -> None:
        raise AssertionError("nothing shrinks here")

    async def write_status(self, ref: ObjectRef, status: Mapping[str, Any]) -> None:
        self.statuses.append((ref.name, status))
        for key, snapshot in self.snapshots.items():
            for body in (snapshot.deployment, *snapshot.adapters):
                if body is not None and body["metadata"]["name"] == ref.name and body["kind"] == ref.kind:
                    body["status"] = dict(status)
                    self.snapshots[key] = snapshot

    async def emit_event(self, ref: ObjectRef, kind: str, reason: str, message: str) -> None:
        self.events.append(f"{ref.name}: {kind} {reason}")

    def reason(self, name: str) -> str | None:
        for written, status in reversed(self.statuses):
            if written == name:
                return str(status["conditions"][0]["reason"])
        return None


@contextlib.asynccontextmanager
async def controlling(shelf: Shelf) -> AsyncIterator[tuple[Controller, OperatorMetrics]]:
    metrics = OperatorMetrics()
    controller = Controller(shelf, FAST, metrics)
    task = asyncio.create_task(controller.run())
    try:
        yield controller, metrics
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(wish: Any, seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not wish():
            await asyncio.sleep(0.01)


def named(make: Objects, name: str, **spec: Any) -> Manifest:
    body = make.deployment_body(**spec)
    body["metadata"] |= {"name": name, "uid": f"{name}-uid"}
    return body


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def test_a_fleet_gets_its_children_a_status_and_then_peace(shelf: Shelf, make: Objects) -> None:
    shelf.add(named(make, "calm", replicas=0), [])

    async with controlling(shelf):
        await until(lambda: shelf.looks.get("calm", 0) >= 4)

    assert len(shelf.applied) == len(set(shelf.applied)) == 5
    assert len(shelf.statuses) == 1, "a status that is right is not written again"
    assert shelf.reason("calm") == "ScaledToZero"


async def test_a_fleet_that_cannot_be_observed_holds_up_no_other(shelf: Shelf, make: Objects) -> None:
    for name in ("poison", "away", "fine"):
        shelf.add(named(make, name, replicas=0), [])
    shelf.broken = {"poison": RuntimeError("a bug"), "away": BackendUnavailable("the API server is away")}

    async with controlling(shelf) as (_, metrics):
        await until(lambda: shelf.reason("fine") == "ScaledToZero")
        await until(lambda: shelf.looks.get("poison", 0) >= 2 and shelf.looks.get("away", 0) >= 2)
        shelf.broken = {}
        await until(lambda: shelf.reason("poison") == shelf.reason("away") == "ScaledToZero")

    samples = {
        (sample.labels.get("result"), sample.name): sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
    }
    assert samples["error", "nllb_operator_reconciles_total"] >= 1
    assert samples["unavailable", "nllb_operator_reconciles_total"] >= 1


async def test_a_name_that_is_taken_is_told_and_the_other_children_are_made(
    shelf: Shelf, make: Objects
) -> None:
    shelf.add(named(make, "unlucky", replicas=0), [])
    shelf.broken = {"Service/unlucky": ObjectConflict("Service unlucky is somebody else's")}

    async with controlling(shelf):
        await until(lambda: shelf.reason("unlucky") == "NameConflict")

    assert len(shelf.applied) >= 4
    assert shelf.events == ["unlucky: Warning NameConflict"]


async def test_a_spec_that_cannot_be_read_touches_nothing(shelf: Shelf, make: Objects) -> None:
    shelf.add(named(make, "odd", replicas="three"), [])

    async with controlling(shelf):
        await until(lambda: shelf.reason("odd") == "InvalidSpec")

    assert shelf.applied == []


async def test_a_change_is_seen_long_before_the_next_resync(
    shelf: Shelf, make: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = dataclasses.replace(FAST, resync_seconds=60.0)
    shelf.add(named(make, "calm", replicas=0), [])
    controller = Controller(shelf, slow, OperatorMetrics())
    task = asyncio.create_task(controller.run())
    await until(lambda: shelf.looks.get("calm", 0) == 1)

    shelf.news.put_nowait(FleetKey("default", "calm"))

    await until(lambda: shelf.looks["calm"] == 2, 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_one_hung_pod_delays_neither_the_others_nor_the_status(shelf: Shelf, make: Objects) -> None:
    async with contextlib.AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(wire_pod(make, f"pod-{number}")) for number in range(3)]
        pods[0].mood = "hang"
        shelf.add(
            named(make, "fleet", replicas=3), [make.adapter_body("polite")], *(pod.view(make) for pod in pods)
        )
        async with controlling(shelf):
            await until(lambda: all(pod.told for pod in pods[1:]))
            await until(lambda: shelf.reason("polite") == "Spreading")

        kinds = [source.kind for pod in pods[1:] for source in pod.told[-1].adapters[0].sources]
        assert sorted(kinds) == ["origin", "wait"]


async def test_a_fleet_in_motion_is_looked_at_often_and_less_often_when_nothing_new_is_seen(
    shelf: Shelf, make: Objects
) -> None:
    patient = dataclasses.replace(FAST, resync_seconds=60.0)
    starting = make.pod(ready=False, phase="Pending", control_addr=None)
    shelf.add(named(make, "fleet"), [], starting)
    controller = Controller(shelf, patient, OperatorMetrics())
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(0.5)
    early = shelf.looks["fleet"]
    await asyncio.sleep(0.5)
    late = shelf.looks["fleet"] - early
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert early >= 5
    assert 1 <= late < early


async def test_the_time_of_the_last_pass_moves_only_when_every_fleet_was_looked_at(
    shelf: Shelf, make: Objects
) -> None:
    shelf.add(named(make, "calm", replicas=0), [])
    async with controlling(shelf) as (controller, _):
        first = controller.passed
        await until(lambda: controller.passed > first)

        stuck = asyncio.Event()

        async def never(key: FleetKey) -> FleetSnapshot:
            await stuck.wait()
            return shelf.snapshots[key]

        shelf.observe = never  # type: ignore[method-assign]
        await asyncio.sleep(0.3)
        last = controller.passed
        await asyncio.sleep(0.5)
        assert controller.passed == last
