"""Slots: who may be written, who may be referenced, and what a name leads to, in every order of events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nllb_engine.errors import InvalidRequest, PoolFull, UnknownAdapter
from nllb_engine.lora.slot_table import Claim, SlotState, SlotTable


def load(table: SlotTable, name: str, digest: str = "d", *, activate: bool = False) -> int:
    claim = table.claim(name, digest)
    table.commit(claim, 4, 100, activate=activate)
    return claim.slot


def test_empty_slots_are_taken_before_anyone_is_evicted() -> None:
    table = SlotTable(3)
    assert [load(table, name) for name in "abc"] == [0, 1, 2]
    table.unload("b")
    assert table.claim("d", "d") == Claim(1, "d", "d", None)


def test_the_least_recently_used_idle_adapter_is_evicted() -> None:
    table = SlotTable(3)
    for name in "abc":
        load(table, name)
    table.release(table.acquire(0))
    assert table.claim("d", "d") == Claim(1, "d", "d", "b")
    with pytest.raises(UnknownAdapter):
        table.resolve("b")


def test_a_busy_slot_is_never_written() -> None:
    table = SlotTable(2)
    load(table, "a"), load(table, "b")
    table.acquire(0), table.acquire(1)
    with pytest.raises(PoolFull, match="all 2 adapter slots"):
        table.claim("c", "d")
    with pytest.raises(PoolFull):
        table.claim_slot(0, "c", "d")
    with pytest.raises(PoolFull):
        table.claim_slot(0, "a", "new")
    table.release(1)
    assert table.claim("c", "d").evicted == "b"


@pytest.mark.parametrize("kept", ["pinned", "active"])
def test_a_pinned_or_active_adapter_keeps_its_slot(kept: str) -> None:
    table = SlotTable(1)
    load(table, "a", activate=kept == "active")
    table.pin({"a"} if kept == "pinned" else set())
    with pytest.raises(PoolFull):
        table.claim("b", "d")
    with pytest.raises(PoolFull):
        table.claim_slot(0, "b", "d")
    table.unload("a")
    assert table.claim("b", "d").slot == 0


def test_a_full_pool_can_still_update_an_idle_adapter_in_its_own_slot() -> None:
    table = SlotTable(2)
    load(table, "a"), load(table, "b", activate=True)
    table.pin({"a"})
    assert table.claim("a", "new") == Claim(0, "a", "new", None)
    with pytest.raises(PoolFull):
        table.claim("b", "new")


def test_the_old_version_serves_until_its_references_are_gone_and_is_then_empty() -> None:
    table = SlotTable(2)
    old = load(table, "a", "v1", activate=True)
    assert table.acquire(-1) == old
    new = load(table, "a", "v2")
    assert table.resolve("a") == new != old
    assert table.slots[old].state is SlotState.RETIRED
    assert table.acquire(old) == old, "a running request may count its slot again"
    with pytest.raises(PoolFull):
        table.claim_slot(old, "b", "d")
    table.release(old)
    assert table.slots[old].state is SlotState.RETIRED
    table.release(old)
    assert table.slots[old].state is SlotState.EMPTY
    assert table.acquire(-1) == new, "the name stays active"
    assert table.claim("b", "d").slot == old


def test_a_slot_being_written_leads_nowhere_and_an_abandoned_one_is_empty() -> None:
    table = SlotTable(1)
    load(table, "a")
    claim = table.claim("b", "d")
    assert table.names == [] and table.acquire(0) == -1
    with pytest.raises(PoolFull):
        table.claim("c", "d")
    table.abandon(claim)
    assert table.slots[0].state is SlotState.EMPTY


def test_references_saturate_and_out_of_range_counts_nothing() -> None:
    table = SlotTable(1)
    assert [table.acquire(slot) for slot in (-1, 0, 1, -7)] == [-1, -1, -1, -1]
    load(table, "a")
    for slot in (0, 0, 1, -1, 99):
        table.release(slot)
    assert table.slots[0].refs == 0
    assert table.acquire(0) == 0 and table.slots[0].refs == 1


def test_identities_are_0_for_the_base_only_and_change_with_every_content() -> None:
    table = SlotTable(2)
    assert table.identity(-1) == 0
    seen = {load(table, "a", "v1"): None}
    first = table.identity(0)
    table.activate("a")
    assert table.identity(-1) == first != 0
    slot = load(table, "a", "v2")
    assert table.identity(slot) not in (0, first) and seen
    table.unload("a")
    slot = load(table, "a", "v1")
    assert table.identity(slot) not in (0, first), "a new generation of the same content"
    for wrong in (1 - slot, 5, -2):
        with pytest.raises(InvalidRequest):
            table.identity(wrong)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    table = SlotTable(1)
    load(table, "a")
    with pytest.raises(UnknownAdapter) as caught:
        table.activate("b")
    assert caught.value.known == ["a"]
    assert not table.unload("b")
    with pytest.raises(InvalidRequest, match="slots are 0 to 0"):
        table.claim_slot(1, "b", "d")


NAMES = st.sampled_from("abcdef")


class Slots(RuleBasedStateMachine):
    """Requests hold references with the content they saw; a load is two steps, as other threads see it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(4)
        self.claims: list[Claim] = []
        self.held: list[tuple[int, str, str, int]] = []
        self.versions = 0

    @rule(name=NAMES)
    def begin_a_load(self, name: str) -> None:
        table = self.table
        self.versions += 1
        before = [(one.state, one.refs, one.name) for one in table.slots]
        kept = table.pinned | {table.active}
        try:
            claim = table.claim(name, f"v{self.versions}")
        except PoolFull:
            assert all(
                refs
                or state is SlotState.LOADING
                or (owner in kept and (owner != name or name == table.active))
                for state, refs, owner in before
            ), "there was an idle slot to take"
            return
        state, refs, owner = before[claim.slot]
        assert refs == 0 and state in (SlotState.EMPTY, SlotState.RESIDENT)
        if state is SlotState.RESIDENT:
            assert not any(one[0] is SlotState.EMPTY for one in before)
            assert owner not in kept or owner == name != table.active
        assert claim.evicted == (owner if state is SlotState.RESIDENT and owner != name else None)
        self.claims.append(claim)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), activate=st.booleans())
    def end_a_load(self, data: st.DataObject, activate: bool) -> None:
        claim = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        self.table.commit(claim, 4, 10, activate=activate)
        assert self.table.resolve(claim.name) == claim.slot
        assert self.table.find(claim.name, claim.digest) == claim.slot

    @precondition(lambda self: self.claims)
    @rule()
    def fail_a_load(self) -> None:
        self.table.abandon(self.claims.pop())

    @rule(name=NAMES)
    def begin_a_request(self, name: str) -> None:
        if name in self.table.names:
            slot = self.table.acquire(self.table.resolve(name))
            self._hold(slot)
            assert self.table.slots[slot].name == name

    @rule()
    def begin_a_request_for_the_active(self) -> None:
        slot = self.table.acquire(-1)
        assert (slot >= 0) == (self.table.active is not None)
        if slot >= 0:
            self._hold(slot)

    def _hold(self, slot: int) -> None:
        one = self.table.slots[slot]
        self.held.append((slot, one.name, one.digest, one.generation))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end_a_request(self, data: st.DataObject) -> None:
        slot, *_ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.table.release(slot)

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        known = name in self.table.names
        assert self.table.unload(name) == known
        assert name not in self.table.names

    @rule(names=st.sets(NAMES, max_size=3))
    def pin(self, names: set[str]) -> None:
        self.table.pin(names)

    @invariant()
    def what_a_request_holds_is_what_it_was_given(self) -> None:
        for slot, name, digest, generation in self.held:
            one = self.table.slots[slot]
            assert (one.name, one.digest, one.generation) == (name, digest, generation)
            assert one.state in (SlotState.RESIDENT, SlotState.RETIRED)

    @invariant()
    def references_are_exactly_those_held(self) -> None:
        for slot, one in enumerate(self.table.slots):
            assert one.refs == sum(held[0] == slot for held in self.held)

    @invariant()
    def states_and_names_agree(self) -> None:
        resident = {one.name: i for i, one in enumerate(self.table.slots) if one.state is SlotState.RESIDENT}
        assert resident == {name: self.table.resolve(name) for name in self.table.names}
        loading = {i for i, one in enumerate(self.table.slots) if one.state is SlotState.LOADING}
        assert loading == {claim.slot for claim in self.claims}
        assert self.table.active is None or self.table.active in resident


def test_slots_keep_their_promises_in_any_order_of_events() -> None:
    run_state_machine_as_test(
        Slots, settings=settings(max_examples=300, stateful_step_count=60, deadline=None)
    )
