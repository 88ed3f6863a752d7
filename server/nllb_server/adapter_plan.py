"""What a pod does next about its adapters: a pure function of what is wanted and what is held.

Knows names, digests and times. Must not know files, sockets, threads or the model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nllb_server.wire import AdapterProblem, AdapterStateName, WantedAdapter

CONTENT_RETRY_SECONDS = 30.0
"""Content that was refused is looked at again this late: its origin may have been repaired in place."""
POD_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
"""Pauses after faults of a pod: a peer that went away, a full disk, a full pool."""

Identity = tuple[str, int, str, str | None]


def identity(adapter: WantedAdapter) -> Identity:
    """What makes a wanted adapter the same as before: UID, generation, address and digest."""
    return adapter.uid, adapter.generation, adapter.uri, adapter.digest


@dataclass(frozen=True)
class Failure:
    """The last attempt for a name failed. `retry_at` is a moment of the caller's monotonic clock."""

    adapter: WantedAdapter
    problem: AdapterProblem
    attempts: int
    retry_at: float

    def blocks(self, adapter: WantedAdapter, now: float) -> bool:
        """Whether an attempt for `adapter` must wait; new sources end the wait after a pod's fault."""
        if now >= self.retry_at or identity(adapter) != identity(self.adapter):
            return False
        return self.problem.fault == "content" or adapter.sources == self.adapter.sources


@dataclass(frozen=True)
class Version:
    """The content that a name leads to on this pod, and the LoraAdapter it was fetched for."""

    uid: str
    digest: str


@dataclass(frozen=True)
class Held:
    """What the pod has: digests on disk, name → version in a slot, names with an action in progress.

    `observed` are digests that a first fetch fixed for adapters whose digest nobody knew.
    """

    stored: frozenset[str] = frozenset()
    loaded: Mapping[str, Version] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    observed: Mapping[Identity, str] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)

    def digest_of(self, adapter: WantedAdapter) -> str | None:
        """The digest that is wanted, or that the first fetch found; None: still unknown."""
        return adapter.digest or self.observed.get(identity(adapter))


@dataclass(frozen=True)
class Fetch:
    """Bring the files from the first source that delivers, and load them."""

    adapter: WantedAdapter


@dataclass(frozen=True)
class Load:
    """Load files that are on disk into a slot."""

    adapter: WantedAdapter
    digest: str


@dataclass(frozen=True)
class Unload:
    """Let the slot of a name go; its files stay."""

    name: str


Action = Fetch | Load | Unload


def plan(wanted: Iterable[WantedAdapter], held: Held, now: float) -> list[Action]:
    """The actions that bring `held` closer to `wanted`; at most one per name, none for a busy name.

    An adapter is resident when its files are on disk. A slot is demanded only for pinned and active ones and
    for a name whose older version holds a slot: that is the switch of a hot swap. A name that now belongs to
    another LoraAdapter is unloaded first, so that nobody gets the content of the old one.
    """
    by_name = {adapter.name: adapter for adapter in wanted}
    actions: list[Action] = [
        Unload(name) for name in sorted(held.loaded) if name not in by_name and name not in held.busy
    ]
    for name, adapter in by_name.items():
        if name in held.busy:
            continue
        loaded, digest = held.loaded.get(name), held.digest_of(adapter)
        if loaded and loaded.uid != adapter.uid and loaded.digest != digest:
            actions.append(Unload(name))
            continue
        failure = held.failures.get(name)
        if failure and failure.blocks(adapter, now):
            continue
        if digest is not None and digest in held.stored:
            current = loaded is not None and loaded.digest == digest
            if not current and (adapter.pinned or adapter.active or loaded is not None):
                actions.append(Load(adapter, digest))
        elif adapter.sources and adapter.sources[0].kind != "wait":
            actions.append(Fetch(adapter))
    return actions


def state_of(adapter: WantedAdapter, held: Held, fetching: bool) -> AdapterStateName:
    """The word for the inventory, about the wanted version and no other.

    `Fetching` lasts until the fetch has ended and is accounted for, a moment longer than the switch of slots.
    """
    digest, failure = held.digest_of(adapter), held.failures.get(adapter.name)
    loaded = held.loaded.get(adapter.name)
    failed = failure is not None and identity(failure.adapter) == identity(adapter)
    if fetching:
        return "Fetching"
    if loaded and loaded.digest == digest:
        return "Loaded"
    if failed and failure is not None and failure.problem.fault == "content":
        return "Failed"
    if digest in held.stored:
        return "Stored"
    return "Failed" if failed else "Absent"


def failed(adapter: WantedAdapter, problem: AdapterProblem, before: Failure | None, now: float) -> Failure:
    """The failure to remember, with a pause that grows while the same thing fails again."""
    same = before is not None and identity(before.adapter) == identity(adapter)
    attempts = before.attempts + 1 if same and before is not None else 1
    pause = POD_RETRY_SECONDS[min(attempts, len(POD_RETRY_SECONDS)) - 1]
    return Failure(
        adapter, problem, attempts, now + (CONTENT_RETRY_SECONDS if problem.fault == "content" else pause)
    )
