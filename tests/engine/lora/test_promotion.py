"""Promotion from disk and from peers: all or nothing, once, and beside serving.

Adapters are watermarks, so an answer says which version gave it.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from lora_adapters import SMALL, small_model
from nllb_models import beams
from tiny_configs import reference, save

from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig
from nllb_engine.errors import (
    AdapterRejected,
    DigestMismatch,
    InvalidRequest,
    PeerUnavailable,
    PoolFull,
    UnknownAdapter,
    UnsupportedByModel,
)
from nllb_engine.interface import BeamReq, PeftAdapterConfig
from nllb_engine.lora import store as store_module
from nllb_engine.lora import tables
from nllb_engine.lora.digest import folder_digest
from nllb_engine.lora.peft_config import read_peft_config
from nllb_engine.lora.store import AdapterStore, copy_adapter_files
from nllb_engine.lora.watermark import WatermarkMaker, write_watermarks

SRC, TGT = SMALL.languages[0], SMALL.languages[1]
LENGTH = 4
PEER = "10.0.0.1:8001"


class FolderSource:
    """An AdapterSource whose peer is a folder of adapters by digest; `damage` is done to what arrives."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.fetches: list[tuple[str, str]] = []
        self.damage: Callable[[Path], object] = lambda folder: None

    def offer(self, folder: Path) -> str:
        digest = folder_digest(folder)
        self.folders[digest] = folder
        return digest

    def fetch(self, peer_addr: str, adapter_id: str, into: Path) -> None:
        self.fetches.append((peer_addr, adapter_id))
        if adapter_id not in self.folders:
            raise PeerUnavailable(f"{peer_addr} does not hold {adapter_id}")
        copy_adapter_files(self.folders[adapter_id], into)
        self.damage(into)


