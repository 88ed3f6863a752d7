"""A real API server for tests, the operator's process and process nodes beside it.

`KUBE_ASSETS` names the folder of the tool `cluster`; by default it is looked for beside the repository.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = REPOSITORY / "tests" / "support"


class MissingAssets(Exception):
    """There is no Kubernetes to be had here; the message says what to do."""


def cluster_tool() -> Path:
    """The program that starts a control plane."""
    folder = Path(os.environ.get("KUBE_ASSETS") or REPOSITORY.parent / "shared" / "kube")
    tool = folder / "cluster"
    if not tool.exists():
        raise MissingAssets(f"no Kubernetes binaries: {tool} is missing; set KUBE_ASSETS to their folder")
    if shutil.which("openssl") is None:
        raise MissingAssets("the control plane needs openssl")
    return tool


def needed_cluster_tool() -> Path:
    """`cluster_tool`; without it the test that asks is skipped with the reason, and fails in CI."""
    try:
        return cluster_tool()
    except MissingAssets as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"CI=true, but {error}")
        pytest.skip(str(error))


def until(wish: Callable[[], T], seconds: float = 30, what: str = "") -> T:
    """Repeat `wish` until it is true; the last value, or the last error, is in the complaint."""
    limit = time.monotonic() + seconds
    while True:
        try:
            value = wish()
            if value:
                return value
            last: object = value
        except (AssertionError, subprocess.CalledProcessError, OSError, KeyError, IndexError) as error:
            last = getattr(error, "stderr", None) or error
        if time.monotonic() > limit:
            raise AssertionError(f"not within {seconds} s: {what or wish}; last: {last!r}")
        time.sleep(0.1)


@dataclass
class Kube:
    """A control plane in `folder`."""

    folder: Path
    tool: Path

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> Iterator[Kube]:
        kube = cls(folder, cluster_tool())
        subprocess.run(
            [kube.tool, "--dir", folder, "up", "--nodes", "0", "--audit", "Metadata"],
            check=True,
            capture_output=True,
            timeout=120,
        )
        try:
            yield kube
        finally:
            subprocess.run([kube.tool, "--dir", folder, "down"], check=True, capture_output=True, timeout=60)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *words: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Standard output; CalledProcessError with stderr if kubectl fails."""
        done = subprocess.run(
            [self.folder / "bin" / "kubectl", *words],
            input=stdin,
            text=True,
            capture_output=True,
            timeout=timeout,
            env=self.env,
        )
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done.stdout

    def refused(self, *words: str, stdin: str | None = None) -> str:
        """The complaint of a kubectl that must fail."""
        try:
            self.kubectl(*words, stdin=stdin)
        except subprocess.CalledProcessError as error:
            return str(error.stderr)
        raise AssertionError(f"kubectl {' '.join(words)} should have been refused")

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([dict(item) for item in objects]))

    def audit(self) -> list[dict[str, Any]]:
        """Every request that the API server has completed."""
        lines = (self.folder / "audit.log").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.strip()]

    def claim(self, namespace: str, name: str) -> None:
        """A PersistentVolumeClaim; the process nodes bind it to the folder that they know by its name."""
        spec = {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        meta = {"name": name, "namespace": namespace}
        self.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec})


@dataclass
class Program:
    """A process beside the control plane; its output goes to `log`."""

    command: list[str]
    log: Path
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=dict(self.env))

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        """The exit code after the signal."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        self.process = None
        return code

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            if self.process is not None:
                self.stop()


@dataclass
class OperatorProcess(Program):
    """`python -m nllb_operator`."""

    health_port: int = 0

    @classmethod
    def beside(cls, kube: Kube) -> OperatorProcess:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            health_port = probe.getsockname()[1]
        env = {
            **kube.env,
            "NLLB_OPERATOR_HEALTH_HOST": "127.0.0.1",
            "NLLB_OPERATOR_HEALTH_PORT": str(health_port),
        }
        command = [sys.executable, "-m", "nllb_operator"]
        return cls(command, kube.folder / "operator.log", env, health_port=health_port)

    def start(self) -> None:
        super().start()
        until(lambda: self.page("/livez") == "ok\n", 30, f"the operator is alive:\n{self.output}")

    def page(self, path: str) -> str:
        assert self.process is not None and self.process.poll() is None, self.output
        url = f"http://127.0.0.1:{self.health_port}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
        return text


def post(url: str, body: Any) -> Any:
    """The decoded answer; the body of an error too."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
