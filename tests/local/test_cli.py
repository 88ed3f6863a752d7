"""`nllb-fleet local …` as a user runs it: each command a process of its own, the daemon in the background.

The fleets here ask for a GPU that the machine is not given, so no pod starts: pods are tested elsewhere.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nllb_operator import machine

FLEET = """
apiVersion: fleet.nllb.io/v1alpha1
kind: NllbDeployment
metadata: {name: tiny}
spec:
  model: {uri: pvc://models/tiny-nllb}
  volumes: [{name: models, claimName: models}]
  image: server:1
  replicas: 2
"""
ADAPTER = """
apiVersion: fleet.nllb.io/v1alpha1
kind: LoraAdapter
metadata: {name: formal}
spec:
  deploymentRef: {name: tiny}
  source: {uri: pvc://models/adapters/formal}
"""


@dataclass
class Done:
    code: int
    out: str
    err: str


@dataclass
class Local:
    state: Path

    def __call__(self, *words: str, stdin: str | None = None) -> Done:
        command = [sys.executable, "-m", "nllb_operator.cli", "local", *words, "--state", str(self.state)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        return Done(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, stdin: str | None = None) -> str:
        done = self(*words, stdin=stdin)
        assert done.code == 0, done.err
        return done.out

    def refused(self, *words: str, stdin: str | None = None) -> str:
        done = self(*words, stdin=stdin)
        assert done.code == 1
        assert any(line.startswith("error: ") for line in done.err.splitlines())
        assert "Traceback" not in done.err
        return done.err

    @property
    def pid(self) -> int:
        return int(self.ok("up").split("pid ")[1].split(",")[0])


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path / "state")
    yield local
    local("down", "--purge")


@pytest.fixture
def running(local: Local, tmp_path: Path) -> Local:
    (tmp_path / "models").mkdir()
    local.ok("up", "--volume", f"models={tmp_path / 'models'}")
    return local


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A running fleet that no test may put an object into."""
    local = Local(tmp_path_factory.mktemp("local") / "state")
    local.ok("up")
    yield local
    local("down", "--purge")


def until(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_objects_are_created_shown_changed_and_deleted(running: Local) -> None:
    created = running.ok("apply", "-f", "-", stdin=f"{FLEET}---{ADAPTER}")
    assert created.splitlines() == [
        "nllbdeployment.fleet.nllb.io/tiny created",
        "loraadapter.fleet.nllb.io/formal created",
    ]
    assert running.ok("apply", "-f", "-", stdin=FLEET) == "nllbdeployment.fleet.nllb.io/tiny unchanged\n"
    changed = FLEET.replace("replicas: 2", "replicas: 3")
    assert running.ok("apply", "-f", "-", stdin=changed) == "nllbdeployment.fleet.nllb.io/tiny configured\n"
    body = json.loads(running.ok("get", "nllb", "tiny", "-o", "json"))
    assert body["metadata"]["generation"] == 2
    assert body["spec"]["replicas"] == 3
    assert body["spec"]["gpu"] == {"count": 1, "resourceName": "nvidia.com/gpu"}
    until(lambda: running.ok("get", "pods", "-o", "name").count("pod/tiny-") == 3)
    assert running.ok("delete", "nllb/tiny", "lora/formal").count("deleted") == 2
    assert running.ok("delete", "lora", "formal") == "loraadapter.fleet.nllb.io/formal not found\n"
    until(lambda: running("get").err.startswith("nothing found"))


def test_a_fleet_without_its_gpus_says_what_to_do(running: Local) -> None:
    running.ok("apply", "-f", "-", stdin=FLEET)
    until(lambda: "--gpus N" in running.ok("get", "pods", "-o", "wide"))
    error = running.refused("wait", "nllb/tiny", "--timeout", "3")
    assert "InsufficientGPU" in error
    assert "--gpus N" in error


def test_after_a_kill_up_finds_everything_again(running: Local) -> None:
    running.ok("apply", "-f", "-", stdin=FLEET)
    before = json.loads(running.ok("get", "nllb", "tiny", "-o", "json"))
    pid = running.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: machine.birth(pid) is None)
    assert "nllb-fleet local up" in running.refused("get")
    assert running.state.joinpath("socket").exists()
    assert "local operator runs" in running.ok("up")
    after = json.loads(running.ok("get", "nllb", "tiny", "-o", "json"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    assert json.loads(running.state.joinpath("settings.json").read_text())["volumes"].keys() == {"models"}
    until(lambda: running.ok("get", "pods", "-o", "name").count("pod/tiny-") == 2)


def test_down_keeps_the_objects_and_purge_deletes_them(running: Local) -> None:
    running.ok("apply", "-f", "-", stdin=ADAPTER)
    pid = running.pid
    assert "stopped" in running.ok("down")
    assert machine.birth(pid) is None
    assert "no local fleet runs" in running.ok("down")
    running.ok("up")
    assert "formal" in running.ok("get", "lora")
    assert "deleted" in running.ok("down", "--purge")
    assert not running.state.exists()


def test_a_second_up_starts_nothing_and_other_options_are_refused(running: Local, tmp_path: Path) -> None:
    pid = running.pid
    assert f"already running (pid {pid}" in running.ok("up")
    assert "local down" in running.refused("up", "--gpus", "2")
    assert running.pid == pid
    assert running.ok("get", "events") == "\n"


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("{", ["is not YAML"]),
        ("", ["holds no object"]),
        ("just text", ["not an object"]),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}", ["NllbDeployment", "LoraAdapter", "'Pod'"]),
        (FLEET.replace("name: tiny", "name: Tiny"), ["metadata.name", "'Tiny'"]),
        (FLEET.replace("image: server:1", "imag: server:1"), ["imag", "image"]),
        (FLEET.replace("replicas: 2", "replicas: two"), ["spec.replicas"]),
        (FLEET.replace("pvc://models", "pvc://other"), ["other", "volumes"]),
        (FLEET + "  gpu: {count: 0}\n", ["engine.device must be cpu"]),
        (ADAPTER.replace("pvc://", "ftp://"), ["spec.source.uri", "pvc://VOLUME"]),
    ],
)
def test_a_bad_manifest_is_refused_with_its_field(empty: Local, manifest: str, words: list[str]) -> None:
    error = empty.refused("apply", "-f", "-", stdin=manifest)
    for word in words:
        assert word in error
    assert empty("get").err.startswith("nothing found")


def test_a_good_object_beside_a_bad_one_is_applied(running: Local) -> None:
    bad = FLEET.replace("replicas: 2", "replicas: -1")
    done = running("apply", "-f", "-", stdin=f"{bad}---{ADAPTER}")
    assert done.code == 1
    assert done.out == "loraadapter.fleet.nllb.io/formal created\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("get", "nothing"), "types: "),
        (("get", "lora", "absent"), "known: none"),
        (("apply", "-f", "/no/such/file"), "No such file"),
        (("delete",), "say what to delete"),
        (("translate", "x"), "--fleet"),
        (("translate", "--fleet", "tiny", "x"), "there is no fleet 'tiny'"),
        (("logs", "nobody"), "get pods"),
        (("wait", "lora/absent", "--timeout", "0"), "loraadapter.fleet.nllb.io/absent"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(empty: Local, words: tuple[str, ...], says: str) -> None:
    assert says in empty.refused(*words)


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_damaged_settings_are_named_with_the_way_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "settings.json").write_text(content)
    assert "settings.json cannot be read" in Local(tmp_path).refused("up")


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "choose another folder with --state" in Local(tmp_path / "file").refused("up")


@pytest.mark.parametrize(
    ("volume", "says"), [("models", "NAME=FOLDER"), ("models=/no/such/folder", "there is no folder")]
)
def test_a_bad_volume_is_refused_before_anything_starts(local: Local, volume: str, says: str) -> None:
    assert says in local.refused("up", "--volume", volume)
    assert not local.state.exists()


def test_a_state_folder_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    assert "--state" in Local(tmp_path / ("deep" * 30)).refused("up")


def test_a_daemon_that_cannot_start_shows_its_reason(running: Local) -> None:
    running.ok("apply", "-f", "-", stdin=ADAPTER)
    running.ok("down")
    (file,) = running.state.glob("objects/LoraAdapter/*/*.json")
    file.write_text("{")
    assert str(file) in running.refused("up")
    file.unlink()
    running.ok("up")


def test_purge_deletes_only_the_state_of_a_fleet(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    assert "not deleted" in Local(tmp_path).refused("down", "--purge")
    assert (tmp_path / "precious").exists()


def test_of_two_that_start_at_once_one_runs(local: Local) -> None:
    command = [sys.executable, "-m", "nllb_operator.cli", "local", "up", "--state", str(local.state)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = sorted(process.communicate(timeout=60)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0].startswith("already running")
    assert outputs[1].startswith("local operator runs")


def command_lines_with(folder: Path) -> Iterator[bytes]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (content := file.read_bytes()):
                yield content


def test_down_waits_for_one_that_is_just_starting(local: Local) -> None:
    command = [sys.executable, "-m", "nllb_operator.cli", "local", "up", "--state", str(local.state)]
    with subprocess.Popen(command) as starting:
        until(lambda: b"nllb_operator.cli.daemon" in b"".join(command_lines_with(local.state)))
        starting.kill()
    assert "stopped" in local.ok("down", "--purge")


def test_the_socket_and_the_state_belong_to_the_user_alone(empty: Local) -> None:
    assert empty.state.stat().st_mode & 0o777 == 0o700
    assert (empty.state / "socket").stat().st_mode & 0o777 == 0o600


def test_in_the_foreground_the_operator_ends_with_ctrl_c(local: Local) -> None:
    command = [
        sys.executable,
        "-m",
        "nllb_operator.cli",
        "local",
        "up",
        "--foreground",
        "--state",
        str(local.state),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: (local.state / "socket").exists())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15)
    assert process.returncode == 0
    assert "local operator stopped" in err
    assert not (local.state / "socket").exists()