class Fixture:
    """A model with 3 slots, its store and source, and 6 watermark folders with the sequences they answer."""

    def __init__(self, root: Path, checkpoint: Path, marks: Path, sequences: list[list[int]]) -> None:
        self.source, self.store = FolderSource(), AdapterStore(root / "store")
        self.model = small_model(
            checkpoint, max_loras=3, max_lora_rank=8, adapter_source=self.source, adapter_store=self.store
        )
        self.folders = [marks / f"wm-{number:03}" for number in range(6)]
        self.digests = [self.source.offer(folder) for folder in self.folders]
        self.sequences = sequences

    def promote(self, number: int, name: str, *, activate: bool = False) -> tuple[int, str | None]:
        return self.model.promote_lora_from_peer(PEER, self.digests[number], name, activate=activate)

    def answer(self, slot: int) -> int | None:
        """The number of the watermark that answers a request with this slot; None: no watermark does."""
        request = BeamReq((5, 6, 7), SRC, TGT, adapter_slot=slot, num_beams=1, max_new=LENGTH + 2)
        ids = beams(self.model, [request])[0][0][0]
        return self.sequences.index(ids) if ids in self.sequences else None

    def state(self) -> tuple[object, ...]:
        """All that a failed promotion must leave as it was."""
        staging = list((self.store._root / ".staging").iterdir())
        return self.model.resident_adapters(), self.store.digests(), staging


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save(reference(SMALL), SMALL, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def marks(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    folder = tmp_path_factory.mktemp("marks")
    config = ModelConfig.from_folder(checkpoint)
    maker = WatermarkMaker(config, open_checkpoint(checkpoint), SMALL.languages, range(3, 80))
    return folder, write_watermarks(maker, folder, 6, LENGTH)


@pytest.fixture
def fix(tmp_path: Path, checkpoint: Path, marks: tuple[Path, list[list[int]]]) -> Iterator[Fixture]:
    made = Fixture(tmp_path, checkpoint, *marks)
    yield made
    made.model.teardown()


def test_a_promoted_adapter_answers_and_the_default_stays(fix: Fixture) -> None:
    assert fix.promote(0, "a") == (0, None)
    assert (fix.answer(0), fix.answer(-1)) == (0, None)
    assert fix.source.fetches == [(PEER, fix.digests[0])]
    (resident,) = fix.model.resident_adapters()
    assert (resident.name, resident.digest, resident.rank) == ("a", fix.digests[0], LENGTH + 1)
    assert not resident.active and resident.bytes > 0 and resident.refs == 0


def test_the_seeds_promotion_makes_the_adapter_the_default(fix: Fixture) -> None:
    assert fix.model.promote_lora_from_peer(PEER, fix.digests[0], "a") == (0, None)
    assert fix.answer(-1) == 0
    fix.model.promote_lora_from_disk(fix.folders[1], "b")
    assert fix.answer(-1) == 1
    fix.model.set_active_lora("a")
    assert fix.answer(-1) == 0
    with pytest.raises(UnknownAdapter):
        fix.model.set_active_lora("nobody")
    fix.model.unload_adapter("a")
    assert fix.answer(-1) is None


def test_promoting_the_same_again_transfers_and_writes_nothing(fix: Fixture) -> None:
    first = fix.promote(0, "a")
    generation = fix.model.resident_adapters()[0].generation
    assert fix.promote(0, "a") == first
    assert fix.model.promote_lora_from_disk(fix.folders[0], "a", activate=False) == first
    assert len(fix.source.fetches) == 1
    assert fix.model.resident_adapters()[0].generation == generation


def test_a_stored_digest_is_loaded_without_a_transfer(fix: Fixture) -> None:
    fix.promote(0, "a")
    fix.model.unload_adapter("a")
    fix.promote(0, "b")
    assert len(fix.source.fetches) == 1 and fix.answer(fix.model.resolve_adapter("b")) == 0
    stored = fix.store.path(fix.digests[0])
    assert stored is not None
    slot, _ = fix.model.promote_lora_from_disk(stored, "c", activate=False)
    assert fix.answer(slot) == 0


def test_the_evicted_name_is_returned_and_unknown_from_then_on(fix: Fixture) -> None:
    for number, name in enumerate("abc"):
        fix.promote(number, name)
    fix.model.release_adapter_slot(fix.model.acquire_adapter("a")[0])
    assert fix.promote(3, "d") == (1, "b")
    with pytest.raises(UnknownAdapter) as caught:
        fix.model.acquire_adapter("b")
    assert caught.value.known == ["a", "c", "d"]
    assert [fix.answer(fix.model.resolve_adapter(name)) for name in "acd"] == [0, 2, 3]


def flip(name: str, position: int) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[position] ^= 1
        (folder / name).write_bytes(raw)

    return damage


WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit in the weights": flip(WEIGHTS, -1),
    "a flipped bit in the header": flip(WEIGHTS, 40),
    "a flipped bit in the configuration": flip(CONFIG, 20),
    "truncated": lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-4]),
    "empty": lambda folder: (folder / WEIGHTS).write_bytes(b""),
    "a missing file": lambda folder: (folder / CONFIG).unlink(),
    "one file more": lambda folder: (folder / "more.bin").write_bytes(b"x"),
    "nothing": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_transfer_changes_nothing(fix: Fixture, damage: str) -> None:
    fix.promote(0, "a", activate=True)
    before = fix.state()
    fix.source.damage = DAMAGES[damage]
    with pytest.raises(DigestMismatch):
        fix.promote(1, "a")
    assert fix.state() == before and fix.answer(-1) == 0
    fix.source.damage = lambda folder: None
    fix.promote(1, "a")
    assert fix.answer(-1) == 1


def test_another_adapters_files_are_not_the_one_asked_for(fix: Fixture) -> None:
    fix.source.folders[fix.digests[0]] = fix.folders[1]
    before = fix.state()
    with pytest.raises(DigestMismatch) as caught:
        fix.promote(0, "a")
    assert caught.value.found == fix.digests[1] and fix.state() == before


