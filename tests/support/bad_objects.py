"""Objects that nobody may create: refused by the API server's CRDs and by a local fleet alike, and good ones.

The one table behind the contract "the same YAML, the same answer". Each bad object differs from a good one
in one place.
"""

from __future__ import annotations

import copy
from typing import Any

Body = dict[str, Any]

FLEET: Body = {
    "apiVersion": "fleet.nllb.io/v1alpha1",
    "kind": "NllbDeployment",
    "metadata": {"name": "fleet", "namespace": "default"},
    "spec": {
        "model": {"uri": "pvc://models/tiny-nllb"},
        "volumes": [{"name": "models", "claimName": "models"}],
        "image": "server:1",
    },
}
ADAPTER: Body = {
    "apiVersion": "fleet.nllb.io/v1alpha1",
    "kind": "LoraAdapter",
    "metadata": {"name": "formal", "namespace": "default"},
    "spec": {"deploymentRef": {"name": "fleet"}, "source": {"uri": "pvc://models/adapters/formal"}},
}


def _with(body: Body, path: str, value: Any) -> Body:
    """A copy with the value at the dotted path set; `...` removes it."""
    changed = copy.deepcopy(body)
    *parents, last = path.split(".")
    place = changed
    for name in parents:
        place = place.setdefault(name, {})
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return changed


def _fleet(path: str, value: Any) -> Body:
    return _with(FLEET, path, value)


def _adapter(path: str, value: Any) -> Body:
    return _with(ADAPTER, path, value)


_LANGUAGE = "spec.engine.defaultSource"

BAD_OBJECTS: dict[str, Body] = {
    "no spec": _fleet("spec", ...),
    "no model": _fleet("spec.model", ...),
    "no image": _fleet("spec.image", ...),
    "an empty image": _fleet("spec.image", ""),
    "an image with a space": _fleet("spec.image", "server 1"),
    "a name that no Service may have": _fleet("metadata.name", "1fleet"),
    "a name with a dot": _fleet("metadata.name", "fleet.one"),
    "a name that is too long for a Service": _fleet("metadata.name", "f" * 64),
    "a model uri of an unknown scheme": _fleet("spec.model.uri", "s3://models/tiny"),
    "a model uri without a path": _fleet("spec.model.uri", "pvc://models"),
    "a model uri that climbs": _fleet("spec.model.uri", "pvc://models/../secrets"),
    "a model uri of an unknown volume": _fleet("spec.model.uri", "pvc://other/tiny-nllb"),
    "a model uri with a trailing slash": _fleet("spec.model.uri", "pvc://models/tiny-nllb/"),
    "a volume twice": _fleet("spec.volumes", [{"name": "models", "claimName": name} for name in ("a", "b")]),
    "a volume without a claim": _fleet("spec.volumes", [{"name": "models"}]),
    "a volume with a capital": _fleet("spec.volumes", [{"name": "Models", "claimName": "models"}]),
    "negative replicas": _fleet("spec.replicas", -1),
    "replicas as text": _fleet("spec.replicas", "3"),
    "half a replica": _fleet("spec.replicas", 1.5),
    "no GPU and a device that may need one": _fleet("spec.gpu", {"count": 0}),
    "no GPU and cuda": _with(_fleet("spec.gpu", {"count": 0}), "spec.engine.device", "cuda"),
    "negative GPUs": _fleet("spec.gpu.count", -1),
    "a GPU resource without a domain": _fleet("spec.gpu.resourceName", "gpu"),
    "an unknown device": _fleet("spec.engine.device", "tpu"),
    "an unknown dtype": _fleet("spec.engine.dtype", "int8"),
    "a language of two letters": _fleet(_LANGUAGE, "en"),
    "a sequence that is too long": _fleet("spec.engine.maxSeqLen", 4096),
    "a batch of nothing": _fleet("spec.engine.maxBatch", 0),
    "no slots": _fleet("spec.adapters.slots", 0),
    "a rank that no pool has": _fleet("spec.adapters.maxRank", 1024),
    "a drain that is too short": _fleet("spec.drainSeconds", 1),
    "a quantity that is none": _fleet("spec.resources.limits", {"cpu": "many"}),
    "a label of the operator": _fleet("spec.podLabels", {"app.kubernetes.io/name": "mine"}),
    "another label of the operator": _fleet("spec.podLabels", {"fleet.nllb.io/deployment": "mine"}),
    "an unknown effect of a taint": _fleet("spec.tolerations", [{"key": "a", "effect": "Sometimes"}]),
    "an adapter without a source": _adapter("spec.source", ...),
    "an adapter without a uri": _adapter("spec.source", {}),
    "an adapter without a fleet": _adapter("spec.deploymentRef", ...),
    "an adapter of a fleet that cannot be": _adapter("spec.deploymentRef.name", "Fleet"),
    "an adapter uri of an unknown scheme": _adapter("spec.source.uri", "https://example.org/a"),
    "an adapter uri that climbs": _adapter("spec.source.uri", "file:///models/../etc"),
    "a short digest": _adapter("spec.source.sha256", "abc"),
    "a digest in capitals": _adapter("spec.source.sha256", "A" * 64),
    "a served name that begins with a dot": _adapter("spec.servedName", ".formal"),
    "a served name with a slash": _adapter("spec.servedName", "a/b"),
    "an adapter in no pod": _adapter("spec.replicas", 0),
    "an adapter that is pinned to a word": _adapter("spec.pinned", "yes"),
}
"""By what is wrong with it."""

GOOD_OBJECTS: dict[str, Body] = {
    "a small fleet": FLEET,
    "a fleet on CPUs": _with(_fleet("spec.gpu", {"count": 0}), "spec.engine.device", "cpu"),
    "a fleet of nothing": _fleet("spec.replicas", 0),
    "a model in the image": _fleet("spec.model.uri", "file:///models/nllb-200"),
    "a slice of a GPU": _fleet("spec.gpu.resourceName", "nvidia.com/mig-1g.10gb"),
    "quantities of both kinds": _fleet("spec.resources.requests", {"cpu": 2, "memory": "8Gi"}),
    "a label of the user": _fleet("spec.podLabels", {"team": "words"}),
    "a small adapter": ADAPTER,
    "an adapter with a digest": _adapter("spec.source.sha256", "0" * 64),
    "an adapter with a name of its own": _adapter("spec.servedName", "Formal_v2.1"),
    "an active adapter": _adapter("spec.active", True),
}
"""By what is special about it."""
