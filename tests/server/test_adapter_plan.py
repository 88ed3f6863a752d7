"""What a pod does about its adapters, as a pure function."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nllb_server.adapter_inventory import missing_required
from nllb_server.adapter_plan import (
    CONTENT_RETRY_SECONDS,
    Failure,
    Fetch,
    Held,
    Load,
    Unload,
    Version,
    failed,
    identity,
    plan,
    state_of,
)
from nllb_server.wire import AdapterProblem, Source, WantedAdapter

ONE, TWO = "1" * 64, "2" * 64
ORIGIN, WAIT = Source(kind="origin"), Source(kind="wait")
CONTENT = AdapterProblem(reason="NoEffect", message="all zero", fault="content")
POD = AdapterProblem(reason="PeerUnavailable", message="gone", fault="pod")


def wanted(name: str = "a", digest: str | None = ONE, **fields: object) -> WantedAdapter:
    return WantedAdapter.model_validate(
        {"name": name, "uid": f"uid-{name}", "generation": 1, "digest": digest, "uri": "pvc://m/a",
         "sources": [ORIGIN], **fields}
    )  # fmt: skip


def test_what_is_not_here_is_fetched() -> None:
    assert plan([wanted()], Held(), now=0) == [Fetch(wanted())]


def test_nothing_is_fetched_while_another_pod_fetches_it_first_or_no_source_is_given() -> None:
    assert plan([wanted(sources=[WAIT])], Held(), now=0) == []
    assert plan([wanted(sources=[])], Held(), now=0) == []


def test_an_adapter_on_disk_is_resident_and_takes_no_slot_by_itself() -> None:
    assert plan([wanted()], Held(stored=frozenset({ONE})), now=0) == []


def test_pinned_and_active_adapters_take_a_slot() -> None:
    held = Held(stored=frozenset({ONE}))
    for special in (wanted(pinned=True), wanted(active=True)):
        assert plan([special], held, now=0) == [Load(special, ONE)]


def test_a_new_version_on_disk_replaces_the_one_in_the_slot() -> None:
    held = Held(stored=frozenset({ONE, TWO}), loaded={"a": Version("uid-a", ONE)})
    new = wanted(digest=TWO)
    assert plan([new], held, now=0) == [Load(new, TWO)]


def test_a_name_that_nobody_wants_any_more_is_unloaded() -> None:
    held = Held(stored=frozenset({ONE}), loaded={"a": Version("uid-a", ONE)})
    assert plan([], held, now=0) == [Unload("a")]


def test_a_name_that_passed_to_another_adapter_is_unloaded_before_the_new_content_comes() -> None:
    held = Held(stored=frozenset({ONE}), loaded={"a": Version("uid-of-the-old-one", ONE)})
    assert plan([wanted(digest=TWO)], held, now=0) == [Unload("a")]


def test_a_name_that_passed_on_with_the_same_content_stays_loaded() -> None:
    held = Held(stored=frozenset({ONE}), loaded={"a": Version("uid-of-the-old-one", ONE)})
    assert plan([wanted(digest=ONE)], held, now=0) == []


def test_a_name_with_an_action_in_progress_is_left_alone() -> None:
    assert plan([wanted()], Held(busy=frozenset({"a"})), now=0) == []


def test_a_digest_that_the_first_fetch_found_counts_until_the_adapter_changes() -> None:
    unknown = wanted(digest=None)
    held = Held(stored=frozenset({ONE}), observed={identity(unknown): ONE})
    assert plan([unknown], held, now=0) == []
    changed = unknown.model_copy(update={"generation": 2})
    assert plan([changed], held, now=0) == [Fetch(changed)]


def test_a_fault_of_the_pod_is_retried_soon_and_at_once_from_other_sources() -> None:
    failure = failed(wanted(), POD, None, now=100.0)
    held = Held(failures={"a": failure})
    assert plan([wanted()], held, now=failure.retry_at - 0.01) == []
    assert plan([wanted()], held, now=failure.retry_at) == [Fetch(wanted())]
    elsewhere = wanted(sources=[Source(kind="peer", addr="10.0.0.9:8001")])
    assert plan([elsewhere], held, now=100.0) == [Fetch(elsewhere)]


def test_a_fault_of_the_content_is_not_cured_by_other_sources() -> None:
    failure = failed(wanted(), CONTENT, None, now=100.0)
    held = Held(failures={"a": failure})
    elsewhere = wanted(sources=[Source(kind="peer", addr="10.0.0.9:8001")])
    assert plan([elsewhere], held, now=101.0) == []
    assert plan([wanted(generation=2)], held, now=101.0) != []
    assert plan([wanted()], held, now=100.0 + CONTENT_RETRY_SECONDS) != []


def test_pauses_grow_while_the_same_fault_repeats_and_stay_bounded() -> None:
    failure: Failure | None = None
    pauses = []
    for _ in range(9):
        failure = failed(wanted(), POD, failure, now=0.0)
        pauses.append(failure.retry_at)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, 10.0)


def test_states_are_about_the_wanted_version() -> None:
    new = wanted(digest=TWO)
    old_loaded = Held(stored=frozenset({ONE}), loaded={"a": Version("uid-a", ONE)})
    assert state_of(new, old_loaded, fetching=False) == "Absent"
    assert state_of(new, old_loaded, fetching=True) == "Fetching"
    stored = replace(old_loaded, stored=frozenset({ONE, TWO}))
    assert state_of(new, stored, fetching=False) == "Stored"
    assert state_of(new, replace(stored, loaded={"a": Version("uid-a", TWO)}), fetching=False) == "Loaded"
    refused = replace(stored, failures={"a": failed(new, CONTENT, None, now=0)})
    assert state_of(new, refused, fetching=False) == "Failed"
    full = replace(stored, failures={"a": failed(new, POD, None, now=0)})
    assert state_of(new, full, fetching=False) == "Stored", "a full pool is no failure of what is on disk"


DIGESTS = [character * 64 for character in "123"]
ADAPTERS = st.lists(
    st.builds(
        wanted,
        name=st.sampled_from("abcd"),
        digest=st.sampled_from(DIGESTS),
        pinned=st.booleans(),
    ),
    unique_by=lambda one: one.name,
)
HELD = st.builds(
    Held,
    stored=st.frozensets(st.sampled_from(DIGESTS)),
    loaded=st.dictionaries(st.sampled_from("abcd"), st.sampled_from(DIGESTS)).map(
        lambda loaded: {name: Version(f"uid-{name}", digest) for name, digest in loaded.items()}
    ),
)


@given(ADAPTERS, HELD)
def test_following_the_plan_makes_everything_resident_and_then_there_is_nothing_left_to_do(
    adapters: list[WantedAdapter], held: Held
) -> None:
    for _ in range(3):
        actions = plan(adapters, held, now=0)
        names = [one.name if isinstance(one, Unload) else one.adapter.name for one in actions]
        assert len(names) == len(set(names)), "one action per name"
        for action in actions:
            loaded = dict(held.loaded)
            if isinstance(action, Unload):
                del loaded[action.name]
                held = replace(held, loaded=loaded)
            else:
                digest = action.adapter.digest or ""
                loaded[action.adapter.name] = Version(action.adapter.uid, digest)
                held = replace(held, loaded=loaded, stored=held.stored | {digest})
    assert plan(adapters, held, now=0) == []
    assert {one.digest for one in adapters} <= held.stored
    assert set(held.loaded) <= {one.name for one in adapters}


def test_readiness_waits_for_required_adapters_until_their_fetch_has_ended() -> None:
    required, other = wanted(required=True), wanted("b", digest=TWO)
    on_disk = Held(stored=frozenset({ONE}))
    assert missing_required([required, other], Held(), fetching=()) == ["a"]
    assert missing_required([required, other], on_disk, fetching={"a"}) == ["a"]
    assert missing_required([required, other], on_disk, fetching={"b"}) == []
    switched = replace(on_disk, loaded={"a": Version("uid-a", ONE)})
    assert state_of(required, switched, fetching=True) == "Fetching", "its source is not known yet"
    assert missing_required([required], switched, fetching=()) == []
