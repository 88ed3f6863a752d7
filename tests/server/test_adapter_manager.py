"""The adapter manager in this process, around a real tiny model: orders of events that nobody can time."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_configs
from random_adapters import write_random_adapter

from nllb_engine.backend import CpuBackend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.lora.store import AdapterStore
from nllb_engine.nllb_gpu_model import NllbGpuModel
from nllb_server.adapter_manager import AdapterManager
from nllb_server.leases import AdapterLeases
from nllb_server.metrics import ServerMetrics
from nllb_server.problems import ApiError
from nllb_server.settings import ServerSettings
from nllb_server.wire import Source, WantedAdapter, WantedSet

SHAPE = tiny_configs.TinyConfig(
    seed=5, encoder_layers=1, decoder_layers=1, d_model=32, heads=(2, 2), ffn=(32, 32), vocab=97, tied=True,
    layout="single",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_configs.save(tiny_configs.reference(SHAPE), SHAPE, tmp_path_factory.mktemp("model"))


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


@pytest.fixture
def model(base: Path, store: AdapterStore) -> Iterator[NllbGpuModel]:
    lang = NllbLang(language_ids=frozenset(SHAPE.languages))
    config, weights = ModelConfig.from_folder(base), open_checkpoint(base)
    model = NllbGpuModel.new(
        config, weights, CpuBackend(), lang, 128, 4, max_loras=1, max_lora_rank=4, adapter_store=store
    )
    yield model
    model.teardown()


@pytest.fixture
def manager(store: AdapterStore) -> AdapterManager:
    return AdapterManager(store, ServerSettings(model_uri="file:///unused"), ServerMetrics())


def wanted(folder: Path, digest: str, revision: int, uid: str = "u") -> WantedSet:
    adapter = WantedAdapter(
        name="a",
        uid=uid,
        generation=revision,
        digest=digest,
        uri=f"file://{folder}",
        sources=[Source(kind="origin")],
    )
    return WantedSet(fleet="f", revision=revision, adapters=[adapter])


async def settled(manager: AdapterManager, state: str = "Loaded") -> None:
    async with asyncio.timeout(10):
        while [one.state for one in manager.inventory()] != [state]:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("turns", range(5))
async def test_closing_ends_even_when_something_changes_at_that_very_moment(
    manager: AdapterManager, model: NllbGpuModel, turns: int
) -> None:
    manager.attach(model, model)
    await asyncio.sleep(0.01)
    manager.accept(WantedSet(fleet="f", revision=1))
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await manager.close()


async def test_a_lease_keeps_its_version_while_the_name_moves_on(
    manager: AdapterManager, model: NllbGpuModel, base: Path, tmp_path: Path
) -> None:
    first = write_random_adapter(tmp_path / "one", base, seed=1)
    second = write_random_adapter(tmp_path / "two", base, seed=2)
    manager.attach(model, model)
    leases = AdapterLeases(manager, model, model, slots=1)
    manager.accept(wanted(tmp_path / "one", first, revision=1))
    await settled(manager)
    async with leases.lease("a") as held:
        assert held.ref is not None and held.ref.digest == first
        manager.accept(wanted(tmp_path / "two", second, revision=2))
        await settled(manager, "Stored")
        [resident] = model.resident_adapters()
        assert (resident.slot, resident.digest, resident.refs) == (held.slot, first, 1)
        waiting = asyncio.create_task(digest_of_lease(leases))
        await asyncio.sleep(0.1)
        assert not waiting.done(), "a request of the new version waits for the only slot"
    assert await waiting == second
    await manager.close()


async def digest_of_lease(leases: AdapterLeases) -> str:
    async with leases.lease("a") as held:
        assert held.ref is not None
        return held.ref.digest


async def test_a_request_that_is_cancelled_gives_its_reference_back(
    manager: AdapterManager, model: NllbGpuModel, base: Path, tmp_path: Path
) -> None:
    digest = write_random_adapter(tmp_path / "one", base, seed=1)
    manager.attach(model, model)
    leases = AdapterLeases(manager, model, model, slots=1)
    manager.accept(wanted(tmp_path / "one", digest, revision=1))
    await settled(manager)

    async def hold() -> None:
        async with leases.lease("a"):
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(hold()) for _ in range(50)]
    await asyncio.sleep(0.05)
    assert model.resident_adapters()[0].refs == 50
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert model.resident_adapters()[0].refs == 0
    await manager.close()


async def test_a_late_arrival_for_an_adapter_that_lost_its_name_answers_nobody(
    manager: AdapterManager, model: NllbGpuModel, base: Path, tmp_path: Path
) -> None:
    digest = write_random_adapter(tmp_path / "one", base, seed=1)
    manager.attach(model, model)
    leases = AdapterLeases(manager, model, model, slots=1)
    manager.accept(wanted(tmp_path / "one", digest, revision=1, uid="first"))
    await asyncio.sleep(0)  # the fetch for the first owner has begun
    manager.accept(wanted(tmp_path / "nowhere", "0" * 64, revision=2, uid="second"))
    for _ in range(30):
        with pytest.raises(ApiError) as refused:
            await digest_of_lease(leases)
        assert refused.value.status == 503
        await asyncio.sleep(0.01)
    await manager.close()