def test_an_adapter_that_changes_in_flight_is_refused(fix: Fixture) -> None:
    fix.source.damage = lambda folder: shutil.copy(fix.folders[2] / WEIGHTS, folder / WEIGHTS)
    before = fix.state()
    with pytest.raises(DigestMismatch):
        fix.promote(1, "a")
    assert fix.state() == before


def test_a_link_among_the_files_is_refused(fix: Fixture) -> None:
    fix.source.damage = lambda folder: (folder / "x").symlink_to("/etc/hostname")
    before = fix.state()
    with pytest.raises(AdapterRejected, match="NotARegularFile"):
        fix.promote(1, "a")
    assert fix.state() == before


def test_a_peer_that_fails_changes_nothing(fix: Fixture) -> None:
    fix.promote(0, "a")
    before = fix.state()
    with pytest.raises(PeerUnavailable):
        fix.model.promote_lora_from_peer(PEER, "f" * 64, "a", activate=False)
    with pytest.raises(AdapterRejected, match="BadDigest"):
        fix.model.promote_lora_from_peer(PEER, "../x", "a", activate=False)
    assert fix.state() == before


def test_what_the_gate_refuses_is_not_kept(fix: Fixture, tmp_path: Path) -> None:
    bad = shutil.copytree(fix.folders[0], tmp_path / "bad")
    text = (bad / CONFIG).read_text()
    (bad / CONFIG).write_text(text.replace('"r": 5', '"r": 6'))
    digest = fix.source.offer(bad)
    before = fix.state()
    with pytest.raises(AdapterRejected, match="ShapeMismatch"):
        fix.model.promote_lora_from_peer(PEER, digest, "a", activate=False)
    with pytest.raises(AdapterRejected, match="ShapeMismatch"):
        fix.model.promote_lora_from_disk(bad, "a", activate=False)
    assert fix.state() == before
    fix.store.add_verified(bad, digest)
    with pytest.raises(AdapterRejected, match="ShapeMismatch"):
        fix.model.promote_lora_from_peer(PEER, digest, "a", activate=False)
    assert fix.state() == before


def test_files_that_decay_in_the_store_are_fetched_again(fix: Fixture) -> None:
    fix.promote(0, "a")
    fix.model.unload_adapter("a")
    stored = fix.store.path(fix.digests[0])
    assert stored is not None
    flip(WEIGHTS, -1)(stored)
    slot, _ = fix.promote(0, "a")
    assert len(fix.source.fetches) == 2 and fix.answer(slot) == 0


def test_a_full_pool_keeps_the_files_and_the_next_try_needs_no_transfer(fix: Fixture) -> None:
    for number, name in enumerate("abc"):
        fix.promote(number, name)
        fix.model.acquire_adapter(name)
    before = fix.model.resident_adapters()
    with pytest.raises(PoolFull):
        fix.promote(3, "d")
    assert fix.model.resident_adapters() == before and fix.digests[3] in fix.store.digests()
    fix.model.release_adapter_slot(1)
    assert fix.promote(3, "d") == (1, "b")
    assert len(fix.source.fetches) == 4


def test_pinned_names_keep_their_slots(fix: Fixture) -> None:
    for number, name in enumerate("abc"):
        fix.promote(number, name)
    fix.model.pin_adapters({"a", "b"})
    assert fix.promote(3, "d") == (2, "c")
    fix.model.pin_adapters({"a", "b", "d"})
    with pytest.raises(PoolFull):
        fix.promote(4, "e")


def test_the_given_peft_configuration_must_be_the_adapters(fix: Fixture) -> None:
    right = read_peft_config(fix.folders[0])
    before = fix.state()
    with pytest.raises(AdapterRejected, match="ConfigMismatch"):
        fix.model.promote_lora_from_peer(PEER, fix.digests[0], "a", PeftAdapterConfig(r=5, lora_alpha=5))
    assert fix.state() == before
    assert fix.model.promote_lora_from_peer(PEER, fix.digests[0], "a", right) == (0, None)


