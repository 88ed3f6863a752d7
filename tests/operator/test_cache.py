import itertools
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nllb_operator.backends.base import FleetKey
from nllb_operator.backends.kubernetes.cache import ObjectCache, Place
from nllb_operator.naming import DEPLOYMENT_LABEL

FLEET = FleetKey("default", "fleet")


def service(version: int, uid: str = "u", name: str = "fleet", fleet: str = "fleet") -> dict[str, Any]:
    meta = {
        "name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version),
        "labels": {DEPLOYMENT_LABEL: fleet}, "managedFields": [{"large": "x" * 100}],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"version": version}}


def lora(fleet: str, version: int = 1) -> dict[str, Any]:
    meta = {"name": "polite", "namespace": "default", "uid": "lora", "resourceVersion": str(version)}
    spec = {"deploymentRef": {"name": fleet}}
    return {"apiVersion": "fleet.nllb.io/v1alpha1", "kind": "LoraAdapter", "metadata": meta, "spec": spec}


def version_in(cache: ObjectCache) -> int | None:
    body = cache.get(Place("Service", "default", "fleet"))
    return None if body is None else body["spec"]["version"]


def test_an_own_write_is_seen_before_its_event_and_the_event_is_no_news() -> None:
    cache = ObjectCache()
    assert cache.put(service(7)) == {FLEET}

    assert cache.put(service(7)) == set()
    assert cache.put(service(6)) == set()
    assert version_in(cache) == 7


def test_what_was_deleted_does_not_come_back_by_a_late_list() -> None:
    cache = ObjectCache()
    cache.put(service(7))
    assert cache.remove(service(9)) == {FLEET}

    assert cache.put(service(8)) == set()
    assert version_in(cache) is None


def test_a_namesake_made_anew_replaces_the_old_one_even_if_its_deletion_comes_later() -> None:
    cache = ObjectCache()
    cache.put(service(7))
    cache.put(service(9, uid="new"))

    assert cache.remove(service(8)) == set()
    assert version_in(cache) == 9


def test_a_whole_list_shows_what_a_watch_has_missed() -> None:
    cache = ObjectCache()
    cache.put(service(7))
    cache.put(lora("fleet"))

    assert cache.replace("Service", [], cache.places()) == {FLEET}
    assert version_in(cache) is None
    assert cache.fleets() == {FLEET}, "other kinds are not in that list"


def test_what_came_while_the_list_was_made_is_not_taken_for_missing() -> None:
    cache = ObjectCache()
    before = cache.places()
    cache.put(service(7))

    cache.replace("Service", [], before)

    assert version_in(cache) == 7


def test_an_adapter_that_moves_concerns_both_fleets() -> None:
    cache = ObjectCache()
    cache.put(lora("old", 1))

    assert cache.put(lora("new", 2)) == {FleetKey("default", "old"), FleetKey("default", "new")}
    assert cache.fleets() == {FleetKey("default", "new")}


def test_the_books_of_field_managers_are_not_kept() -> None:
    cache = ObjectCache()
    cache.put(service(1))

    (body,) = cache.of_fleet(FLEET)

    assert "managedFields" not in body["metadata"]


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_in_whatever_order_news_arrive_the_end_is_the_same(seed: int, number: int) -> None:
    draw = random.Random(seed)
    history: list[tuple[str, dict[str, Any]]] = []
    uid = itertools.count()
    current = f"uid-{next(uid)}"
    for version in range(1, number + 1):
        if draw.random() < 0.3:
            history.append(("DELETED", service(version, current)))
            current = f"uid-{next(uid)}"
        else:
            history.append(("MODIFIED", service(version, current)))
    in_order, shuffled = ObjectCache(), ObjectCache()
    for cache, news in ((in_order, history), (shuffled, draw.sample(history, len(history)))):
        for kind, body in news:
            cache.remove(body) if kind == "DELETED" else cache.put(body)

    assert version_in(in_order) == version_in(shuffled)
