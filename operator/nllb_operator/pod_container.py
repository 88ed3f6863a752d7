"""Reads one container out of a Pod manifest: what its volumes, environment, command and probes say.

Pure: manifest in, values out. Knows the Kubernetes fields that pods of a fleet use and how a path inside
the container becomes a folder of this machine: below a folder `rootfs` that mirrors the container's paths.
Must not start processes, open files or know where a manifest comes from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Manifest = Mapping[str, Any]

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")


class PodNotRunnable(Exception):
    """The pod asks for what cannot be had here (yet). `reason` is CamelCase, the text says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        """Make the error; `message` is for the person who wrote the manifest."""
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Mount:
    """One volume at one path of the container: of a `config_map`, of a `claim`, of neither: emptyDir."""

    path: str
    config_map: str | None = None
    keys: Mapping[str, str] | None = None  # key of the ConfigMap → file name; None: all keys
    optional: bool = False
    claim: str | None = None


@dataclass(frozen=True)
class Probe:
    """An httpGet probe with Kubernetes' defaults; times in seconds."""

    path: str
    port: int
    host: str | None
    initial_delay: float
    period: float
    timeout: float
    success_threshold: int
    failure_threshold: int


def container_of(pod: Manifest) -> Manifest:
    """The pod's only container. Raises PodNotRunnable for pods with several."""
    containers = pod["spec"]["containers"]
    if len(containers) != 1 or pod["spec"].get("initContainers"):
        raise PodNotRunnable("UnsupportedPod", "only pods with exactly one container run as local processes")
    container: Manifest = containers[0]
    return container


def mounts_of(pod: Manifest) -> list[Mount]:
    """The container's mounts. Raises PodNotRunnable for kinds of volumes that do not exist locally."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
    mounts = []
    for mount in container_of(pod).get("volumeMounts", ()):
        name, path = mount["name"], mount["mountPath"].rstrip("/")
        volume = volumes.get(name)
        if volume is None:
            raise PodNotRunnable("UnknownVolume", f"volumeMounts names {name!r}, which spec.volumes lacks")
        if mount.get("subPath"):
            raise PodNotRunnable("UnsupportedVolume", f"volume {name!r}: subPath is not supported locally")
        mounts.append(_mount(path, volume))
    return mounts


def _mount(path: str, volume: Manifest) -> Mount:
    if "configMap" in volume:
        source = volume["configMap"]
        keys = {item["key"]: item["path"] for item in source["items"]} if source.get("items") else None
        return Mount(path, config_map=source["name"], keys=keys, optional=bool(source.get("optional")))
    if "persistentVolumeClaim" in volume:
        return Mount(path, claim=volume["persistentVolumeClaim"]["claimName"])
    if "emptyDir" in volume:
        return Mount(path)
    kind = next((key for key in volume if key != "name"), "nothing")
    raise PodNotRunnable(
        "UnsupportedVolume",
        f"volume {volume['name']!r} is a {kind}; a local process has only configMap, persistentVolumeClaim "
        "and emptyDir",
    )


def localised(value: str, mounts: Sequence[Mount], rootfs: Path) -> str:
    """`value` with a container path turned into its place below `rootfs`; anything else unchanged.

    A path counts if it lies in a mount or contains one (`/volumes` above `/volumes/models`). A `file://` URI
    does not: it names a place in the image, for which this machine stands.
    """
    if not value.startswith("/") or value == "/":
        return value
    plain = value.rstrip("/")
    inside = any(
        plain == mount.path or plain.startswith(mount.path + "/") or mount.path.startswith(plain + "/")
        for mount in mounts
    )
    return f"{rootfs}{value}" if inside else value


def environment_of(pod: Manifest, pod_ip: str, rootfs: Path) -> dict[str, str]:
    """The container's variables: literal, from fields of the pod, `$(OTHER)` expanded, paths localised."""
    mounts, result = mounts_of(pod), dict[str, str]()
    for entry in container_of(pod).get("env", ()):
        if "valueFrom" in entry:
            value = _field(entry, pod, pod_ip)
        else:
            value = _expanded(str(entry.get("value", "")), result)
        result[entry["name"]] = localised(value, mounts, rootfs)
    return result


def _field(entry: Manifest, pod: Manifest, pod_ip: str) -> str:
    path = entry["valueFrom"].get("fieldRef", {}).get("fieldPath")
    metadata = pod["metadata"]
    if path in ("metadata.name", "metadata.namespace", "metadata.uid"):
        return str(metadata[path.removeprefix("metadata.")])
    if path in ("status.podIP", "status.hostIP"):
        return pod_ip
    if path == "spec.nodeName":
        return str(pod["spec"].get("nodeName", ""))
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path or "")
    if keyed:
        return str(metadata.get(keyed[1], {}).get(keyed[2], ""))
    raise PodNotRunnable(
        "UnsupportedEnvironment",
        f"variable {entry['name']}: a local process knows valueFrom.fieldRef of name, namespace, uid, podIP, "
        f"hostIP, nodeName, labels and annotations, not {entry['valueFrom']}",
    )


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Kubernetes' rule: `$(A)` is A's value if A is known and stays otherwise; `$$` is a dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return known.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def argv_of(
    pod: Manifest, environment: Mapping[str, str], rootfs: Path, entrypoint: Sequence[str]
) -> list[str]:
    """The command line: `command`, else the image's `entrypoint`, followed by `args`.

    The manifest's paths are localised. The entrypoint's are this machine's already: an interpreter below /tmp
    is not a file of the pod's /tmp.
    """
    container, mounts = container_of(pod), mounts_of(pod)
    words = [*container.get("command", ()), *container.get("args", ())]
    local = [localised(_expanded(str(word), environment), mounts, rootfs) for word in words]
    return local if container.get("command") else [*entrypoint, *local]


def ports_of(pod: Manifest) -> dict[str, int]:
    """The container's ports by name; a nameless one goes by its number."""
    ports = container_of(pod).get("ports", ())
    return {port.get("name") or str(port["containerPort"]): int(port["containerPort"]) for port in ports}


def probe_of(pod: Manifest, kind: str) -> Probe | None:
    """The probe `kind`, one of PROBES, or None if there is none."""
    spec = container_of(pod).get(kind)
    if spec is None:
        return None
    get = spec.get("httpGet")
    if get is None:
        raise PodNotRunnable("UnsupportedProbe", f"{kind}: only httpGet probes run against local processes")
    port = get["port"]
    if isinstance(port, str):
        if port not in ports_of(pod):
            raise PodNotRunnable("UnknownPort", f"{kind} names port {port!r}, which the container lacks")
        port = ports_of(pod)[port]
    return Probe(
        path=get.get("path", "/"),
        port=int(port),
        host=get.get("host"),
        initial_delay=float(spec.get("initialDelaySeconds", 0)),
        period=float(spec.get("periodSeconds", 10)),
        timeout=float(spec.get("timeoutSeconds", 1)),
        success_threshold=int(spec.get("successThreshold", 1)),
        failure_threshold=int(spec.get("failureThreshold", 3)),
    )
