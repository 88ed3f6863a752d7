"""Names: the API group, kinds, labels, annotations and the names of children.

Pure. Knows how Kubernetes limits names (63 characters for labels and Services) and nothing about what the
named things contain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

GROUP = "fleet.nllb.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
NLLB_DEPLOYMENT = "NllbDeployment"
LORA_ADAPTER = "LoraAdapter"

FIELD_MANAGER = "nllb-operator"
"""The one field manager of everything that the operator applies, status included."""

DEPLOYMENT_LABEL = f"{GROUP}/deployment"
"""On every child and pod: the name of its NllbDeployment."""
POD_TEMPLATE_LABEL = f"{GROUP}/pod-template"
"""On ReplicaSets and pods: the hash of the pod-defining part of the spec."""
CONTENT_ANNOTATION = f"{GROUP}/content"
"""On every child: the hash of what was applied, so that a field which is no longer wanted is noticed."""
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""On pods, before a scale-in: the ReplicaSet controller deletes the cheapest first."""

WANTED_KEY = "wanted.json"
"""The key of the ConfigMap which holds the wanted set."""

MAX_NAME = 63


def child_name(owner: str, suffix: str = "") -> str:
    """`owner`-`suffix` if that fits into 63 characters, else shortened, with a hash that keeps it unique."""
    name = f"{owner}-{suffix}" if suffix else owner
    if len(name) <= MAX_NAME:
        return name
    tail = f"-{short_hash(owner)}-{suffix}" if suffix else f"-{short_hash(owner)}"
    return owner[: MAX_NAME - len(tail)].rstrip("-.") + tail


def peers_name(deployment: str) -> str:
    """The headless Service that names every pod of a fleet, ready or not."""
    return child_name(deployment, "peers")


def wanted_name(deployment: str) -> str:
    """The ConfigMap with the wanted set."""
    return child_name(deployment, "wanted")


def pods_account_name(deployment: str) -> str:
    """The ServiceAccount of the pods; it has no rights and no token."""
    return child_name(deployment, "pods")


def replica_set_name(deployment: str, template_hash: str) -> str:
    """The ReplicaSet of one pod template."""
    return child_name(deployment, template_hash)


def pod_selector(deployment: str) -> dict[str, str]:
    """The labels that select every pod of a fleet, whatever its template."""
    return {DEPLOYMENT_LABEL: deployment, "app.kubernetes.io/component": "server"}


def selector_text(labels: Mapping[str, str]) -> str:
    """Labels in the form `status.selector` needs: `a=b,c=d`, sorted."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def recommended_labels(deployment: str, component: str) -> dict[str, str]:
    """The `app.kubernetes.io` labels of a child, and our link to its NllbDeployment."""
    return {
        "app.kubernetes.io/name": "nllb-fleet",
        "app.kubernetes.io/instance": deployment,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "nllb-fleet",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        DEPLOYMENT_LABEL: deployment,
    }


def short_hash(value: Any) -> str:
    """Ten hex digits of the SHA-256 over `value` as canonical JSON: equal values, equal hash."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