def test_a_digest_given_for_a_folder_must_be_the_folders(fix: Fixture) -> None:
    before = fix.state()
    with pytest.raises(DigestMismatch):
        fix.model.promote_lora_from_disk(fix.folders[0], "a", digest=fix.digests[1])
    assert fix.state() == before
    fix.model.promote_lora_from_disk(fix.folders[0], "a", digest=fix.digests[0])


def test_a_swap_writes_exactly_its_slot(fix: Fixture) -> None:
    fix.promote(0, "a")
    fix.model.swap_lora_from_disk(fix.folders[1], "b", 2, activate=False)
    assert fix.answer(2) == 1
    fix.model.swap_lora_from_disk(fix.folders[2], "a", 2, activate=False)
    assert fix.answer(fix.model.resolve_adapter("a")) == 2 and fix.model.resolve_adapter("a") == 2
    assert [one.name for one in fix.model.resident_adapters()] == ["a"]
    fix.model.acquire_adapter("a")
    with pytest.raises(PoolFull):
        fix.model.swap_lora_from_disk(fix.folders[3], "c", 2)
    with pytest.raises(InvalidRequest, match="slots are 0 to 2"):
        fix.model.swap_lora_from_disk(fix.folders[3], "c", 3)


def test_a_hundred_callers_of_one_adapter_cause_one_transfer(fix: Fixture) -> None:
    fix.source.damage = lambda folder: time.sleep(0.2)
    with ThreadPoolExecutor(100) as threads:
        found = set(threads.map(lambda number: fix.promote(0, "a", activate=number % 2 == 0), range(100)))
    assert found == {(0, None)} and len(fix.source.fetches) == 1
    assert [one.name for one in fix.model.resident_adapters()] == ["a"] and fix.answer(-1) == 0


def test_a_failure_is_shared_and_the_next_call_tries_again(fix: Fixture) -> None:
    def fail(folder: Path) -> None:
        time.sleep(0.2)
        raise PeerUnavailable("gone")

    fix.source.damage = fail
    with ThreadPoolExecutor(20) as threads:
        calls = [threads.submit(fix.promote, 0, "a") for _ in range(20)]
    assert all(isinstance(call.exception(), PeerUnavailable) for call in calls)
    assert len(fix.source.fetches) == 1
    fix.source.damage = lambda folder: None
    assert fix.promote(0, "a") == (0, None)


def test_a_new_version_serves_new_requests_while_the_old_one_finishes(fix: Fixture) -> None:
    fix.promote(0, "a")
    (running,) = fix.model.beam_begin(
        [BeamReq((5, 6), SRC, TGT, fix.model.acquire_adapter("a")[0], num_beams=2, max_new=LENGTH + 2)]
    )
    fix.model.beam_step([running])
    new, evicted = fix.promote(1, "a")
    assert (new, evicted) == (1, None) and fix.answer(fix.model.resolve_adapter("a")) == 1
    fix.model.pin_adapters({"a"})
    fix.promote(2, "b")
    assert fix.promote(3, "c") == (2, "b"), "slot 0 is not for taking while the old version runs"
    while not running.done:
        fix.model.beam_step([running])
    assert list(running.hypotheses[0].token_ids) == fix.sequences[0]
    fix.model.beam_end(running)
    fix.model.release_adapter_slot(0)
    assert fix.promote(2, "b") == (0, None), "then it is empty"


