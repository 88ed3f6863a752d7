import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from operator_objects import Objects
from wire_pod import WirePod, wire_pod

from nllb_operator.pod_client import PodClient, PodUnreachable
from nllb_operator.pod_contact import FleetContact
from nllb_operator.promotion import PodObservation
from nllb_server.wire import WantedAdapter, WantedSet

TIMEOUT = 0.3


@dataclass
class Scene:
    make: Objects
    client: PodClient
    contact: FleetContact
    pods: list[WirePod]

    async def poll(self) -> list[PodObservation]:
        return await self.contact.poll([pod.view(self.make) for pod in self.pods])

    async def tell(self, *entries: WantedAdapter) -> list[PodObservation]:
        observed = await self.poll()
        return await self.contact.tell(observed, {pod.uid: list(entries) for pod in observed})

    def silent(self) -> Sequence[str]:
        return [pod.name for pod in self.contact.silent([pod.view(self.make) for pod in self.pods])]


@pytest.fixture
async def scene(make: Objects) -> AsyncIterator[Scene]:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(PodClient(TIMEOUT))
        pods = [await stack.enter_async_context(wire_pod(make, f"pod-{number}")) for number in range(3)]
        yield Scene(make, client, FleetContact("fleet", client), pods)


@pytest.fixture
def entry(make: Objects) -> WantedAdapter:
    view = make.view("polite")
    return view.entry(view.wanted, [])


async def test_every_pod_is_asked_at_the_same_time(scene: Scene) -> None:
    observed = await scene.poll()

    assert [pod.inventory.pod for pod in observed] == ["pod-0", "pod-1", "pod-2"]
    assert [pod.asked for pod in scene.pods] == [1, 1, 1]


async def test_a_pod_that_hangs_delays_nobody_beyond_the_timeout(scene: Scene) -> None:
    scene.pods[0].mood = "hang"
    began = time.monotonic()

    observed = await scene.poll()

    assert time.monotonic() - began < TIMEOUT + 1
    assert [pod.inventory.pod for pod in observed] == ["pod-1", "pod-2"]
    assert scene.silent() == ["pod-0"]


@pytest.mark.parametrize("mood", ["junk", "flood"])
async def test_an_answer_that_makes_no_sense_is_no_answer(scene: Scene, mood: str) -> None:
    scene.pods[1].mood = mood

    assert [pod.inventory.pod for pod in await scene.poll()] == ["pod-0", "pod-2"]


async def test_the_last_inventory_of_a_mute_pod_is_believed_for_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.poll()
    scene.pods[0].mood = "hang"
    assert len(await scene.poll()) == 3

    monkeypatch.setattr("nllb_operator.pod_contact.PATIENCE_SECONDS", 0.0)

    assert len(await scene.poll()) == 2


async def test_a_pod_is_told_once_and_again_only_when_something_changes(
    scene: Scene, entry: WantedAdapter
) -> None:
    for _ in range(3):
        await scene.tell(entry)
    assert [len(pod.told) for pod in scene.pods] == [1, 1, 1]

    await scene.tell()

    assert [[len(item.adapters) for item in pod.told] for pod in scene.pods] == [[1, 0]] * 3


async def test_pods_without_an_adapter_are_told_that_others_hold_it(
    scene: Scene, entry: WantedAdapter
) -> None:
    observed = await scene.poll()
    first = observed[0].uid
    for _ in range(2):
        await scene.contact.tell(observed, {pod.uid: [entry] if pod.uid == first else [] for pod in observed})
        observed = await scene.poll()
    assert [[item.elsewhere for item in pod.told] for pod in scene.pods] == [[[]], [["polite"]], [["polite"]]]

    await scene.tell()
    assert [pod.told[-1].elsewhere for pod in scene.pods] == [[], [], []]


async def test_revisions_only_grow(scene: Scene, entry: WantedAdapter) -> None:
    scene.pods[0].revision = 10**15  # the clock of an earlier operator was ahead
    for entries in ([entry], [], [entry]):
        await scene.tell(*entries)

    for pod in scene.pods:
        revisions = [item.revision for item in pod.told]
        assert len(revisions) == 3 and revisions == sorted(set(revisions))
    assert scene.pods[0].told[0].revision > 10**15


async def test_a_pod_that_restarted_is_told_again(scene: Scene, entry: WantedAdapter) -> None:
    await scene.tell(entry)
    scene.pods[1].restart()

    observed = await scene.poll()
    assert [bool(pod.told) for pod in observed] == [True, False, True]
    await scene.tell(entry)

    assert [len(pod.told) for pod in scene.pods] == [1, 2, 1]


async def test_a_set_that_somebody_else_sent_is_corrected(scene: Scene, entry: WantedAdapter) -> None:
    await scene.tell(entry)
    scene.pods[2].revision += 5

    await scene.tell(entry)

    assert [len(pod.told) for pod in scene.pods] == [1, 1, 2]


async def test_a_set_that_was_refused_is_sent_again(scene: Scene, entry: WantedAdapter) -> None:
    scene.pods[0].mood = "refuse"
    await scene.tell(entry)
    assert scene.pods[0].told == []

    scene.pods[0].mood = "well"
    await scene.tell(entry)

    assert len(scene.pods[0].told) == 1


async def test_another_pod_at_a_reused_address_is_not_taken_for_the_old_one(scene: Scene) -> None:
    scene.pods[0].pod_uid = "uid-of-a-later-pod"

    assert [pod.inventory.pod for pod in await scene.poll()] == ["pod-1", "pod-2"]


async def test_pods_that_do_not_run_or_have_no_address_are_not_asked(scene: Scene) -> None:
    view = scene.pods[0].view(scene.make)
    pending = scene.make.pod(name="pending", phase="Pending", control_addr=scene.pods[0].addr)
    nowhere = scene.make.pod(name="nowhere", control_addr=None)

    observed = await scene.contact.poll([view, pending, nowhere])

    assert [pod.uid for pod in observed] == [view.uid] and scene.pods[0].asked == 1


async def test_a_complaint_of_the_pod_is_passed_on(scene: Scene) -> None:
    scene.pods[0].mood = "refuse"

    with pytest.raises(PodUnreachable, match="HTTP 409, stale_revision: older than what I have"):
        await scene.client.send_wanted(scene.pods[0].addr, WantedSet(fleet="fleet", revision=1))
