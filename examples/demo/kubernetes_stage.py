"""The stage on a real API server: kubectl, the real operator process, and pods as processes of this machine.

The control plane comes from the tool `cluster` in KUBE_ASSETS (default: `../shared/kube` beside the
repository). Its scheduler binds pods to the stand-in node of `tests/support/process_node.py`, which runs
them. There is no kube-proxy, so requests go to the Ready pods themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nllb_operator import pod_launch

from .local_stage import pod_of
from .stage import EXAMPLES, REPOSITORY, DemoFailed, Pod, Stage, run, say, until

_READY_SECONDS = 120.0
_NODE_ENV = ("NLLB_CPU_THREADS=1", "NLLB_DRAIN_LAG_SECONDS=0.2")


class KubernetesStage(Stage):
    """A control plane of its own, in a folder of its own; the user's KUBECONFIG is not touched."""

    def __init__(self) -> None:
        """Nothing is created before `set_up`."""
        self._folder: Path | None = None
        self._tool = Path(os.environ.get("KUBE_ASSETS", REPOSITORY.parent / "shared" / "kube")) / "cluster"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._env: dict[str, str] = {}

    def set_up(self) -> None:
        """Control plane, CRDs, the claim `models`, a stand-in node and the operator."""
        if not self._tool.exists():
            raise DemoFailed(
                f"{self._tool} is missing: set KUBE_ASSETS to the folder of the tool `cluster` (Kubernetes "
                "as plain processes), or run `make demo`, which needs no Kubernetes"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="nllb-fleet-demo-"))
        run((*self._cluster(), "up", "--nodes", "0"), shown="cluster up --nodes 0")
        kubeconfig = run((*self._cluster(), "kubeconfig")).strip()
        programs = run((*self._cluster(), "bin")).strip()
        self._env = {**os.environ, "KUBECONFIG": kubeconfig, "PATH": f"{programs}:{os.environ['PATH']}"}
        self._kubectl("apply", "-f", REPOSITORY / "crds", shown="apply -f crds")
        self._kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        self._kubectl(
            "apply",
            "-f",
            "-",
            stdin=_claim(EXAMPLES),
            shown="apply -f …    # the claim `models` is examples/",
        )
        self._background("node", REPOSITORY / "tests" / "support" / "process_node.py", *self._node_options())
        say("$ nllb-operator &")
        self._background("operator", "-m", "nllb_operator")

    def apply_text(self, text: str, shown: str) -> None:
        """`kubectl apply`."""
        self._kubectl("apply", "-f", "-", shown=f"apply {shown}", stdin=text)

    def wait_ready(self, *names: str) -> None:
        """`kubectl wait`."""
        for name in names:
            say(f"$ kubectl wait --for=condition=Ready {name}")
            self._until_ready(name)

    def _until_ready(self, name: str) -> None:
        """Short waits one after the other, with the object's own words in between."""
        deadline, said = time.monotonic() + _READY_SECONDS, ""
        while True:
            try:
                say(self._kubectl("wait", "--for=condition=Ready", name, "--timeout=2s").rstrip())
                return
            except DemoFailed:
                status = self.object(*name.split("/")).get("status", {})
                ready = (c for c in status.get("conditions", ()) if c["type"] == "Ready")
                words = next((f"{c['reason']}: {c['message']}" for c in ready), "no status yet")
            if words != said:
                say(f"  {words}")
                said = words
            if time.monotonic() > deadline:
                raise DemoFailed(f"{name} is not Ready after {_READY_SECONDS:.0f} s: {words}")

    def show(self) -> None:
        """`kubectl get` of each kind."""
        for kind in ("nllbdeployments", "loraadapters", "pods"):
            self._kubectl("get", kind, shown=f"get {kind}")

    def object(self, kind: str, name: str) -> Mapping[str, Any]:
        """One object, from its JSON."""
        found: Mapping[str, Any] = json.loads(self._kubectl("get", kind, name, "-o", "json"))
        return found

    def pods(self) -> list[Pod]:
        """The pods, from their JSON."""
        items = json.loads(self._kubectl("get", "pods", "-o", "json"))["items"]
        return [pod_of(item) for item in items if "deletionTimestamp" not in item["metadata"]]

    def endpoints(self) -> list[str]:
        """The Ready pods: no kube-proxy runs here."""
        return [f"http://{pod.http}" for pod in self.pods() if pod.ready]

    def delete(self) -> None:
        """`kubectl delete -f` of both files."""
        for name in ("loraadapter.yaml", "nllbdeployment.yaml"):
            self._kubectl("delete", "-f", EXAMPLES / name, shown=f"delete -f examples/{name}")
        until("pods are gone after the deletion", lambda: not self._kubectl("get", "pods", "-o", "name"), 90)

    def logs(self) -> list[Path]:
        """Of the operator, the stand-in node and the pods."""
        return (
            [] if self._folder is None else [*self._folder.glob("*.log"), *self._folder.glob("pods/*/*/log")]
        )

    def clean_up(self) -> None:
        """End the processes, then the control plane, then the files."""
        if self._folder is None:
            return
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        try:
            run((*self._cluster(), "down"), shown="cluster down")
        except DemoFailed as problem:
            say(str(problem))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _cluster(self) -> tuple[str | Path, ...]:
        assert self._folder is not None
        return (sys.executable, self._tool, "--dir", self._folder / "kubernetes")

    def _node_options(self) -> tuple[str | Path, ...]:
        assert self._folder is not None
        env = (word for pair in _NODE_ENV for word in ("--env", pair))
        return ("--folder", self._folder / "pods", "--claim", f"models={EXAMPLES}", *env)

    def _kubectl(self, *arguments: str | Path, shown: str | None = None, stdin: str | None = None) -> str:
        """Run kubectl; if it is shown, so is what it printed."""
        line = None if shown is None else f"kubectl {shown}"
        kubectl = shutil.which("kubectl", path=self._env["PATH"]) or "kubectl"
        output = run((kubectl, *arguments), shown=line, stdin=stdin, env=self._env)
        if shown is not None and output.strip():
            say(output.rstrip())
        return output

    def _background(self, name: str, *arguments: str | Path) -> None:
        """Start a Python program that ends with the demo, whatever ends the demo."""
        assert self._folder is not None
        launcher = (sys.executable, "-I", "-S", pod_launch.__file__, str(os.getpid()), sys.executable)
        env = {**self._env, "NLLB_OPERATOR_HEALTH_HOST": "127.0.0.1", "NLLB_OPERATOR_HEALTH_PORT": "0"}
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*launcher, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=env,
            )
        self._processes.append(process)


def _claim(folder: Path) -> str:
    """A volume of this machine and the claim `models` bound to it, as YAML (which JSON is)."""
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "models"},
        "spec": {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {**common, "volumeName": "models", "resources": {"requests": {"storage": "1Gi"}}},
    }
    return f"{json.dumps(volume)}\n---\n{json.dumps(claim)}\n"
