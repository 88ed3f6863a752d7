"""`make demo` as a newcomer sees it: its story in time, and nothing left behind, whatever happens."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_cluster import needed_cluster_tool

REPOSITORY = Path(__file__).resolve().parents[2]
LONGEST_SECONDS = 60.0  # promised for two cores; about a third of it is needed when nothing else runs


def start(stage: str, folder: Path, **env: str) -> subprocess.Popen[str]:
    """The demo in a process group of its own, as in a terminal; its temporary files go into `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "demo", stage],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "examples"), "TMPDIR": str(folder), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that have to do with `folder`, by their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if str(folder).encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # not a process, not ours, or gone
    return found


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("demo")
    yield folder
    assert processes_of(folder) == []
    assert list(folder.iterdir()) == []


def told(stage: str, folder: Path) -> float:
    """Run the demo to its end and check its story; the seconds it took."""
    began = time.monotonic()
    with start(stage, folder) as demo:
        output, _ = demo.communicate(timeout=110)
    assert demo.returncode == 0, output
    assert output.count("= ") >= 12
    assert "requests while swapping, 0 failed" in output
    assert "adapter from a peer" in output
    assert "FETCHED FROM" in output
    return time.monotonic() - began


@pytest.mark.slow
def test_the_demo_tells_its_story_in_time_and_leaves_nothing_behind(folder: Path) -> None:
    assert told("local", folder) < LONGEST_SECONDS


@pytest.mark.slow
@pytest.mark.cluster
def test_the_demo_by_kubectl_tells_the_same_story_and_leaves_nothing_behind(folder: Path) -> None:
    needed_cluster_tool()
    told("kubernetes", folder)


@pytest.mark.parametrize("moment", ["$ nllb-fleet local up", "$ nllb-fleet local wait"])
def test_ctrl_c_leaves_nothing_behind(folder: Path, moment: str) -> None:
    with start("local", folder) as demo:
        assert demo.stdout is not None
        while not demo.stdout.readline().startswith(moment):
            pass
        time.sleep(0.5)
        os.killpg(demo.pid, signal.SIGINT)
        os.killpg(demo.pid, signal.SIGINT)  # an impatient person
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, output
    assert "interrupted" in output


def test_a_reader_who_leaves_leaves_nothing_behind(folder: Path) -> None:
    with start("local", folder) as demo:
        assert demo.stdout is not None
        while "apply" not in demo.stdout.readline():
            pass
        demo.stdout.close()
        assert demo.wait(timeout=60) == 1


def test_without_the_kubernetes_tool_the_demo_says_what_to_set(folder: Path) -> None:
    with start("kubernetes", folder, KUBE_ASSETS="/no/such/folder") as demo:
        output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 1
    assert "KUBE_ASSETS" in output
    assert "make demo" in output


def test_an_unknown_stage_is_answered_with_the_known_ones(folder: Path) -> None:
    with start("moon", folder) as demo:
        output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 2
    assert "local | kubernetes" in output
