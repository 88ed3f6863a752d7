"""Objects as text, the way kubectl shows them: tables with the columns of the CRDs, YAML, JSON, names.

Pure: objects in, text out. Must not fetch anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from nllb_operator.custom_resources import Column, custom_resources

Body = Mapping[str, Any]

_CONDITION = re.compile(r'(\w+)\[\?\(@\.(\w+)==["\'](.*)["\']\)\]')


@dataclass(frozen=True)
class Kind:
    """A kind that can be shown: the words for it, its group for messages, and its columns after NAME."""

    kind: str
    words: frozenset[str]
    columns: Callable[[Body, bool], Mapping[str, str]]
    group: str = ""

    def label(self, name: str) -> str:
        """`loraadapter.fleet.nllb.io/formal`, as kubectl names objects."""
        return f"{self.kind.lower()}{'.' + self.group if self.group else ''}/{name}"


def kinds() -> tuple[Kind, ...]:
    """Everything a local fleet can show."""
    custom = (
        Kind(item.kind, item.names, _custom(item.columns), item.api_version.split("/")[0])
        for item in custom_resources()
    )
    return (
        *custom,
        Kind("Pod", frozenset({"pod", "pods", "po"}), _pod),
        Kind("Service", frozenset({"service", "services", "svc"}), _service),
        Kind("ConfigMap", frozenset({"configmap", "configmaps", "cm"}), _plain),
        Kind("ReplicaSet", frozenset({"replicaset", "replicasets", "rs"}), _replica_set, "apps"),
        Kind("Event", frozenset({"event", "events", "ev"}), _event),
    )


def rendered(kind: Kind, bodies: Sequence[Body], output: str) -> str:
    """Objects of one kind as `output`: "table", "wide", "name", "yaml" or "json"."""
    if output == "name":
        return "\n".join(kind.label(body["metadata"]["name"]) for body in bodies)
    if output in ("yaml", "json"):
        content: Any = (
            bodies[0] if len(bodies) == 1 else {"apiVersion": "v1", "kind": "List", "items": list(bodies)}
        )
        if output == "json":
            return json.dumps(content, indent=2, ensure_ascii=False)
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).rstrip()
    rows = [{"NAME": body["metadata"]["name"], **kind.columns(body, output == "wide")} for body in bodies]
    return table(rows)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with the same keys as left-aligned columns under upper-case headings."""
    if not rows:
        return ""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def age(timestamp: str | None) -> str:
    """How long ago, as kubectl writes it: 42s, 3m10s, 5h, 2d."""
    if not timestamp:
        return "<none>"
    seconds = max(int((datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()), 0)
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 600:
        return f"{seconds // 60}m{seconds % 60}s"
    if seconds < 7200:
        return f"{seconds // 60}m"
    return f"{seconds // 3600}h" if seconds < 172800 else f"{seconds // 86400}d"


def value_at(body: Body, path: str) -> Any:
    """What a printer column's JSONPath finds: names, and `[?(@.key=="value")]`. None if there is nothing."""
    found: Any = body
    for step in re.findall(r"\.((?:[^.\[]|\[[^\]]*\])+)", path):
        filtered = _CONDITION.fullmatch(step)
        name = filtered[1] if filtered else step
        found = found.get(name) if isinstance(found, Mapping) else None
        if filtered:
            found = next((item for item in found or () if item.get(filtered[2]) == filtered[3]), None)
    return found


def pod_status(pod: Body) -> str:
    """A word for how a pod is: its phase, or why it does not run."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    status = pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        reason = container["state"].get("waiting", {}).get("reason")
        if reason:
            return str(reason)
    return str(status.get("phase", "Pending"))


def _custom(columns: Sequence[Column]) -> Callable[[Body, bool], Mapping[str, str]]:
    def cells(body: Body, wide: bool) -> dict[str, str]:
        shown = (column for column in columns if wide or not column.wide)
        return {column.name.upper(): _cell(value_at(body, column.path), column.type) for column in shown}

    return cells


def _cell(value: Any, kind: str) -> str:
    if kind == "date":
        return age(value)
    return "" if value is None else " ".join(str(value).split())


def _pod(pod: Body, wide: bool) -> dict[str, str]:
    status = pod.get("status", {})
    containers = status.get("containerStatuses", ())
    cells = {
        "READY": f"{sum(container['ready'] for container in containers)}/{len(pod['spec']['containers'])}",
        "STATUS": pod_status(pod),
        "RESTARTS": str(sum(container["restartCount"] for container in containers)),
        "AGE": age(pod["metadata"].get("creationTimestamp")),
    }
    return {**cells, "IP": status.get("podIP", "<none>"), "MESSAGE": _message(status)} if wide else cells


def _message(status: Body) -> str:
    states = [state for c in status.get("containerStatuses", ()) for state in c["state"].values()]
    texts = [item.get("message") for item in (*status.get("conditions", ()), *states)]
    return next((text for text in texts if text), "")


def _service(service: Body, wide: bool) -> dict[str, str]:
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", ())
    urls = [f"http://{item['ip']}:{port['port']}" for item in ingress for port in item["ports"]]
    return {"ENDPOINT": ",".join(urls) or "<none>", **_plain(service, wide)}


def _replica_set(body: Body, wide: bool) -> dict[str, str]:
    status = body.get("status", {})
    counts = {"DESIRED": body["spec"].get("replicas", 1), "READY": status.get("readyReplicas", 0)}
    return {**{name: str(count) for name, count in counts.items()}, **_plain(body, wide)}


def _event(event: Body, wide: bool) -> dict[str, str]:
    return {
        "LAST SEEN": age(event["metadata"]["creationTimestamp"]),
        "TYPE": event["type"],
        "REASON": event["reason"],
        "MESSAGE": " ".join(event["message"].split()),
    }


def _plain(body: Body, wide: bool) -> dict[str, str]:
    return {"AGE": age(body["metadata"].get("creationTimestamp"))}
