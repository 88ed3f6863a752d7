"""What the API server said last about each object that matters, by fleet.

Knows resource versions, owners and which fleet an object belongs to. Must not know HTTP or kopf. Fed by watch
events, by the answers to own writes and by whole lists; whichever is newest stays, so own writes are seen at
once and a late event takes nothing back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nllb_operator.backends.base import FleetKey, Manifest
from nllb_operator.naming import DEPLOYMENT_LABEL, LORA_ADAPTER, NLLB_DEPLOYMENT

_TOMBSTONES = 10_000


class Place(NamedTuple):
    """Where an object is: at most one is there at a time."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Place:
        """The place of an object."""
        return cls(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])


class ObjectCache:
    """Invariant: an older version never replaces a newer one, and what was deleted stays deleted."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._objects: dict[Place, Manifest] = {}
        self._fleets: dict[FleetKey, set[Place]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def put(self, body: Mapping[str, Any]) -> set[FleetKey]:
        """Take an object over unless something newer is known; the fleets that this concerns."""
        place, meta = Place.of(body), body["metadata"]
        if meta["uid"] in self._gone:
            return set()
        known = self._objects.get(place)
        if known is not None and version_of(known) >= version_of(body):
            return set()
        concerned = self._forget(place) if known is not None else set()
        self._objects[place] = _without_noise(body)
        key = fleet_of(body)
        if key is not None:
            self._fleets.setdefault(key, set()).add(place)
            concerned.add(key)
        return concerned

    def remove(self, body: Mapping[str, Any]) -> set[FleetKey]:
        """The object is gone for good; the fleets that this concerns."""
        uid = body["metadata"]["uid"]
        self._gone[uid] = None
        while len(self._gone) > _TOMBSTONES:
            self._gone.popitem(last=False)
        place = Place.of(body)
        known = self._objects.get(place)
        if known is None or known["metadata"]["uid"] != uid:
            return set()
        return self._forget(place)

    def replace(
        self, kind: str, bodies: Iterable[Mapping[str, Any]], before: Iterable[Place]
    ) -> set[FleetKey]:
        """A whole list of a kind: what was there `before` it was made and is not in it has gone unnoticed."""
        listed = {Place.of(body): body for body in bodies}
        concerned: set[FleetKey] = set()
        for place in before:
            known = self._objects.get(place)
            if place.kind == kind and place not in listed and known is not None:
                concerned |= self.remove(known)
        for body in listed.values():
            concerned |= self.put(body)
        return concerned

    def places(self) -> list[Place]:
        """Where there is an object now."""
        return list(self._objects)

    def get(self, place: Place) -> Manifest | None:
        """The object at a place."""
        return self._objects.get(place)

    def of_fleet(self, key: FleetKey) -> list[Manifest]:
        """Every object of a fleet: its NllbDeployment, LoraAdapters, children and pods, sorted by place."""
        return [self._objects[place] for place in sorted(self._fleets.get(key, ()))]

    def fleets(self) -> set[FleetKey]:
        """Fleets of which there is an NllbDeployment or a LoraAdapter."""
        return {
            key
            for key, places in self._fleets.items()
            if any(place.kind in (NLLB_DEPLOYMENT, LORA_ADAPTER) for place in places)
        }

    def _forget(self, place: Place) -> set[FleetKey]:
        key = fleet_of(self._objects.pop(place))
        if key is None:
            return set()
        self._fleets[key].discard(place)
        if not self._fleets[key]:
            del self._fleets[key]
        return {key}


def fleet_of(body: Mapping[str, Any]) -> FleetKey | None:
    """The fleet that an object belongs to, by its name, reference or label."""
    meta = body["metadata"]
    if body["kind"] == NLLB_DEPLOYMENT:
        return FleetKey(meta["namespace"], meta["name"])
    if body["kind"] == LORA_ADAPTER:
        name = ((body.get("spec") or {}).get("deploymentRef") or {}).get("name")
    else:
        name = (meta.get("labels") or {}).get(DEPLOYMENT_LABEL)
    return FleetKey(meta["namespace"], name) if name else None


def version_of(body: Mapping[str, Any]) -> int:
    """The resource version as a number: larger is newer."""
    return int(body["metadata"]["resourceVersion"])


def owner_uids(body: Mapping[str, Any]) -> set[str]:
    """The uids of an object's owners."""
    return {owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()}


def _without_noise(body: Mapping[str, Any]) -> Manifest:
    """A copy without the bookkeeping of field managers, which is most of its size."""
    meta = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return {**body, "metadata": meta}
