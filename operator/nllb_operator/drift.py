"""Whether an object still is what it should be: `differs` compares a desired manifest with the live object.

Pure. Knows that servers add fields and defaults of their own, so everything that is desired must be there and
more may be. What is no longer desired shows by the CONTENT_ANNOTATION. Must not know what objects mean.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from nllb_operator.backends.base import Manifest

_WHOLE = frozenset({"selector"})
"""Fields that are one value: a key that somebody adds to a selector empties a Service."""


def differs(desired: Manifest, live: Manifest) -> bool:
    """Whether applying `desired` would change the live object."""
    return not _contains(live, desired)


def rescaled(live: Manifest, replicas: int) -> Manifest:
    """A manifest of an existing ReplicaSet with another number of pods, and everything else as it is."""
    meta = live["metadata"]
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    return {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {key: copy.deepcopy(meta[key]) for key in kept if key in meta},
        "spec": {**copy.deepcopy(live["spec"]), "replicas": replicas},
    }


def _contains(live: Any, desired: Any) -> bool:
    if isinstance(desired, Mapping):
        # An empty mapping or list that is absent in the live object is the same thing to the API server.
        if live is None:
            return not desired
        return isinstance(live, Mapping) and all(
            live.get(key) == value if key in _WHOLE else _contains(live.get(key), value)
            for key, value in desired.items()
        )
    if isinstance(desired, str) or not isinstance(desired, Sequence):
        return bool(live == desired)
    if live is None:
        return not desired
    return (
        isinstance(live, Sequence)
        and len(live) == len(desired)
        and all(_contains(have, want) for have, want in zip(live, desired, strict=True))
    )
