"""The stage on this machine: `nllb-fleet local …`, as a user would type it."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .stage import EXAMPLES, DemoFailed, Pod, Stage, run, say, until

_READY_SECONDS = "90"


class LocalStage(Stage):
    """Runs in a state folder of its own, beside any local fleet that the user may have."""

    def __init__(self) -> None:
        """Nothing is created before `set_up`."""
        self._state: Path | None = None

    def set_up(self) -> None:
        """The local operator, with `examples/` as the claim `models`."""
        self._state = Path(tempfile.mkdtemp(prefix="nllb-fleet-demo-"))
        say(f"(each command also has --state {self._state})")
        self._local("up", "--volume", f"models={EXAMPLES}", shown="up --volume models=examples")

    def apply_text(self, text: str, shown: str) -> None:
        """`local apply`."""
        self._local("apply", "-f", "-", shown=f"apply {shown}", stdin=text)

    def wait_ready(self, *names: str) -> None:
        """`local wait`."""
        self._local("wait", *names, "--timeout", _READY_SECONDS, shown=f"wait {' '.join(names)}")

    def show(self) -> None:
        """`local get`."""
        self._local("get", shown="get")

    def object(self, kind: str, name: str) -> Mapping[str, Any]:
        """One object, from its JSON."""
        found: Mapping[str, Any] = json.loads(self._local("get", kind, name, "-o", "json"))
        return found

    def pods(self) -> list[Pod]:
        """The pods, from their JSON."""
        answer = json.loads(self._local("get", "pods", "-o", "json") or "[]")
        items = answer.get("items", [answer]) if answer else []
        return [pod_of(item) for item in items if "deletionTimestamp" not in item["metadata"]]

    def endpoints(self) -> list[str]:
        """The fleet's Service."""
        return [self.object("nllb", "tiny")["status"]["endpoint"]]

    def delete(self) -> None:
        """`local delete -f` of both files."""
        for name in ("loraadapter.yaml", "nllbdeployment.yaml"):
            self._local("delete", "-f", EXAMPLES / name, shown=f"delete -f examples/{name}")
        until(
            "pods are gone after the deletion",
            lambda: not self._local("get", "pods", "-o", "name").strip(),
            60,
        )

    def logs(self) -> list[Path]:
        """Of the operator and the pods."""
        return [] if self._state is None else [*self._state.glob("log"), *self._state.glob("pods/*/log")]

    def clean_up(self) -> None:
        """`local down --purge`."""
        if self._state is None:
            return
        try:
            self._local("down", "--purge", shown="down --purge")
        except DemoFailed as problem:
            say(str(problem))
        finally:
            shutil.rmtree(self._state, ignore_errors=True)

    def _local(
        self, command: str, *arguments: str | Path, shown: str | None = None, stdin: str | None = None
    ) -> str:
        """Run `nllb-fleet local COMMAND …`; if it is shown, so is what it printed."""
        assert self._state is not None
        program = (sys.executable, "-m", "nllb_operator.cli", "local", command)
        line = None if shown is None else f"nllb-fleet local {shown}"
        output = run((*program, *arguments, "--state", self._state), shown=line, stdin=stdin)
        if shown is not None and output.strip():
            say(output.rstrip())
        return output


def pod_of(item: Mapping[str, Any]) -> Pod:
    """A Pod object as the story sees it."""
    ports = {port["name"]: port["containerPort"] for port in item["spec"]["containers"][0]["ports"]}
    status = item.get("status", {})
    ip = status.get("podIP")
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    return Pod(
        name=item["metadata"]["name"],
        ready=ready,
        http=f"{ip}:{ports['http']}" if ip else None,
        control=f"{ip}:{ports['control']}" if ip else None,
    )
