"""The store of the local backend: what was answered is on the disk, what was deleted is gone for good."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nllb_operator.backends.local.store import Key, ObjectStore, StoreDamaged, merged


def thing(name: str, kind: str = "Thing", owner: str | None = None, **content: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if owner is not None:
        metadata["ownerReferences"] = [{"uid": owner}]
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **content}


def uid(store: ObjectStore, name: str, kind: str = "Thing") -> str:
    body = store.get(Key(kind, "default", name))
    assert body is not None
    return str(body["metadata"]["uid"])


def test_an_object_survives_a_restart_with_its_identity(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    assert store.apply(thing("a", spec={"n": 1})) == "created"
    store.set_status(Key("Thing", "default", "a"), {"ready": True})
    again = ObjectStore(tmp_path)
    assert again.objects("Thing") == store.objects("Thing")
    assert again.apply(thing("a", spec={"n": 1})) == "unchanged"
    assert again.apply(thing("a", spec={"n": 2})) == "configured"
    (body,) = again.objects("Thing")
    assert body["metadata"]["generation"] == 2
    assert body["status"] == {"ready": True}


def test_apply_removes_the_fields_it_no_longer_names_and_leaves_those_of_others(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    store.apply(thing("a", spec={"mine": 1, "gone": 2, "deep": {"x": 1, "y": 2}, "list": [1, 2]}))
    store.annotate(Key("Thing", "default", "a"), "theirs", "kept")
    store.apply(thing("a", spec={"mine": 3, "deep": {"y": 2}, "list": [3]}))
    (body,) = store.objects("Thing")
    assert body["spec"] == {"mine": 3, "deep": {"y": 2}, "list": [3]}
    assert body["metadata"]["annotations"] == {"theirs": "kept"}


def test_a_status_does_not_change_the_generation_and_an_equal_one_changes_nothing(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    store.apply(thing("a", spec={}))
    told: list[str] = []
    store.listeners.append(lambda body: told.append(body["metadata"]["name"]))
    store.set_status(Key("Thing", "default", "a"), {"n": 1})
    seen = len(told)
    store.set_status(Key("Thing", "default", "a"), {"n": 1})
    store.set_status(Key("Thing", "default", "a"), {"n": 2}, uid="another")
    assert len(told) == seen > 0
    (body,) = store.objects("Thing")
    assert body["status"] == {"n": 1}
    assert body["metadata"]["generation"] == 1


def test_what_an_object_owns_goes_with_it_but_a_pod_is_only_marked(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    store.apply(thing("top"))
    store.apply(thing("middle", owner=uid(store, "top")))
    store.apply(thing("pod", kind="Pod", owner=uid(store, "middle")))
    store.apply(thing("stranger"))
    assert store.delete(Key("Thing", "default", "top"))
    assert [body["metadata"]["name"] for body in store.objects("Thing")] == ["stranger"]
    (pod,) = store.objects("Pod")
    assert pod["metadata"]["deletionTimestamp"]
    store.remove(Key.of(pod))
    assert store.objects("Pod") == []
    assert not store.delete(Key("Thing", "default", "top"))


def test_a_namesake_with_another_uid_is_not_deleted(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    store.apply(thing("a"))
    assert not store.delete(Key("Thing", "default", "a"), uid="of an earlier one")
    assert len(store.objects("Thing")) == 1


def test_orphans_drafts_and_pods_of_a_crash_are_gone_after_the_start(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    store.apply(thing("owner"))
    store.apply(thing("child", owner=uid(store, "owner")))
    store.apply(thing("pod", kind="Pod", owner=uid(store, "owner")))
    (tmp_path / "Thing" / "default" / "owner.json").unlink()  # the crash came between the two deletions
    (tmp_path / "Thing" / "default" / ".other.json.draft").write_text("{")
    again = ObjectStore(tmp_path)
    assert again.objects("Thing") == again.objects("Pod") == []
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_a_damaged_file_is_named_and_not_overwritten(tmp_path: Path) -> None:
    ObjectStore(tmp_path).apply(thing("a"))
    file = tmp_path / "Thing" / "default" / "a.json"
    file.write_text("{")
    with pytest.raises(StoreDamaged, match=r"a\.json"):
        ObjectStore(tmp_path)
    assert file.read_text() == "{"


@pytest.mark.parametrize(
    "content",
    ["[]", '{"body": {}, "applied": {}}', '{"body": [], "applied": 3}', '{"body": {"metadata": {}}}'],
)
def test_a_file_of_the_wrong_shape_is_named_too(tmp_path: Path, content: str) -> None:
    ObjectStore(tmp_path).apply(thing("a"))
    (tmp_path / "Thing" / "default" / "a.json").write_text(content)
    with pytest.raises(StoreDamaged, match=r"a\.json"):
        ObjectStore(tmp_path)


def test_a_body_that_was_handed_out_is_a_copy(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    store.apply(thing("a", spec={"n": 1}))
    (body,) = store.objects("Thing")
    body["spec"]["n"] = 2
    assert store.objects("Thing")[0]["spec"] == {"n": 1}


values = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(objects, objects)
def test_applying_twice_is_applying_once_and_the_last_word_holds(first: Any, second: Any) -> None:
    assert merged(merged({}, {}, first), first, second) == second
    assert merged(second, second, second) == second


@given(objects, objects)
def test_fields_of_others_stay(theirs: Any, ours: Any) -> None:
    result = merged({"theirs": theirs}, {}, {"ours": ours})
    assert result == {"theirs": theirs, "ours": ours}
    assert merged(result, {"ours": ours}, {}) == {"theirs": theirs}
