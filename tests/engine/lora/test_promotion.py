"""Promotion from disk and from peers is all or nothing. An answer says which watermark adapter gave it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from lora_adapters import small_model
from promotion_rig import LENGTH, PEER, PromotionRig

from nllb_engine.errors import (
    AdapterRejected,
    DigestMismatch,
    InvalidRequest,
    PeerUnavailable,
    PoolFull,
    UnknownAdapter,
    UnsupportedByModel,
)
from nllb_engine.interface import PeftAdapterConfig
from nllb_engine.lora.peft_config import read_peft_config


def test_a_promoted_adapter_answers_and_the_default_stays(rig: PromotionRig) -> None:
    assert rig.promote(0, "a") == (0, None)
    assert (rig.answer(0), rig.answer(-1)) == (0, None)
    assert rig.source.fetches == [(PEER, rig.digests[0])]
    (resident,) = rig.model.resident_adapters()
    assert (resident.name, resident.digest, resident.rank) == ("a", rig.digests[0], LENGTH + 1)
    assert not resident.active and resident.bytes > 0 and resident.refs == 0


def test_the_seeds_promotion_makes_the_adapter_the_default(rig: PromotionRig) -> None:
    assert rig.model.promote_lora_from_peer(PEER, rig.digests[0], "a") == (0, None)
    assert rig.answer(-1) == 0
    rig.model.promote_lora_from_disk(rig.folders[1], "b")
    assert rig.answer(-1) == 1
    rig.model.set_active_lora("a")
    assert rig.answer(-1) == 0
    with pytest.raises(UnknownAdapter):
        rig.model.set_active_lora("nobody")
    rig.model.unload_adapter("a")
    assert rig.answer(-1) is None


def test_promoting_the_same_again_transfers_and_writes_nothing(rig: PromotionRig) -> None:
    first = rig.promote(0, "a")
    generation = rig.model.resident_adapters()[0].generation
    assert rig.promote(0, "a") == first
    assert rig.model.promote_lora_from_disk(rig.folders[0], "a", activate=False) == first
    assert len(rig.source.fetches) == 1
    assert rig.model.resident_adapters()[0].generation == generation


def test_a_stored_digest_is_loaded_without_a_transfer(rig: PromotionRig) -> None:
    rig.promote(0, "a")
    rig.model.unload_adapter("a")
    rig.promote(0, "b")
    assert len(rig.source.fetches) == 1 and rig.answer(rig.model.resolve_adapter("b")) == 0
    stored = rig.store.path(rig.digests[0])
    assert stored is not None
    slot, _ = rig.model.promote_lora_from_disk(stored, "c", activate=False)
    assert rig.answer(slot) == 0


def test_the_evicted_name_is_returned_and_unknown_from_then_on(rig: PromotionRig) -> None:
    for number, name in enumerate("abc"):
        rig.promote(number, name)
    rig.model.release_adapter_slot(rig.model.acquire_adapter("a")[0])
    assert rig.promote(3, "d") == (1, "b")
    with pytest.raises(UnknownAdapter) as caught:
        rig.model.acquire_adapter("b")
    assert caught.value.known == ["a", "c", "d"]
    assert [rig.answer(rig.model.resolve_adapter(name)) for name in "acd"] == [0, 2, 3]


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
def test_a_damaged_transfer_changes_nothing(rig: PromotionRig, damage: str) -> None:
    rig.promote(0, "a", activate=True)
    before = rig.state()
    rig.source.damage = DAMAGES[damage]
    with pytest.raises(DigestMismatch):
        rig.promote(1, "a")
    assert rig.state() == before and rig.answer(-1) == 0
    rig.source.damage = lambda folder: None
    rig.promote(1, "a")
    assert rig.answer(-1) == 1


def test_another_adapters_files_are_not_the_one_asked_for(rig: PromotionRig) -> None:
    rig.source.folders[rig.digests[0]] = rig.folders[1]
    before = rig.state()
    with pytest.raises(DigestMismatch) as caught:
        rig.promote(0, "a")
    assert caught.value.found == rig.digests[1] and rig.state() == before


def test_an_adapter_that_changes_in_flight_is_refused(rig: PromotionRig) -> None:
    rig.source.damage = lambda folder: shutil.copy(rig.folders[2] / WEIGHTS, folder / WEIGHTS)
    before = rig.state()
    with pytest.raises(DigestMismatch):
        rig.promote(1, "a")
    assert rig.state() == before


def test_a_link_among_the_files_is_refused(rig: PromotionRig) -> None:
    rig.source.damage = lambda folder: (folder / "x").symlink_to("/etc/hostname")
    before = rig.state()
    with pytest.raises(AdapterRejected, match="NotARegularFile"):
        rig.promote(1, "a")
    assert rig.state() == before


def test_a_peer_that_fails_changes_nothing(rig: PromotionRig) -> None:
    rig.promote(0, "a")
    before = rig.state()
    with pytest.raises(PeerUnavailable):
        rig.model.promote_lora_from_peer(PEER, "f" * 64, "a", activate=False)
    with pytest.raises(AdapterRejected, match="BadDigest"):
        rig.model.promote_lora_from_peer(PEER, "../x", "a", activate=False)
    assert rig.state() == before


def test_what_the_gate_refuses_is_not_kept(rig: PromotionRig, tmp_path: Path) -> None:
    bad = shutil.copytree(rig.folders[0], tmp_path / "bad")
    text = (bad / CONFIG).read_text()
    (bad / CONFIG).write_text(text.replace('"r": 5', '"r": 6'))
    digest = rig.source.offer(bad)
    before = rig.state()
    with pytest.raises(AdapterRejected, match="ShapeMismatch"):
        rig.model.promote_lora_from_peer(PEER, digest, "a", activate=False)
    with pytest.raises(AdapterRejected, match="ShapeMismatch"):
        rig.model.promote_lora_from_disk(bad, "a", activate=False)
    assert rig.state() == before
    rig.store.add_verified(bad, digest)
    with pytest.raises(AdapterRejected, match="ShapeMismatch"):
        rig.model.promote_lora_from_peer(PEER, digest, "a", activate=False)
    assert rig.state() == before


def test_files_that_decay_in_the_store_are_fetched_again(rig: PromotionRig) -> None:
    rig.promote(0, "a")
    rig.model.unload_adapter("a")
    stored = rig.store.path(rig.digests[0])
    assert stored is not None
    flip(WEIGHTS, -1)(stored)
    slot, _ = rig.promote(0, "a")
    assert len(rig.source.fetches) == 2 and rig.answer(slot) == 0


def test_a_full_pool_keeps_the_files_and_the_next_try_needs_no_transfer(rig: PromotionRig) -> None:
    for number, name in enumerate("abc"):
        rig.promote(number, name)
        rig.model.acquire_adapter(name)
    before = rig.model.resident_adapters()
    with pytest.raises(PoolFull):
        rig.promote(3, "d")
    assert rig.model.resident_adapters() == before and rig.digests[3] in rig.store.digests()
    rig.model.release_adapter_slot(1)
    assert rig.promote(3, "d") == (1, "b")
    assert len(rig.source.fetches) == 4


def test_pinned_names_keep_their_slots(rig: PromotionRig) -> None:
    for number, name in enumerate("abc"):
        rig.promote(number, name)
    rig.model.pin_adapters({"a", "b"})
    assert rig.promote(3, "d") == (2, "c")
    rig.model.pin_adapters({"a", "b", "d"})
    with pytest.raises(PoolFull):
        rig.promote(4, "e")


def test_the_given_peft_configuration_must_be_the_adapters(rig: PromotionRig) -> None:
    right = read_peft_config(rig.folders[0])
    before = rig.state()
    with pytest.raises(AdapterRejected, match="ConfigMismatch"):
        rig.model.promote_lora_from_peer(PEER, rig.digests[0], "a", PeftAdapterConfig(r=5, lora_alpha=5))
    assert rig.state() == before
    assert rig.model.promote_lora_from_peer(PEER, rig.digests[0], "a", right) == (0, None)


def test_a_digest_given_for_a_folder_must_be_the_folders(rig: PromotionRig) -> None:
    before = rig.state()
    with pytest.raises(DigestMismatch):
        rig.model.promote_lora_from_disk(rig.folders[0], "a", digest=rig.digests[1])
    assert rig.state() == before
    rig.model.promote_lora_from_disk(rig.folders[0], "a", digest=rig.digests[0])


def test_a_swap_writes_exactly_its_slot(rig: PromotionRig) -> None:
    rig.promote(0, "a")
    rig.model.swap_lora_from_disk(rig.folders[1], "b", 2, activate=False)
    assert rig.answer(2) == 1
    rig.model.swap_lora_from_disk(rig.folders[2], "a", 2, activate=False)
    assert rig.answer(rig.model.resolve_adapter("a")) == 2 and rig.model.resolve_adapter("a") == 2
    assert [one.name for one in rig.model.resident_adapters()] == ["a"]
    rig.model.acquire_adapter("a")
    with pytest.raises(PoolFull):
        rig.model.swap_lora_from_disk(rig.folders[3], "c", 2)
    with pytest.raises(InvalidRequest, match="slots are 0 to 2"):
        rig.model.swap_lora_from_disk(rig.folders[3], "c", 3)


def test_without_a_source_the_error_says_what_to_do(checkpoint: Path, rig: PromotionRig) -> None:
    model = small_model(checkpoint, max_loras=1)
    with pytest.raises(UnsupportedByModel, match="use promote_lora_from_disk"):
        model.promote_lora_from_peer(PEER, rig.digests[0], "a")
    model.promote_lora_from_disk(rig.folders[0], "a")
    model.teardown()


def test_the_constructors_folder_is_loaded_at_once_and_pinned(checkpoint: Path, rig: PromotionRig) -> None:
    model = small_model(checkpoint, max_loras=1, lora_dir=rig.folders[0])
    (resident,) = model.resident_adapters()
    assert (resident.name, resident.slot, resident.pinned, resident.active) == ("wm-000", 0, True, False)
    with pytest.raises(PoolFull):
        model.promote_lora_from_disk(rig.folders[1], "b")
    model.teardown()
    with pytest.raises(InvalidRequest, match="torn down"):
        model.promote_lora_from_disk(rig.folders[1], "b")


def test_identities_follow_the_content(rig: PromotionRig) -> None:
    rig.promote(0, "a")
    first = rig.model.adapter_id_for(0)
    slot, _ = rig.promote(1, "a")
    assert 0 not in (first, rig.model.adapter_id_for(slot)) and rig.model.adapter_id_for(slot) != first
    assert rig.model.adapter_id_for(-1) == 0
    rig.model.set_active_lora("a")
    assert rig.model.adapter_id_for(-1) == rig.model.adapter_id_for(slot)
