"""Nodes for an API server without any: its scheduler binds pods to them, each pod runs as a local process.

    python tests/support/process_node.py --folder DIR --nodes 2 --gpus 4 --claim models=FOLDER [--env K=V]
        [-- PROGRAM ARG …]                          what runs in place of the image's entrypoint

Registers Node objects with stand-in GPUs, renews their leases, runs every pod that is bound to them by
`nllb_operator.pod_process` and writes its status back, as a kubelet does. Binds every PersistentVolumeClaim
of a name that --claim gives. `{pod}` in a value of --env is the pod's name. Uses KUBECONFIG. Ends on
SIGTERM; the processes of its pods end with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from nllb_operator import machine
from nllb_operator.pod_process import PodHost, PodProcess
from nllb_operator.pod_status import PodStatus

POLL_SECONDS = 0.25
LEASE_SECONDS = 8
MERGE = "application/merge-patch+json"
JSON = "application/json"


class Api:
    """Requests to the API server, decoded."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = JSON
    ) -> tuple[int, Any]:
        parameters = await self.client.param_serialize(
            method,
            path,
            header_params={"Accept": JSON, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self.client.call_api(*parameters, _request_timeout=10)
        content = await response.read()
        return response.status, json.loads(content) if content else None


@dataclass
class ProcessNode:
    """`claims`: claim name → folder. `entrypoint` None: the server of this repository."""

    api: Api
    folder: Path
    nodes: list[str]
    gpus: int
    claims: Mapping[str, Path]
    env: Mapping[str, str]
    entrypoint: tuple[str, ...] | None
    running: dict[str, PodProcess] = field(default_factory=dict)
    stopping: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled; then every process is stopped at once."""
        await asyncio.gather(*(self.register(name) for name in self.nodes))
        leases = asyncio.create_task(self.keep_leases())
        try:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    await self.look()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            leases.cancel()
            for task in self.stopping.values():
                task.cancel()
            await asyncio.gather(*(process.stop(0.2) for process in self.running.values()))

    async def register(self, name: str) -> None:
        """Create the Node, say that it is Ready, and take off the taint it was born with."""
        capacity = {
            "cpu": "64",
            "memory": "256Gi",
            "ephemeral-storage": "100Gi",
            "pods": "110",
            "nvidia.com/gpu": str(self.gpus),
        }
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pool": "process"}}}
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "pods run as processes",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
        }
        await self.api.call("POST", "/api/v1/nodes", node)
        await self.api.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)
        await self.renew(name)
        await self.api.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)

    async def renew(self, name: str) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
        code, _ = await self.api.call("PATCH", f"{path}/{name}", {"spec": spec}, MERGE)
        if code == 404:
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
            await self.api.call("POST", path, {**lease, "spec": spec})

    async def keep_leases(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS)
            for name in self.nodes:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    await self.renew(name)

    async def bind_claims(self) -> None:
        """What a provisioner does, at once: the volume controller would take up to half a minute."""
        _, answer = await self.api.call("GET", "/api/v1/persistentvolumeclaims")
        for claim in answer["items"]:
            meta, bound = claim["metadata"], "pv.kubernetes.io/bind-completed"
            if meta["name"] not in self.claims or bound in meta.get("annotations", {}):
                continue
            volume = claim["spec"].get("volumeName") or f"{meta['namespace']}-{meta['name']}"
            owner = {"claimRef": {key: meta[key] for key in ("namespace", "name", "uid")}}
            spec = {
                "capacity": claim["spec"]["resources"]["requests"],
                "accessModes": claim["spec"]["accessModes"],
                "storageClassName": "",
                "hostPath": {"path": str(self.claims[meta["name"]])},
            }
            body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}}
            path = "/api/v1/persistentvolumes"
            if (await self.api.call("POST", path, {**body, "spec": {**spec, **owner}}))[0] == 409:
                await self.api.call("PATCH", f"{path}/{volume}", {"spec": owner}, MERGE)
            patch = {"metadata": {"annotations": {bound: "yes"}}, "spec": {"volumeName": volume}}
            path = f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}"
            await self.api.call("PATCH", path, patch, MERGE)

    async def look(self) -> None:
        """Start what is new, stop what is to go, forget what is gone."""
        await self.bind_claims()
        _, answer = await self.api.call("GET", "/api/v1/pods")
        mine = {
            pod["metadata"]["uid"]: pod
            for pod in answer["items"]
            if pod["spec"].get("nodeName") in self.nodes
        }
        for uid, pod in mine.items():
            ending = "deletionTimestamp" in pod["metadata"]
            if uid not in self.running and not ending:
                self.start(pod)
            elif ending and uid not in self.stopping:
                grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
                self.stopping[uid] = asyncio.create_task(self.stop(pod, grace))
        for uid in self.running.keys() - mine.keys() - self.stopping.keys():
            self.stopping[uid] = asyncio.create_task(self.stop(self.running[uid].pod, 0))

    def start(self, pod: dict[str, Any]) -> None:
        meta, uid = pod["metadata"], pod["metadata"]["uid"]
        taken = {process.host.ip for process in self.running.values()}
        folder = self.folder / meta["namespace"] / meta["name"]
        folder.mkdir(parents=True, exist_ok=True)

        async def config_map(name: str) -> Mapping[str, str] | None:
            code, body = await self.api.call(
                "GET", f"/api/v1/namespaces/{meta['namespace']}/configmaps/{name}"
            )
            return body.get("data") or {} if code == 200 else None

        host = PodHost(
            folder=folder,
            ip=machine.free_loopback_address((8000, 8001), taken),
            config_map=config_map,
            claims=self.claims,
            env={key: value.replace("{pod}", meta["name"]) for key, value in self.env.items()},
            **({} if self.entrypoint is None else {"entrypoint": self.entrypoint}),
        )
        changed = asyncio.Event()
        changed.set()
        process = PodProcess({**pod, "apiVersion": "v1", "kind": "Pod"}, host, lambda _: changed.set())
        self.running[uid] = process
        process.start()
        process.reporting = asyncio.create_task(self.report(process, changed))  # type: ignore[attr-defined]

    async def report(self, process: PodProcess, changed: asyncio.Event) -> None:
        """Write each change of the pod's status, the latest if there were several."""
        while True:
            await changed.wait()
            changed.clear()
            await self.write_status(process, process.status)

    async def write_status(self, process: PodProcess, status: PodStatus) -> None:
        meta = process.pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        patch = {"metadata": {"uid": meta["uid"]}, "status": status.as_manifest(process.pod)}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            await self.api.call("PATCH", path, patch, MERGE)

    async def stop(self, pod: dict[str, Any], grace: float) -> None:
        """End the process, then let the object go, as a kubelet does."""
        meta, uid = pod["metadata"], pod["metadata"]["uid"]
        process = self.running.get(uid)
        if process is not None:
            await process.stop(grace)
            process.reporting.cancel()  # type: ignore[attr-defined]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            await self.api.call("DELETE", path, options)
        self.running.pop(uid, None)
        await asyncio.sleep(2)  # the object may be listed a moment longer
        self.stopping.pop(uid, None)


def pairs(texts: list[str]) -> dict[str, str]:
    """`A=B` texts as a mapping."""
    return dict(text.split("=", 1) for text in texts)


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--claim", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("program", nargs="*")
    options = parser.parse_args()
    configuration = Configuration()
    await config.load_kube_config(client_configuration=configuration)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ApiClient(configuration) as client:
        node = ProcessNode(
            Api(client),
            options.folder.resolve(),
            [f"process-node-{index + 1}" for index in range(options.nodes)],
            options.gpus,
            {name: Path(folder).resolve() for name, folder in pairs(options.claim).items()},
            pairs(options.env),
            tuple(options.program) or None,
        )
        work = asyncio.create_task(node.run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        stopped.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
