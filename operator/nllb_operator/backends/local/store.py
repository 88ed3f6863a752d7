"""Objects in a folder: what the API server and etcd are to Kubernetes, for one machine.

Knows: uids, generations, apply (three-way, as server-side apply by one manager does it), status apart from
the rest, deletion with everything an object owns, and who is to be told of a change. Each object is a file,
written atomically, so a crash at any moment loses nothing that was answered. Pods are not kept: their
processes die with the daemon. Must not know what any kind of object means.

Not for several threads: everything happens on the event loop.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nllb_operator import machine
from nllb_operator.backends.base import Manifest

_SERVER_FIELDS = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
_TRANSIENT_KINDS = frozenset({"Pod"})

Outcome = Literal["created", "configured", "unchanged"]


class Key(NamedTuple):
    """Names an object. Kinds of different groups do not share names here."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Key:
        """The key of a manifest that says its namespace."""
        return cls(manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"])


class StoreDamaged(Exception):
    """A file of the store cannot be read; the message names it."""


@dataclass
class _Entry:
    """An object and the manifest that was last applied to it."""

    body: Manifest
    applied: Manifest


class ObjectStore:
    """All objects, in memory and in `folder`. Bodies handed out are copies; changes only happen here."""

    def __init__(self, folder: Path) -> None:
        """Read what the folder holds; leftovers of a crash (children without owner, drafts) are removed."""
        self._folder = folder
        self._entries: dict[Key, _Entry] = {}
        self._version = 0
        self.listeners: list[Callable[[Manifest], None]] = []
        folder.mkdir(parents=True, exist_ok=True)
        for draft in folder.glob("*/*/.*.draft"):
            draft.unlink()
        entries = [_read(file) for file in sorted(folder.glob("*/*/*.json"))]
        for entry in sorted(entries, key=lambda entry: entry.body["metadata"]["creationTimestamp"]):
            self._entries[Key.of(entry.body)] = entry
            self._version = max(self._version, int(entry.body["metadata"]["resourceVersion"]))
        self._remove_orphans()

    # --- reading

    def get(self, key: Key) -> Manifest | None:
        """The object, or None."""
        entry = self._entries.get(key)
        return copy.deepcopy(entry.body) if entry else None

    def objects(self, kind: str, namespace: str | None = None) -> list[Manifest]:
        """All objects of a kind, the oldest first."""
        found = (k for k in self._entries if k.kind == kind and namespace in (None, k.namespace))
        return [copy.deepcopy(self._entries[key].body) for key in found]

    def owned_by(self, uid: str) -> list[Manifest]:
        """Objects whose ownerReferences name this uid, the oldest first."""
        return [copy.deepcopy(self._entries[key].body) for key in self._owned(uid)]

    def _owned(self, uid: str) -> Iterator[Key]:
        for key, entry in self._entries.items():
            if uid in owner_uids(entry.body):
                yield key

    # --- writing

    def applied(self, manifest: Manifest) -> Manifest:
        """What the object would be after `apply`: for admission. The status is that of now."""
        entry = self._entries.get(Key.of(manifest))
        wanted = _without_server_fields(manifest)
        if entry is None:
            return wanted
        return merged(entry.body, _without_server_fields(entry.applied), wanted)

    def apply(self, manifest: Manifest, body: Manifest | None = None) -> Outcome:
        """Create the object or change the fields that `manifest` names; fields it no longer names go.

        `body`: the result of `applied`, completed with defaults.
        """
        key, wanted = Key.of(manifest), copy.deepcopy(body or self.applied(manifest))
        entry = self._entries.get(key)
        if entry is None:
            wanted["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
            self._save(key, _Entry(wanted, copy.deepcopy(manifest)))
            return "created"
        if wanted == entry.body:
            return "unchanged"
        if _content(wanted) != _content(entry.body):
            wanted["metadata"]["generation"] += 1
        self._save(key, _Entry(wanted, copy.deepcopy(manifest)))
        return "configured"

    def set_status(self, key: Key, status: Mapping[str, Any], uid: str | None = None) -> None:
        """Replace the status; nothing happens if the object (with this uid) is gone or it is equal."""
        entry = self._entries.get(key)
        if entry is None or (uid is not None and entry.body["metadata"]["uid"] != uid):
            return
        if entry.body.get("status") != status:
            self._save(key, _Entry({**entry.body, "status": copy.deepcopy(dict(status))}, entry.applied))

    def annotate(self, key: Key, name: str, value: str) -> None:
        """Set one annotation; nothing happens if the object is gone."""
        entry = self._entries.get(key)
        if entry is not None and entry.body["metadata"].get("annotations", {}).get(name) != value:
            body = copy.deepcopy(entry.body)
            body["metadata"].setdefault("annotations", {})[name] = value
            self._save(key, _Entry(body, entry.applied))

    def delete(self, key: Key, uid: str | None = None) -> bool:
        """Delete the object and what it owns. A Pod is only marked: who runs it calls `remove` afterwards."""
        entry = self._entries.get(key)
        if entry is None or (uid is not None and entry.body["metadata"]["uid"] != uid):
            return False
        if key.kind not in _TRANSIENT_KINDS:
            self.remove(key)
        elif "deletionTimestamp" not in entry.body["metadata"]:
            body = copy.deepcopy(entry.body)
            body["metadata"]["deletionTimestamp"] = now()
            self._save(key, _Entry(body, entry.applied))
        return True

    def remove(self, key: Key) -> None:
        """Take the object out, now, and delete what it owns."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._file(key).unlink(missing_ok=True)
        for child in list(self._owned(entry.body["metadata"]["uid"])):
            self.delete(child)
        self._tell(entry.body)

    def _save(self, key: Key, entry: _Entry) -> None:
        self._version += 1
        entry.body["metadata"]["resourceVersion"] = str(self._version)
        if key.kind not in _TRANSIENT_KINDS:
            file = self._file(key)
            file.parent.mkdir(parents=True, exist_ok=True)
            machine.write_atomically(file, json.dumps({"body": entry.body, "applied": entry.applied}))
        previous = self._entries.get(key)
        self._entries[key] = entry
        if previous is not None:
            self._tell(previous.body)  # whoever the object pointed to before wants to know, too
        self._tell(entry.body)

    def _tell(self, body: Manifest) -> None:
        for listener in self.listeners:
            listener(body)

    def _file(self, key: Key) -> Path:
        return self._folder / key.kind / key.namespace / f"{key.name}.json"

    def _remove_orphans(self) -> None:
        uids = {entry.body["metadata"]["uid"] for entry in self._entries.values()}
        for key, entry in list(self._entries.items()):
            owners = owner_uids(entry.body)
            if owners and not owners & uids:
                self.remove(key)


def merged(current: Manifest, last: Mapping[str, Any], wanted: Mapping[str, Any]) -> Manifest:
    """Three-way merge: `wanted` wins, what only `last` named goes, the rest stays. Lists are whole."""
    result = {key: value for key, value in current.items() if key in wanted or key not in last}
    for key, value in wanted.items():
        present, before = current.get(key), last.get(key)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            result[key] = merged(dict(present), before if isinstance(before, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def owner_uids(body: Mapping[str, Any]) -> set[str]:
    """The uids in an object's ownerReferences."""
    return {owner["uid"] for owner in body["metadata"].get("ownerReferences", ())}


def now() -> str:
    """This moment as Kubernetes writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _without_server_fields(manifest: Manifest) -> Manifest:
    body = {key: copy.deepcopy(value) for key, value in manifest.items() if key != "status"}
    for name in _SERVER_FIELDS:
        body["metadata"].pop(name, None)
    return body


def _content(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in ("metadata", "status")}


def _read(file: Path) -> _Entry:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        entry = _Entry(content["body"], content["applied"])
        metadata = {name: entry.body["metadata"][name] for name in ("uid", "resourceVersion", "generation")}
        datetime.fromisoformat(entry.body["metadata"]["creationTimestamp"])
        if Key.of(entry.body) != Key.of(entry.applied) or not int(metadata["resourceVersion"]):
            raise ValueError("body and applied are of two objects")
        owner_uids(entry.body)
        return entry
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamaged(f"{file} cannot be read ({error}); move it away to start without it") from error
