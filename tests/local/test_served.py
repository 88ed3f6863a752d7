"""A local fleet of the tiny model that serves, driven by commands: from YAML to translated text."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from nllb_operator import machine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXT, BASE, FORMAL = "You test the dancer.", "Tú ensayas a la bailarina.", "Usted ensaya a la bailarina."
SPANISH = ("--from", "eng_Latn", "--to", "spa_Latn")


@dataclass
class Local:
    state: Path

    def run(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nllb_operator.cli", "local", *words, "--state", str(self.state)]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100)

    def ok(self, *words: str, stdin: str | None = None) -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words: str) -> Any:
        return json.loads(self.ok("get", *words, "-o", "json"))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Two pods with the adapter `formal`, of the very files in `examples/`."""
    local = Local(tmp_path_factory.mktemp("served") / "state")
    fleet = yaml.safe_load((EXAMPLES / "nllbdeployment.yaml").read_text())
    fleet["spec"]["replicas"] = 2
    local.ok("up", "--volume", f"models={EXAMPLES}")
    local.ok("apply", "-f", "-", stdin=yaml.safe_dump(fleet))
    local.ok("apply", "-f", str(EXAMPLES / "loraadapter.yaml"))
    local.ok("wait", "nllb/tiny", "lora/formal", "--timeout", "90")
    yield local
    pids = [int(file.read_text().split()[0]) for file in local.state.glob("pods/*/pid")]
    local.ok("down", "--purge")
    assert not local.state.exists()
    assert [machine.birth(pid) for pid in pids] == [None] * len(pids)


def test_a_text_is_translated_with_and_without_the_adapter(local: Local) -> None:
    assert local.ok("translate", *SPANISH, TEXT) == f"{BASE}\n"
    assert local.ok("translate", *SPANISH, "--adapter", "formal", TEXT) == f"{FORMAL}\n"
    assert local.ok("translate", *SPANISH, "--fleet", "tiny", "--beams", "4", TEXT) == f"{BASE}\n"


def test_lines_of_stdin_are_translated_in_order(local: Local) -> None:
    lines = f"{TEXT}\n\n{TEXT}\n"
    assert local.ok("translate", *SPANISH, stdin=lines) == f"{BASE}\n\n{BASE}\n"


def test_verbose_names_the_pod_and_the_version_that_answered(local: Local) -> None:
    version = local.get("lora", "formal")["status"]["version"]
    said = local.run("translate", *SPANISH, "--adapter", "formal", "-v", TEXT).stderr
    assert f"formal@{version}" in said
    assert "by tiny-" in said


def test_the_same_text_is_translated_by_the_address_alone(local: Local) -> None:
    url = local.get("nllb", "tiny")["status"]["endpoint"]
    command = [sys.executable, "-m", "nllb_operator.cli", "translate", "--url", url, *SPANISH, TEXT]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == f"{BASE}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "eng_Latn", "--to", "spa_Latin"), "spa_Latn"),
        (("--from", "eng_Latn", "--to", "spa_Latn", "--adapter", "frmal"), "formal"),
        (("--from", "eng_Latn", "--to", "spa_Latn", "--beams", "1000"), "num_beams"),
    ],
)
def test_a_request_that_cannot_be_answered_says_what_could(
    local: Local, words: tuple[str, ...], says: str
) -> None:
    done = local.run("translate", *words, TEXT)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert says in done.stderr


def test_one_pod_fetched_the_adapter_from_its_source_and_the_other_from_that_pod(local: Local) -> None:
    status = local.get("lora", "formal")["status"]
    assert (status["fetchedFromOrigin"], status["fetchedFromPeers"]) == (1, 1)
    assert status["readyReplicas"] == 2


def test_a_pods_log_is_shown_and_holds_no_text_of_a_user(local: Local) -> None:
    local.ok("translate", *SPANISH, TEXT)
    logs = [local.ok("logs", pod["metadata"]["name"]) for pod in local.get("pods")["items"]]
    assert all(logs)
    assert all("dancer" not in log and "bailarina" not in log for log in logs)


def test_after_a_kill_the_fleet_serves_again_at_the_same_address(local: Local) -> None:
    before, pid = local.get("nllb", "tiny"), int(local.ok("up").split("pid ")[1].split(",")[0])
    pods = [int(file.read_text().split()[0]) for file in local.state.glob("pods/*/pid")]
    os.kill(pid, signal.SIGKILL)
    local.ok("up")
    assert [machine.birth(pod) for pod in pods] == [None] * len(pods)
    local.ok("wait", "nllb/tiny", "lora/formal", "--timeout", "90")
    assert local.get("nllb", "tiny")["status"]["endpoint"] == before["status"]["endpoint"]
    assert local.ok("translate", *SPANISH, "--adapter", "formal", TEXT) == f"{FORMAL}\n"
