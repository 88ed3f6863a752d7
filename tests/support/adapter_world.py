"""Two real pods of one fleet and a volume with five adapters that answer differently."""

import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from random_adapters import write_random_adapter
from server_pods import ServerPod, server_pod
from tiny_grammar import held_out

from nllb_server.wire import InventoryAdapter, WantedAdapter, WantedSet

TEXTS = [sentence.text for sentence in held_out("eng_Latn", seed="adapters", count=3)]
LENGTH = 8
FLEET = "fleet"
SLOTS = 2


@dataclass
class World:
    """Two pods of one fleet, and a volume with adapters: `digests` by folder name."""

    one: ServerPod
    two: ServerPod
    volume: Path
    digests: dict[str, str]
    outputs: dict[str, list[str]] = field(default_factory=dict)
    revision: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def wanted(self, folder: str, **fields: Any) -> WantedAdapter:
        given = {
            "name": folder, "uid": f"uid-{folder}", "generation": 1, "digest": self.digests.get(folder),
            "uri": f"pvc://models/{folder}", "sources": [{"kind": "origin"}],
        }  # fmt: skip
        return WantedAdapter.model_validate({**given, **fields})

    async def put(self, pod: ServerPod, *adapters: WantedAdapter) -> None:
        wanted = WantedSet(fleet=FLEET, revision=next(self.revision), adapters=list(adapters))
        status, body = await pod.put_wanted(wanted)
        assert status == 200, body

    async def settle(self, pod: ServerPod, *adapters: WantedAdapter) -> dict[str, InventoryAdapter]:
        """Put the set and wait until each adapter is on disk or has failed."""
        await self.put(pod, *adapters)
        inventory = await pod.until(
            lambda found: all(one.state in ("Stored", "Loaded", "Failed") for one in found.adapters)
        )
        return {one.name: one for one in inventory.adapters}


@contextlib.asynccontextmanager
async def adapter_world(model: Path, home: Path) -> AsyncIterator[World]:
    """Start both pods; each version's outputs are taken while it is alone."""
    volume = home / "volumes" / "models"
    digests = {f"v{n}": write_random_adapter(volume / f"v{n}", model, seed=n) for n in range(1, 6)}
    settings = {"fleet": FLEET, "volumes_dir": home / "volumes", "adapter_slots": SLOTS}
    async with (
        server_pod(model, home / "one", "pod-one", **settings) as one,
        server_pod(model, home / "two", "pod-two", **settings) as two,
    ):
        world = World(one, two, volume, digests)
        for folder, digest in digests.items():
            await world.settle(one, world.wanted(folder))
            world.outputs[digest] = await one.texts(TEXTS, adapter=folder, max_new_tokens=LENGTH)
        world.outputs["base"] = await one.texts(TEXTS, max_new_tokens=LENGTH)
        assert len({tuple(texts) for texts in world.outputs.values()}) == 6, "versions answer differently"
        yield world
    assert (one.exit_code, two.exit_code) == (0, 0)


def from_peer(pod: ServerPod) -> list[dict[str, str]]:
    return [{"kind": "peer", "addr": pod.control_addr}]


async def answers(pod: ServerPod, adapter: str | None) -> tuple[str, list[str]]:
    """The digest that a reply names (base: none), and its texts."""
    status, body = await pod.translate(TEXTS, adapter=adapter, max_new_tokens=LENGTH)
    assert status == 200, body
    digest = body["adapter"]["digest"] if body["adapter"] else "base"
    return digest, [one["text"] for one in body["translations"]]
