"""Which adapters a fleet is to hold: LoraAdapters read together, so that claims on one name meet.

Pure. Knows versions (an adapter's uid, generation, source and digest), who wins a name, and what a pod
without an operator should load. Must not know how a version spreads, or how a status is worded beyond the
sentence of a problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nllb_operator.backends.base import Manifest
from nllb_operator.resources import InvalidResource, LoraAdapter, NllbDeployment, volume_of
from nllb_server.wire import Inventory, InventoryAdapter, Source, WantedAdapter, WantedSet


@dataclass(frozen=True)
class Version:
    """One content of one LoraAdapter. `digest` None: unknown until somebody has fetched `uri`."""

    uid: str
    generation: int
    uri: str
    digest: str | None

    def held_by(self, inventory: Inventory) -> bool:
        """Whether the pod has the files, verified: it can serve them and give them to others."""
        return self.digest is not None and (
            self.digest in inventory.stored
            or any(
                entry.digest == self.digest and entry.state in ("Stored", "Loaded")
                for entry in inventory.adapters
            )
        )

    def served_by(self, inventory: Inventory, name: str, *, in_slot: bool) -> bool:
        """Whether requests for `name` are answered by this version; `in_slot`: at once, by a loaded one."""
        states = ("Loaded",) if in_slot else ("Stored", "Loaded")
        return self.digest is not None and any(
            entry.name == name and entry.digest == self.digest and entry.state in states
            for entry in inventory.adapters
        )

    def attempt_on(self, inventory: Inventory, name: str) -> InventoryAdapter | None:
        """The pod's entry about its work on this version (fetching it, having failed), if there is one."""
        for entry in inventory.adapters:
            if entry.name == name and entry.uid in ("", self.uid) and entry.generation == self.generation:
                return entry
        return None


@dataclass(frozen=True)
class Problem:
    """Why something is not as it should be: a CamelCase reason, and a sentence that says what to do."""

    reason: str
    message: str


@dataclass(frozen=True)
class AdapterView:
    """A LoraAdapter as its fleet sees it.

    `problem`: it is not wanted, for this reason. `remark`: it is wanted, but its spec is not met in full.
    `version` is what is to be resident; `required` says that it has been Ready in this fleet. `previous` is
    the version that was Ready before and stays in use until `version` has arrived.
    """

    body: Manifest
    resource: LoraAdapter | None
    problem: Problem | None = None
    remark: Problem | None = None
    version: Version | None = None
    previous: Version | None = None
    required: bool = False
    active: bool = False

    @property
    def adapter(self) -> LoraAdapter:
        """The parsed resource of a view without a problem."""
        assert self.resource is not None
        return self.resource

    @property
    def wanted(self) -> Version:
        """The version of a view without a problem."""
        assert self.version is not None
        return self.version

    @property
    def status(self) -> Mapping[str, Any]:
        """The status as it was last written."""
        status: Mapping[str, Any] = self.body.get("status") or {}
        return status

    def entry(self, version: Version, sources: Sequence[Source]) -> WantedAdapter:
        """What a pod is told about the adapter: hold `version`, get it from `sources`."""
        adapter = self.adapter
        return WantedAdapter(
            name=adapter.served_name,
            uid=version.uid,
            generation=version.generation,
            digest=version.digest,
            uri=version.uri,
            required=self.required if version == self.version else True,
            pinned=adapter.spec.pinned,
            active=self.active,
            sources=list(sources),
        )


def resolve_adapters(
    deployment: NllbDeployment, bodies: Sequence[Manifest], *, allow_file_uris: bool
) -> list[AdapterView]:
    """Every LoraAdapter of the fleet, the oldest first, with its version or the problem that keeps it out."""
    views = []
    for body in bodies:
        if body["metadata"].get("deletionTimestamp"):
            continue
        try:
            resource = LoraAdapter.from_body(body)
        except InvalidResource as error:
            views.append(AdapterView(body, None, Problem("InvalidSpec", str(error))))
            continue
        view = _with_version(AdapterView(body, resource), deployment.metadata.name)
        problem = source_problem(deployment, resource.spec.source.uri, allow_file_uris=allow_file_uris)
        views.append(view if problem is None else _without_source(view, problem))
    views.sort(key=lambda view: view.body["metadata"].get("uid", ""))
    views.sort(key=lambda view: view.body["metadata"].get("creationTimestamp", ""))
    return _one_default(_one_owner_per_name(views))


