"""Promotion from many threads and beside decoding: once, and never a wrong answer; and negative controls."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from nllb_models import beams
from promotion_rig import LENGTH, SRC, TGT, PromotionRig

from nllb_engine.errors import PeerUnavailable, PoolFull, UnknownAdapter
from nllb_engine.interface import BeamReq
from nllb_engine.lora import store as store_module
from nllb_engine.lora import tables


def test_a_hundred_callers_of_one_adapter_cause_one_transfer(rig: PromotionRig) -> None:
    rig.source.damage = lambda folder: time.sleep(0.2)
    with ThreadPoolExecutor(100) as threads:
        found = set(threads.map(lambda number: rig.promote(0, "a", activate=number % 2 == 0), range(100)))
    assert found == {(0, None)} and len(rig.source.fetches) == 1
    assert [one.name for one in rig.model.resident_adapters()] == ["a"] and rig.answer(-1) == 0


def test_a_failure_is_shared_and_the_next_call_tries_again(rig: PromotionRig) -> None:
    def fail(folder: Path) -> None:
        time.sleep(0.2)
        raise PeerUnavailable("gone")

    rig.source.damage = fail
    with ThreadPoolExecutor(20) as threads:
        calls = [threads.submit(rig.promote, 0, "a") for _ in range(20)]
    assert all(isinstance(call.exception(), PeerUnavailable) for call in calls)
    assert len(rig.source.fetches) == 1
    rig.source.damage = lambda folder: None
    assert rig.promote(0, "a") == (0, None)


def test_a_new_version_serves_new_requests_while_the_old_one_finishes(rig: PromotionRig) -> None:
    rig.promote(0, "a")
    (running,) = rig.model.beam_begin(
        [BeamReq((5, 6), SRC, TGT, rig.model.acquire_adapter("a")[0], num_beams=2, max_new=LENGTH + 2)]
    )
    rig.model.beam_step([running])
    new, evicted = rig.promote(1, "a")
    assert (new, evicted) == (1, None) and rig.answer(rig.model.resolve_adapter("a")) == 1
    rig.model.pin_adapters({"a"})
    rig.promote(2, "b")
    assert rig.promote(3, "c") == (2, "b"), "slot 0 is not for taking while the old version runs"
    while not running.done:
        rig.model.beam_step([running])
    assert list(running.hypotheses[0].token_ids) == rig.sequences[0]
    rig.model.beam_end(running)
    rig.model.release_adapter_slot(0)
    assert rig.promote(2, "b") == (0, None), "then it is empty"


def test_promotions_beside_decoding_never_change_an_answer(rig: PromotionRig) -> None:
    """Two threads swap three names through three slots; each answer is the version its request acquired."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def swap(names: str, numbers: Sequence[int]) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                rig.promote(numbers[turn % len(numbers)], names[turn % len(names)])
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
            slot, resident = rig.model.acquire_adapter("abc"[answers % 3])
        except UnknownAdapter:
            continue
        number = rig.answer(slot)
        assert number is not None and rig.digests[number] == resident.digest
        rig.model.release_adapter_slot(slot)
        answers += 1
        seen.add(number)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == [] and answers >= 100 and len(seen) == 6
    assert all(one.refs == 0 for one in rig.model.resident_adapters())


# ---- negative controls: with a guard switched off, the wrong thing happens, so the tests above do see it


def test_control_without_the_digest_check_a_foreign_adapter_answers(
    rig: PromotionRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.source.folders[rig.digests[0]] = rig.folders[1]
    monkeypatch.setattr(store_module, "folder_digest", lambda folder: rig.digests[0])
    slot, _ = rig.promote(0, "a")
    assert rig.answer(slot) == 1


def test_control_a_leak_between_rows_is_seen(rig: PromotionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.promote(0, "a"), rig.promote(1, "b")
    requests = [BeamReq((5, 6), SRC, TGT, slot, num_beams=1, max_new=LENGTH + 2) for slot in (0, 1)]

    def best() -> list[list[int]]:
        return [found[0][0] for found in beams(rig.model, requests)]

    assert best() == rig.sequences[:2]
    honest = tables.LoraProjection.apply

    def leaking(
        self: tables.LoraProjection, x: torch.Tensor, out: torch.Tensor, rows: object
    ) -> torch.Tensor:
        whole = tables.RowAdapters.of([0] * x.shape[0], x.device)
        assert whole is not None
        return honest(self, x, out, whole)

    monkeypatch.setattr(tables.LoraProjection, "apply", leaking)
    assert best() == [rig.sequences[0]] * 2


def test_control_a_busy_slot_that_is_written_is_seen(
    rig: PromotionRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.promote(0, "a")
    slot, _ = rig.model.acquire_adapter("a")
    table = rig.model.adapters.pool._table
    monkeypatch.setattr(table, "_victim", lambda name: slot)
    rig.promote(1, "b")
    assert rig.answer(slot) == 1
