"""What a pod reports about its adapters: pure functions from facts to the wire format.

Knows the plan's facts and the inventory's fields. Must not know how an adapter came here or who asks.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nllb_engine.interface.adapter_pool import ResidentAdapter
from nllb_server.adapter_plan import Held, identity, state_of
from nllb_server.adapter_work import Arrival
from nllb_server.wire import InventoryAdapter, WantedAdapter


@dataclass(frozen=True)
class Facts:
    """`fetching` are names on their way, `arrivals` by (name, digest), `sizes` in bytes by digest."""

    held: Held
    residents: Iterable[ResidentAdapter]
    fetching: Collection[str]
    arrivals: Mapping[tuple[str, str], Arrival]
    sizes: Mapping[str, int]


def inventory_adapters(wanted: Iterable[WantedAdapter], facts: Facts) -> list[InventoryAdapter]:
    """One entry per wanted adapter, sorted by name, about its wanted version."""
    residents = {one.name: one for one in facts.residents}
    return [
        _entry(adapter, facts, residents.get(adapter.name))
        for adapter in sorted(wanted, key=lambda adapter: adapter.name)
    ]


def missing_required(wanted: Iterable[WantedAdapter], held: Held, fetching: Collection[str]) -> list[str]:
    """Required names that are not resident yet, sorted.

    A fetch that still runs counts as missing even when its files are on disk: a pod that says it is ready
    never reports the adapter as `Fetching`.
    """
    return sorted(
        adapter.name
        for adapter in wanted
        if adapter.required
        and (
            held.digest_of(adapter) not in held.stored
            or state_of(adapter, held, fetching=adapter.name in fetching) == "Fetching"
        )
    )


def _entry(adapter: WantedAdapter, facts: Facts, resident: ResidentAdapter | None) -> InventoryAdapter:
    held = facts.held
    digest = held.digest_of(adapter)
    state = state_of(adapter, held, fetching=adapter.name in facts.fetching)
    if resident is not None and resident.digest != digest:
        resident = None  # an older version, which the wanted one will replace
    on_disk = digest is not None and digest in held.stored
    arrival = facts.arrivals.get((adapter.name, digest)) if digest is not None else None
    failure = held.failures.get(adapter.name)
    tried = failure is not None and identity(failure.adapter) == identity(adapter)
    return InventoryAdapter(
        name=adapter.name,
        uid=adapter.uid,
        digest=digest,
        state=state,
        slot=resident.slot if resident else None,
        generation=adapter.generation,
        refs=resident.refs if resident else 0,
        bytes=facts.sizes.get(digest, 0) if on_disk and digest is not None else 0,
        rank=resident.rank if resident else None,
        source=arrival.source if arrival else ("disk" if on_disk and state != "Fetching" else None),
        source_addr=arrival.address if arrival else None,
        seconds=arrival.seconds if arrival else None,
        error=failure.problem if failure and tried and state != "Loaded" else None,
    )