def source_problem(deployment: NllbDeployment, uri: str, *, allow_file_uris: bool) -> Problem | None:
    """What keeps a pod of this fleet from reading `uri`, if anything."""
    volume = volume_of(uri)
    if volume is None:
        if allow_file_uris:
            return None
        return Problem(
            "SourceNotAllowed",
            f"{uri}: file:// is not allowed here; use pvc://VOLUME/path, or start the operator with"
            " NLLB_OPERATOR_ALLOW_FILE_URIS=true",
        )
    known = [item.name for item in deployment.spec.volumes]
    if volume in known:
        return None
    has = f"it has {', '.join(known)}" if known else "it has none"
    return Problem(
        "VolumeNotFound",
        f"{uri}: NllbDeployment {deployment.metadata.name} has no volume {volume!r} ({has}); add it to"
        " spec.volumes or change the uri",
    )


def adopt_digests(views: Sequence[AdapterView], inventories: Sequence[Inventory]) -> list[AdapterView]:
    """Give versions of unknown content the digest that a pod has verified at its first fetch."""
    return [_adopted(view, inventories) if view.problem is None else view for view in views]


def standalone_set(fleet: str, views: Sequence[AdapterView]) -> WantedSet:
    """What a pod loads that never hears from its operator: what has been Ready, else what is known by digest.

    Everything comes from its origin; the revision is below that of every set that the operator sends.
    """
    entries = []
    for view in views:
        if view.problem is not None:
            continue
        version = view.previous if view.previous is not None and not view.required else view.wanted
        if version.digest is not None:
            entries.append(view.entry(version, [Source(kind="origin")]))
    return WantedSet(fleet=fleet, revision=0, adapters=sorted(entries, key=lambda entry: entry.name))


def _with_version(view: AdapterView, fleet: str) -> AdapterView:
    adapter, status = view.adapter, view.status
    source = adapter.spec.source
    digest = source.sha256
    if digest is None and status.get("digestUri") == source.uri:
        digest = status.get("digest")
    version = Version(adapter.metadata.uid, adapter.metadata.generation, source.uri, digest)
    last = status.get("lastReady") or {}
    if last.get("deployment") != fleet or not last.get("digest"):
        return replace(view, version=version, active=adapter.spec.active)
    required = last["digest"] == digest
    previous = None if required else Version(version.uid, last["generation"], last["uri"], last["digest"])
    return replace(view, version=version, previous=previous, required=required, active=adapter.spec.active)


def _without_source(view: AdapterView, problem: Problem) -> AdapterView:
    """A source that cannot be used takes nothing away: what has been Ready stays."""
    if view.required:
        return view
    if view.previous is not None:
        return replace(view, version=view.previous, previous=None, required=True, remark=problem)
    return replace(view, problem=problem)


def _one_owner_per_name(views: Sequence[AdapterView]) -> list[AdapterView]:
    """The oldest keeps a served name; the others have a NameConflict."""
    owners: dict[str, str] = {}
    result = []
    for view in views:
        if view.resource is not None:
            name = view.resource.served_name
            owner = owners.setdefault(name, view.resource.metadata.name)
            if owner != view.resource.metadata.name:
                view = replace(view, problem=Problem("NameConflict", _conflict(name, owner)))
        result.append(view)
    return result


def _conflict(name: str, owner: str) -> str:
    return (
        f"the name {name!r} belongs to LoraAdapter {owner}, which is older; set another spec.servedName or"
        f" delete {owner}"
    )


def _one_default(views: Sequence[AdapterView]) -> list[AdapterView]:
    """The oldest that asks to be active is; the others are resident and say so."""
    owner: str | None = None
    result = []
    for view in views:
        if view.active and view.problem is None:
            if owner is None:
                owner = view.adapter.metadata.name
            else:
                message = f"LoraAdapter {owner} is active and older; set active: false on one of them"
                view = replace(view, active=False, remark=Problem("ActiveConflict", message))
        result.append(view)
    return result


def _adopted(view: AdapterView, inventories: Sequence[Inventory]) -> AdapterView:
    version = view.wanted
    if version.digest is not None:
        return view
    found = []
    for inventory in inventories:
        entry = version.attempt_on(inventory, view.adapter.served_name)
        if entry is not None and entry.digest is not None and entry.state in ("Stored", "Loaded"):
            found.append((inventory.pod_uid, entry.digest))
    if not found:
        return view
    digest = min(found)[1]
    if view.previous is not None and view.previous.digest == digest:
        return replace(view, version=replace(version, digest=digest), previous=None, required=True)
    return replace(view, version=replace(version, digest=digest))
