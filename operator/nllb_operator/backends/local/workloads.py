"""Makes ReplicaSets true with pods as local processes: controller, scheduler and kubelet of one machine.

Knows how many pods there must be, which one goes first (as the ReplicaSet controller chooses), how many
GPUs the machine has, and a pod's folder and address. The machine stands for every node: node selectors,
tolerations and the amounts of CPU and memory are not looked at. Must not know fleets or adapters; runs pods
by `PodProcess`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nllb_operator import machine
from nllb_operator.backends.base import Manifest, deletion_cost_of
from nllb_operator.backends.local.store import Key, ObjectStore, owner_uids
from nllb_operator.pod_container import PodNotRunnable, container_of, ports_of
from nllb_operator.pod_process import PodHost, PodProcess
from nllb_operator.pod_status import PodStatus

log = logging.getLogger(__name__)

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: a random name spells nothing
_ENDPOINT_LAG_SECONDS = 0.2  # our Services forget a pod at once, see `services`


@dataclass(frozen=True)
class LocalMachine:
    """What `local up` was told about this machine. `volumes`: claim name → folder."""

    folder: Path
    volumes: Mapping[str, Path] = field(default_factory=dict)
    gpus: int = 0
    entrypoint: tuple[str, ...] | None = None  # in place of the image's; None: `python -m nllb_server`


class Workloads:
    """Keeps pods equal to the ReplicaSets of a store. One task; every change of the store wakes it."""

    def __init__(self, store: ObjectStore, local: LocalMachine) -> None:
        """Kill what a crashed predecessor may have left; nothing is started before `run`."""
        self._store = store
        self._local = local
        self._pods = local.folder / "pods"
        self._running: dict[Key, PodProcess] = {}
        self._gpus: dict[Key, list[int]] = {}
        self._stopping: dict[Key, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        store.listeners.append(self._on_change)
        for leftover in self._pods.glob("*/pid"):
            machine.kill_leftover(leftover)
        machine.remove_tree(self._pods)

    def _on_change(self, body: Manifest) -> None:
        if body["kind"] in ("ReplicaSet", "Pod"):
            self._changed.set()

    async def run(self) -> None:
        """Converge, for ever. On cancellation every pod is stopped, within its grace period."""
        try:
            self._changed.set()
            while True:
                await self._changed.wait()
                self._changed.clear()
                for replica_set in self._store.objects("ReplicaSet"):
                    self._guarded(self._converge, replica_set)
                for pod in self._store.objects("Pod"):
                    self._guarded(self._converge_pod, pod)
        finally:
            await asyncio.gather(
                *self._stopping.values(), *(process.stop() for process in self._running.values())
            )

    def _guarded(self, converge: Callable[[Manifest], None], body: Manifest) -> None:
        """One object that cannot be dealt with stops no other."""
        try:
            converge(body)
        except Exception as error:
            key = Key.of(body)
            log.exception("%s %s/%s", key.kind, key.namespace, key.name)
            if key.kind == "Pod" and key not in self._running:
                self._gpus.pop(key, None)
                message = f"{type(error).__name__}: {error}; the local operator's log has more"
                self._store.set_status(key, _unscheduled("CannotStart", message))

    # --- ReplicaSets

    def _converge(self, replica_set: Manifest) -> None:
        uid, spec = replica_set["metadata"]["uid"], replica_set["spec"]
        pods = [pod for pod in self._store.owned_by(uid) if _alive(pod)]
        missing = int(spec.get("replicas", 1)) - len(pods)
        for _ in range(missing):
            self._create_pod(replica_set)
        for pod in sorted(pods, key=_goes_first)[: max(-missing, 0)]:
            self._store.delete(Key.of(pod))
        pods = [pod for pod in self._store.owned_by(uid) if _alive(pod)]
        ready = sum(is_ready(pod) for pod in pods)
        status = {
            "replicas": len(pods),
            "fullyLabeledReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": replica_set["metadata"]["generation"],
        }
        self._store.set_status(Key.of(replica_set), status)

    def _create_pod(self, replica_set: Manifest) -> None:
        metadata, template = replica_set["metadata"], replica_set["spec"]["template"]
        suffix = "".join(random.choices(_SUFFIX, k=5))
        owner = {
            "apiVersion": replica_set["apiVersion"],
            "kind": "ReplicaSet",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **template.get("metadata", {}),
                "name": f"{metadata['name'][:57]}-{suffix}",
                "namespace": metadata["namespace"],
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
        self._store.apply(pod)
        self._store.set_status(Key.of(pod), {"phase": "Pending"})

    # --- pods

    def _converge_pod(self, pod: Manifest) -> None:
        key = Key.of(pod)
        if "deletionTimestamp" in pod["metadata"]:
            if key not in self._stopping:
                self._stopping[key] = asyncio.create_task(self._stop(key))
        elif pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._store.delete(key)  # its ReplicaSet has made another one
        elif key not in self._running:
            self._start(key, pod)

    def _start(self, key: Key, pod: Manifest) -> None:
        try:
            resource, wanted = _gpus_wanted(pod)
            gpus = self._free_gpus()
            if wanted > len(gpus):
                raise PodNotRunnable(
                    "Unschedulable",
                    f"needs {wanted} {resource}, of {self._local.gpus} on this machine {len(gpus)} are free: "
                    "start with `local up --gpus N`, or set gpu.count: 0 and engine.device: cpu",
                )
            taken = {process.host.ip for process in self._running.values()}
            ip = machine.free_loopback_address(ports_of(pod).values(), taken)
        except (PodNotRunnable, OSError) as problem:
            reason = problem.reason if isinstance(problem, PodNotRunnable) else "NoAddress"
            self._store.set_status(key, _unscheduled(reason, str(problem)))
            return
        self._gpus[key] = gpus[:wanted]
        process = PodProcess(pod, self._host(key, pod, ip), lambda status: self._report(key, pod, status))
        self._running[key] = process
        process.start()
        self._report(key, pod, process.status)

    def _host(self, key: Key, pod: Manifest, ip: str) -> PodHost:
        folder = self._pods / f"{key.namespace}.{key.name}"
        folder.mkdir(parents=True)

        async def config_map(name: str) -> Mapping[str, str] | None:
            found = self._store.get(Key("ConfigMap", key.namespace, name))
            return None if found is None else found.get("data", {})

        env = {"NLLB_DRAIN_LAG_SECONDS": str(_ENDPOINT_LAG_SECONDS), **self._cpu_threads(pod)}
        if self._gpus[key]:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self._gpus[key]))
        host = PodHost(folder=folder, ip=ip, config_map=config_map, claims=self._local.volumes, env=env)
        if self._local.entrypoint is None:
            return host
        return replace(host, entrypoint=self._local.entrypoint, replaces_command=True)

    def _cpu_threads(self, pod: Manifest) -> dict[str, str]:
        """An equal share of the cores for each pod of the ReplicaSet, unless the manifest says a number."""
        if any(entry["name"] == "NLLB_CPU_THREADS" for entry in container_of(pod).get("env", ())):
            return {}
        siblings = max(len(self._store.owned_by(next(iter(owner_uids(pod)), ""))), 1)
        return {"NLLB_CPU_THREADS": str(max((os.cpu_count() or 1) // siblings, 1))}

    def _free_gpus(self) -> list[int]:
        used = {gpu for gpus in self._gpus.values() for gpu in gpus}
        return [gpu for gpu in range(self._local.gpus) if gpu not in used]

    def _report(self, key: Key, pod: Manifest, status: PodStatus) -> None:
        self._store.set_status(key, status.as_manifest(pod), pod["metadata"]["uid"])

    async def _stop(self, key: Key) -> None:
        process = self._running.get(key)
        if process is not None:
            await process.stop()
            try:
                machine.remove_tree(process.host.folder)
            except OSError as error:
                log.error("pod %s: its files stay behind: %s", key.name, error)
            del self._running[key]
        self._gpus.pop(key, None)
        self._store.remove(key)
        del self._stopping[key]


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod takes traffic: Ready and not on its way out."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _alive(pod: Mapping[str, Any]) -> bool:
    finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return "deletionTimestamp" not in pod["metadata"] and not finished


def _goes_first(pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """Kubernetes' order of a scale-in: not running, not ready, cheapest, youngest."""
    metadata, status = pod["metadata"], pod.get("status", {})
    cost = deletion_cost_of(metadata.get("annotations", {})) or 0
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    return (status.get("phase") == "Running", is_ready(pod), cost, -created.timestamp())


def _gpus_wanted(pod: Manifest) -> tuple[str, int]:
    """The extended resource that the pod asks for, by the slash in its name, and how many of it."""
    limits = container_of(pod).get("resources", {}).get("limits", {})
    extended = {}
    for name, count in limits.items():
        if "/" not in name:
            continue  # cpu, memory, hugepages-2Mi, …: amounts that are not counted here
        if not re.fullmatch("[0-9]+", str(count)):
            raise PodNotRunnable("InvalidResource", f"{name} is {count!r}; devices come in whole numbers")
        extended[name] = int(count)
    return " and ".join(extended), sum(extended.values())


def _unscheduled(reason: str, message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [condition]}
