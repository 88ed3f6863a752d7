"""One pod as a local process, run for real."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from nllb_operator import machine
from nllb_operator.pod_process import PodHost, PodProcess

SMALL_POD = (sys.executable, str(Path(__file__).with_name("small_pod.py")))


def pod(**container: Any) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 0.05, "failureThreshold": 2}
    base = {
        "name": "server",
        "image": "small",
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": probe,
    }
    return {
        "metadata": {"name": "pod-a", "namespace": "default", "uid": "uid-a", "labels": {"team": "x"}},
        "spec": {"containers": [{**base, **container}], "terminationGracePeriodSeconds": 5},
    }


async def no_config_map(name: str) -> None:
    return None


def host(folder: Path, **values: Any) -> PodHost:
    folder.mkdir(exist_ok=True)
    ip = machine.free_loopback_address([8000])
    defaults = {"config_map": no_config_map, "entrypoint": SMALL_POD, "refresh_seconds": 0.1}
    return PodHost(folder=folder, ip=ip, **{**defaults, "backoff": (0.0, 0.1), **values})


@contextlib.asynccontextmanager
async def running(manifest: dict[str, Any], host: PodHost) -> AsyncIterator[PodProcess]:
    process = PodProcess(manifest, host)
    process.start()
    try:
        yield process
    finally:
        await process.stop()


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


async def get(process: PodProcess, path: str = "/") -> Any:
    url = f"http://{process.host.ip}:8000{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return await reply.json(content_type=None)


def alive(pid: int) -> bool:
    return machine.birth(pid) is not None


async def test_a_pod_becomes_ready_by_its_probe_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(pod(), host(tmp_path)) as process:
        assert not process.status.ready
        await until(lambda: process.status.ready)
        assert process.status.phase == "Running"
        assert process.status.address(process.pod, "http") == f"{process.host.ip}:8000"
        pid = (await get(process))["pid"]
    assert not alive(pid)
    assert not process.status.ready
    assert process.status.phase == "Succeeded"
    assert not process.host.rootfs.exists()
    assert not process.host.pid_file.exists()


async def test_the_status_reads_like_a_kubelets(tmp_path: Path) -> None:
    async with running(pod(), host(tmp_path)) as process:
        await until(lambda: process.status.ready)
        status = process.status.as_manifest(process.pod)
    assert status["phase"] == "Running"
    assert status["podIP"] == process.host.ip
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    (container,) = status["containerStatuses"]
    assert container["ready"] and container["restartCount"] == 0 and "running" in container["state"]


async def test_the_environment_has_the_pods_fields_and_paths_that_exist_here(tmp_path: Path) -> None:
    model = tmp_path / "weights"
    model.mkdir()
    (model / "config.json").write_text("{}")
    manifest = pod(
        env=[
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
            {"name": "GREETING", "value": "I am $(POD), not $(NOBODY) for $$5"},
            {"name": "VOLUMES", "value": "/volumes"},
            {"name": "MODEL_DIR", "value": "/volumes/models"},
            {"name": "UNTOUCHED", "value": "/volumes-of-ours"},
        ],
        args=["--model", "/volumes/models/config.json"],
        volumeMounts=[{"name": "m", "mountPath": "/volumes/models"}],
    )
    manifest["spec"]["volumes"] = [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}]
    async with running(manifest, host(tmp_path / "pod", claims={"models": model})) as process:
        await until(lambda: process.status.ready)
        facts = await get(process)
        rootfs = process.host.rootfs
    env = facts["env"]
    assert (env["POD"], env["UID"], env["IP"], env["TEAM"]) == ("pod-a", "uid-a", process.host.ip, "x")
    assert env["GREETING"] == "I am pod-a, not $(NOBODY) for $5"
    assert env["VOLUMES"] == f"{rootfs}/volumes"
    assert env["UNTOUCHED"] == "/volumes-of-ours"
    assert facts["files"]["MODEL_DIR"] == {"config.json": "{}"}
    assert facts["argv"] == ["--model", f"{rootfs}/volumes/models/config.json"]
    assert (model / "config.json").exists()


async def test_a_config_map_is_waited_for_and_kept_fresh(tmp_path: Path) -> None:
    store: dict[str, dict[str, str]] = {}

    async def read(name: str) -> dict[str, str] | None:
        return store.get(name)

    manifest = pod(
        env=[{"name": "CONFIG_DIR", "value": "/etc/conf"}],
        volumeMounts=[{"name": "c", "mountPath": "/etc/conf"}],
    )
    manifest["spec"]["volumes"] = [{"name": "c", "configMap": {"name": "wanted"}}]
    async with running(manifest, host(tmp_path, config_map=read)) as process:
        await until(lambda: process.status.reason == "ConfigMapMissing")
        assert process.status.phase == "Pending" and "'wanted'" in str(process.status.message)
        store["wanted"] = {"wanted.json": "1", "old.json": "x"}
        await until(lambda: process.status.ready)
        assert (await get(process))["files"]["CONFIG_DIR"] == {"wanted.json": "1", "old.json": "x"}
        store["wanted"] = {"wanted.json": "2"}
        await asyncio.sleep(0.5)
        assert (await get(process))["files"]["CONFIG_DIR"] == {"wanted.json": "2"}


async def test_a_claim_without_a_folder_says_which_option_to_give(tmp_path: Path) -> None:
    manifest = pod(volumeMounts=[{"name": "m", "mountPath": "/volumes/models"}])
    manifest["spec"]["volumes"] = [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}]
    async with running(manifest, host(tmp_path)) as process:
        await until(lambda: process.status.reason == "ClaimNotMapped")
        assert "--volume models=FOLDER" in str(process.status.message)


async def test_what_a_process_cannot_have_keeps_the_pod_pending(tmp_path: Path) -> None:
    manifest = pod(volumeMounts=[{"name": "v", "mountPath": "/v"}])
    manifest["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": "s"}}]
    async with running(manifest, host(tmp_path)) as process:
        await until(lambda: process.status.reason == "UnsupportedVolume")
        assert process.status.phase == "Pending"
        assert process.status.exit_code is None


async def test_a_crashed_process_is_started_again_and_its_last_words_are_kept(tmp_path: Path) -> None:
    async with running(pod(), host(tmp_path)) as process:
        for restarts in (1, 2):
            await until(lambda: process.status.ready)
            with contextlib.suppress(aiohttp.ClientError):
                await get(process, "/crash")
            await until(lambda n=restarts: process.status.restarts == n and process.status.ready)
            last = process.status.as_manifest(process.pod)["containerStatuses"][0]["lastState"]["terminated"]
            assert last["exitCode"] == 3
    assert process.host.log.read_text().count("about to crash") == 2


async def test_a_program_that_cannot_start_is_reported_with_its_error(tmp_path: Path) -> None:
    async with running(pod(), host(tmp_path, entrypoint=["/no/such/program"])) as process:
        await until(lambda: process.status.restarts >= 2)
        assert process.status.exit_code == 127
        assert "/no/such/program" in str(process.status.message)


async def test_a_problem_of_the_machine_is_reported_and_outlived(tmp_path: Path) -> None:
    place = host(tmp_path)
    place.log.mkdir()  # the log cannot be written
    async with running(pod(), place) as process:
        await until(lambda: process.status.reason == "MachineProblem")
        assert "log" in str(process.status.message)
        place.log.rmdir()
        await until(lambda: process.status.ready)


async def test_a_failed_liveness_probe_restarts_the_process(tmp_path: Path) -> None:
    probe = {"httpGet": {"path": "/livez", "port": 8000}, "periodSeconds": 0.05, "failureThreshold": 2}
    manifest = pod(livenessProbe=probe, startupProbe={**probe, "failureThreshold": 200})
    async with running(manifest, host(tmp_path)) as process:
        await until(lambda: process.status.ready)
        first = (await get(process, "/sicken"))["pid"]
        await until(lambda: process.status.restarts == 1 and process.status.ready)
        assert (await get(process))["pid"] != first


async def test_a_process_that_never_starts_to_answer_is_restarted(tmp_path: Path) -> None:
    probe = {"httpGet": {"path": "/livez", "port": 9}, "periodSeconds": 0.05, "failureThreshold": 3}
    async with running(pod(startupProbe=probe), host(tmp_path)) as process:
        await until(lambda: process.status.restarts >= 1)
        assert not process.status.ready


async def test_readiness_follows_the_probe_without_a_restart(tmp_path: Path) -> None:
    flag = tmp_path / "unready"
    manifest = pod(env=[{"name": "UNREADY_FILE", "value": str(flag)}])
    async with running(manifest, host(tmp_path / "pod")) as process:
        await until(lambda: process.status.ready)
        flag.touch()
        await until(lambda: not process.status.ready)
        flag.unlink()
        await until(lambda: process.status.ready)
        assert process.status.restarts == 0


async def test_a_stopping_pod_finishes_what_it_has_accepted(tmp_path: Path) -> None:
    async with running(pod(), host(tmp_path)) as process:
        await until(lambda: process.status.ready)
        request = asyncio.create_task(get(process, "/sleep/0.7"))
        await asyncio.sleep(0.2)
        await process.stop()
        assert (await request)["pid"] > 0


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    async with running(pod(env=[{"name": "STUBBORN", "value": "1"}]), host(tmp_path)) as process:
        await until(lambda: process.status.ready)
        began = time.monotonic()
        await process.stop(grace_seconds=0.3)
        assert 0.3 <= time.monotonic() - began < 3
        assert process.status.exit_code == -signal.SIGKILL


PARENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_pod_process import PodProcess, host, pod, until

async def main():
    process = PodProcess(pod(), host(Path(sys.argv[2])))
    process.start()
    await until(lambda: process.status.ready)
    print(process.host.pid_file.read_text(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_pod_dies_with_its_parent_even_by_sigkill(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        str(Path(__file__).parent),
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int((await parent.stdout.readline()).split()[0])
    assert alive(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(pid))


async def test_a_leftover_of_a_crash_is_killed_but_never_a_stranger(tmp_path: Path) -> None:
    sleeper = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    note = tmp_path / "pid"
    note.write_text(f"{sleeper.pid} 1")  # the number, but of an earlier process
    assert not machine.kill_leftover(note)
    assert alive(sleeper.pid)
    machine.write_pid(note, sleeper.pid)
    assert machine.kill_leftover(note)
    assert await sleeper.wait() == -signal.SIGKILL
    assert not note.exists()


def test_only_a_living_process_has_a_birth() -> None:
    assert machine.birth(os.getppid()) is not None
    assert machine.birth(2**22 + 1) is None