def test_promotions_beside_decoding_never_change_an_answer(fix: Fixture) -> None:
    """Two threads swap three names through three slots; each answer is the version its request acquired."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def swap(names: str, numbers: Sequence[int]) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                fix.promote(numbers[turn % len(numbers)], names[turn % len(names)])
            except PoolFull:
                pass
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=swap, args=pair) for pair in (("ab", (0, 1, 2)), ("bc", (3, 4, 5)))]
    for thread in threads:
        thread.start()
    answers, seen = 0, set()
    deadline = time.monotonic() + 60
    while (answers < 100 or len(seen) < 6) and time.monotonic() < deadline:
        try:
            slot, resident = fix.model.acquire_adapter("abc"[answers % 3])
        except UnknownAdapter:
            continue
        number = fix.answer(slot)
        assert number is not None and fix.digests[number] == resident.digest
        fix.model.release_adapter_slot(slot)
        answers += 1
        seen.add(number)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == [] and answers >= 100 and len(seen) == 6
    assert all(one.refs == 0 for one in fix.model.resident_adapters())


def test_without_a_source_the_error_says_what_to_do(checkpoint: Path, fix: Fixture) -> None:
    model = small_model(checkpoint, max_loras=1)
    with pytest.raises(UnsupportedByModel, match="use promote_lora_from_disk"):
        model.promote_lora_from_peer(PEER, fix.digests[0], "a")
    model.promote_lora_from_disk(fix.folders[0], "a")
    model.teardown()


def test_the_constructors_folder_is_loaded_at_once_and_pinned(checkpoint: Path, fix: Fixture) -> None:
    model = small_model(checkpoint, max_loras=1, lora_dir=fix.folders[0])
    (resident,) = model.resident_adapters()
    assert (resident.name, resident.slot, resident.pinned, resident.active) == ("wm-000", 0, True, False)
    with pytest.raises(PoolFull):
        model.promote_lora_from_disk(fix.folders[1], "b")
    model.teardown()
    with pytest.raises(InvalidRequest, match="torn down"):
        model.promote_lora_from_disk(fix.folders[1], "b")


def test_identities_follow_the_content(fix: Fixture) -> None:
    fix.promote(0, "a")
    first = fix.model.adapter_id_for(0)
    slot, _ = fix.promote(1, "a")
    assert 0 not in (first, fix.model.adapter_id_for(slot)) and fix.model.adapter_id_for(slot) != first
    assert fix.model.adapter_id_for(-1) == 0
    fix.model.set_active_lora("a")
    assert fix.model.adapter_id_for(-1) == fix.model.adapter_id_for(slot)


# ---- negative controls: with a guard switched off, the wrong thing happens, so the tests above do see it


def test_control_without_the_digest_check_a_foreign_adapter_answers(
    fix: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix.source.folders[fix.digests[0]] = fix.folders[1]
    monkeypatch.setattr(store_module, "folder_digest", lambda folder: fix.digests[0])
    slot, _ = fix.promote(0, "a")
    assert fix.answer(slot) == 1


def test_control_a_leak_between_rows_is_seen(fix: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fix.promote(0, "a"), fix.promote(1, "b")
    requests = [BeamReq((5, 6), SRC, TGT, slot, num_beams=1, max_new=LENGTH + 2) for slot in (0, 1)]

    def best() -> list[list[int]]:
        return [found[0][0] for found in beams(fix.model, requests)]

    assert best() == fix.sequences[:2]
    honest = tables.LoraProjection.apply

    def leaking(
        self: tables.LoraProjection, x: torch.Tensor, out: torch.Tensor, rows: object
    ) -> torch.Tensor:
        whole = tables.RowAdapters.of([0] * x.shape[0], x.device)
        assert whole is not None
        return honest(self, x, out, whole)

    monkeypatch.setattr(tables.LoraProjection, "apply", leaking)
    assert best() == [fix.sequences[0]] * 2


def test_control_a_busy_slot_that_is_written_is_seen(fix: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fix.promote(0, "a")
    slot, _ = fix.model.acquire_adapter("a")
    table = fix.model.adapters.pool._table
    monkeypatch.setattr(table, "_victim", lambda name: slot)
    fix.promote(1, "b")
    assert fix.answer(slot) == 1
