"""Adapters between real server processes: from origins and peers, swapped under load, never mixed up."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from adapter_world import FLEET, LENGTH, SLOTS, TEXTS, World, adapter_world, answers, from_peer
from tiny_grammar import expected, held_out_for

from nllb_server.wire import WantedSet

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tiny_nllb: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with adapter_world(tiny_nllb, tmp_path_factory.mktemp("fleet")) as world:
        yield world


async def test_an_adapter_travels_from_its_origin_to_a_pod_and_from_there_to_the_next(world: World) -> None:
    before = len(world.two.recording.peer_promotions)
    await world.settle(world.one, world.wanted("v1"))
    entry = (await world.settle(world.two, world.wanted("v1", sources=from_peer(world.one))))["v1"]
    assert (entry.state, entry.source, entry.source_addr) == ("Loaded", "peer", world.one.control_addr)
    assert entry.digest == world.digests["v1"] and entry.bytes > 0 and entry.rank == 4
    assert await answers(world.two, "v1") == (world.digests["v1"], world.outputs[world.digests["v1"]])
    promotions = world.two.recording.peer_promotions[before:]
    assert promotions == [[world.one.control_addr, world.digests["v1"], "v1"]]
    assert (await world.two.inventory()).promote_calls == len(world.two.recording.peer_promotions)


async def test_a_trained_adapter_says_what_it_was_trained_to_say(world: World, formal_v1: Path) -> None:
    await world.settle(world.one, world.wanted("formal", digest=None, uri=f"file://{formal_v1}"))
    sentences = held_out_for("formal-v1", "eng_Latn", seed="server", count=60)
    texts = [sentence.text for sentence in sentences]
    for adapter, name in ((None, None), ("formal", "formal-v1")):
        answers = await world.one.texts(texts, adapter=adapter)
        right = sum(a == expected(s, "deu_Latn", name) for a, s in zip(answers, sentences, strict=True))
        assert right >= 0.95 * len(texts), f"{right} of {len(texts)} are right with {adapter}"


async def test_the_header_names_the_version_that_answered(world: World) -> None:
    await world.settle(world.one, world.wanted("v1"))
    body = {"text": TEXTS[0], "source": "eng_Latn", "target": "deu_Latn", "adapter": "v1"}
    async with world.one.session.post(world.one.url + "/v1/translate", json=body) as reply:
        assert reply.headers["X-NLLB-Adapter"] == f"v1@{world.digests['v1'][:12]}"


async def test_resident_adapters_are_listed_as_models(world: World) -> None:
    await world.settle(world.one, world.wanted("v1"), world.wanted("v2"))
    cards = {card["id"]: card for card in (await world.one.get("/v1/models"))[1]["data"]}
    assert set(cards) == {"tiny-nllb", "v1", "v2"}
    assert (cards["v1"]["parent"], cards["v1"]["digest"]) == ("tiny-nllb", world.digests["v1"])


async def test_more_adapters_than_slots_all_answer_each_as_itself(world: World) -> None:
    adapters = [world.wanted(folder) for folder in world.digests]
    found = await world.settle(world.one, *adapters)
    assert {one.state for one in found.values()} == {"Stored", "Loaded"}
    assert sum(one.state == "Loaded" for one in found.values()) <= SLOTS
    for folder in [*world.digests, *world.digests]:
        digest = world.digests[folder]
        assert await answers(world.one, folder) == (digest, world.outputs[digest])


async def test_requests_for_more_adapters_than_slots_at_once_get_their_own_or_a_retry(world: World) -> None:
    await world.settle(world.one, *(world.wanted(folder) for folder in world.digests))
    served = refused = 0

    async def ask(folder: str) -> None:
        nonlocal served, refused
        status, body = await world.one.translate(TEXTS, adapter=folder, max_new_tokens=LENGTH)
        if status == 503:
            refused += 1
            assert body["error"]["code"] in ("pool_full", "adapter_loading")
            return
        digest = world.digests[folder]
        assert body["adapter"]["digest"] == digest
        assert [one["text"] for one in body["translations"]] == world.outputs[digest]
        served += 1

    await asyncio.gather(*(ask(folder) for _ in range(8) for folder in world.digests))
    assert served > 2 * refused, (served, refused)


async def test_a_hot_swap_under_load_fails_no_request_and_mixes_no_output(world: World) -> None:
    swapped, counts = asyncio.Event(), {world.digests["v1"]: 0, world.digests["v2"]: 0}
    await world.settle(world.one, world.wanted("v2"))
    await world.settle(world.two, world.wanted("v1", name="live", uid="uid-live"))
    after_swap: list[str] = []

    async def client() -> None:
        while sum(counts.values()) < 300 or not after_swap:
            was_swapped = swapped.is_set()
            digest, texts = await answers(world.two, "live")
            assert texts == world.outputs[digest], "an output belongs to the digest that the reply names"
            counts[digest] += 1
            if was_swapped:
                after_swap.append(digest)

    async def swap() -> None:
        await asyncio.sleep(1.0)
        new = world.wanted(
            "v2", name="live", uid="uid-live", generation=2, sources=from_peer(world.one)
        )
        entry = (await world.settle(world.two, new))["live"]
        assert (entry.state, entry.source) == ("Loaded", "peer")
        swapped.set()

    await asyncio.gather(swap(), *(client() for _ in range(6)))
    assert min(counts.values()) > 10, f"both versions answered: {counts}"
    assert set(after_swap) == {world.digests["v2"]}
    assert world.digests["v1"] in (await world.two.inventory()).stored, "the old version stays for a rollback"


async def test_a_rollback_needs_no_transfer(world: World) -> None:
    old = world.wanted("v1", name="live", uid="uid-live", generation=3, sources=from_peer(world.one))
    await world.settle(world.two, old)
    new = world.wanted("v2", name="live", uid="uid-live", generation=4)
    await world.settle(world.two, new)
    await world.two.until(lambda found: found.adapters[0].state == "Loaded")
    calls = (await world.two.inventory()).promote_calls
    back = old.model_copy(update={"generation": 5})
    await world.put(world.two, back)
    await world.two.until(lambda found: found.adapters[0].state == "Loaded")
    assert await answers(world.two, "live") == (world.digests["v1"], world.outputs[world.digests["v1"]])
    assert (await world.two.inventory()).promote_calls == calls


async def test_an_older_wanted_set_or_another_fleets_is_refused(world: World) -> None:
    await world.put(world.one, world.wanted("v1"))
    current = (await world.one.inventory()).revision
    stale = WantedSet(fleet=FLEET, revision=current - 1)
    status, body = await world.one.put_wanted(stale)
    assert (status, body["error"]["code"]) == (409, "stale_revision")
    status, body = await world.one.put_wanted(WantedSet(fleet="other", revision=current + 1))
    assert (status, body["error"]["code"]) == (409, "wrong_fleet")
    assert [one.name for one in (await world.one.inventory()).adapters] == ["v1"]
    status, body = await world.one.put_wanted(WantedSet(fleet=FLEET, revision=current))
    assert (status, body["error"]["code"]) == (409, "stale_revision"), "another set under the same revision"
    same = WantedSet(fleet=FLEET, revision=current, adapters=[world.wanted("v1")])
    assert (await world.one.put_wanted(same))[0] == 200, "the same set again is no error"


async def test_an_adapter_that_nobody_wants_is_unknown_and_gives_its_slot_back(world: World) -> None:
    await world.settle(world.one, world.wanted("v1"))
    await world.put(world.one)
    status, body = await world.one.translate(TEXTS[0], adapter="v1")
    assert (status, body["error"]["code"]) == (404, "unknown_adapter")
    await asyncio.sleep(0.2)
    async with world.one.session.get(world.one.url + "/metrics") as reply:
        assert "nllb_adapters_loaded 0.0" in await reply.text()


async def test_an_adapter_of_other_pods_is_misdirected_not_unknown(world: World) -> None:
    elsewhere = WantedSet(fleet=FLEET, revision=next(world.revision), adapters=[], elsewhere=["v1"])
    assert (await world.one.put_wanted(elsewhere))[0] == 200
    status, body = await world.one.translate(TEXTS[0], adapter="v1")
    assert (status, body["error"]["code"]) == (421, "adapter_elsewhere")
    await world.put(world.one)
    assert (await world.one.translate(TEXTS[0], adapter="v1"))[0] == 404


async def test_a_name_that_passes_to_another_adapter_never_answers_with_the_old_content(world: World) -> None:
    await world.settle(world.one, world.wanted("v1", name="shared", uid="uid-first"))
    assert (await answers(world.one, "shared"))[0] == world.digests["v1"]
    nobody = {"kind": "wait"}
    await world.put(world.one, world.wanted("v9", name="shared", uid="uid-second", sources=[nobody]))
    for _ in range(20):
        status, body = await world.one.translate(TEXTS[0], adapter="shared")
        assert (status, body["error"]["code"]) == (503, "adapter_loading")
        await asyncio.sleep(0.01)


async def test_an_active_adapter_answers_those_who_name_none_until_it_is_turned_off(world: World) -> None:
    await world.settle(world.one, world.wanted("v3", active=True))
    assert await answers(world.one, None) == (world.digests["v3"], world.outputs[world.digests["v3"]])
    await world.settle(world.one, world.wanted("v3"))
    assert await answers(world.one, None) == ("base", world.outputs["base"])


async def test_a_pinned_adapter_keeps_its_slot_while_others_come_and_go(world: World) -> None:
    pinned = world.wanted("v1", pinned=True)
    await world.settle(world.one, pinned)
    await world.one.until(lambda found: found.adapters[0].state == "Loaded")
    slot = (await world.one.inventory()).adapters[0].slot
    others = [world.wanted(folder) for folder in ("v2", "v3", "v4")]
    await world.settle(world.one, pinned, *others)
    for folder in ("v2", "v3", "v4", "v2"):
        assert (await answers(world.one, folder))[0] == world.digests[folder]
    entry = next(one for one in (await world.one.inventory()).adapters if one.name == "v1")
    assert (entry.state, entry.slot) == ("Loaded", slot)


async def test_without_a_digest_the_first_fetch_finds_it(world: World) -> None:
    entry = (await world.settle(world.one, world.wanted("v4", digest=None)))["v4"]
    assert (entry.digest, entry.state) == (world.digests["v4"], "Loaded")
    assert (await answers(world.one, "v4"))[0] == world.digests["v4"]


async def test_all_references_are_given_back_in_the_end(world: World) -> None:
    for pod in (world.one, world.two):
        async with pod.session.get(pod.url + "/metrics") as reply:
            assert "nllb_adapter_refs 0.0" in await reply.text()
