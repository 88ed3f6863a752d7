"""How a pod starts: alone, with an operator that is late, with things missing."""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from random_adapters import write_random_adapter
from safetensors.torch import load_file, save_file
from server_pods import ServerPod, server_pod

from nllb_server.wire import Readiness, WantedAdapter, WantedSet

TEXT = "the cat"


def wanted_set(revision: int, *adapters: dict[str, Any]) -> WantedSet:
    wanted = [WantedAdapter.model_validate(one) for one in adapters]
    return WantedSet(fleet="f", revision=revision, adapters=wanted)


def adapter(folder: Path, digest: str | None, **fields: Any) -> dict[str, Any]:
    given = {"name": "a", "uid": "u", "generation": 1, "digest": digest, "uri": f"file://{folder}"}
    return {**given, **fields}


async def readiness(pod: ServerPod) -> Readiness:
    async with pod.session.get(pod.control_url + "/readyz") as reply:
        return Readiness.model_validate(await reply.json())


async def until_loaded(pod: ServerPod) -> None:
    while True:
        try:
            if (await pod.inventory()).model.loaded:
                return
        except aiohttp.ClientError:
            assert pod.process.returncode is None, pod.log
        await asyncio.sleep(0.02)


async def test_without_an_operator_a_pod_follows_its_file_by_origin(tiny_nllb: Path, tmp_path: Path) -> None:
    digest = write_random_adapter(tmp_path / "a", tiny_nllb, seed=1)
    peer = {"kind": "peer", "addr": "127.0.0.1:1"}
    mounted = wanted_set(7, adapter(tmp_path / "a", digest, required=True, sources=[peer]))
    (tmp_path / "wanted.json").write_text(mounted.model_dump_json())
    async with server_pod(tiny_nllb, tmp_path, wait=False, boot_grace_seconds=6, fleet="f") as pod:
        await until_loaded(pod)
        state = await readiness(pod)
        assert (state.ready, state.reason, state.missing) == (False, "AwaitingAdapters", ["a"]), pod.log
        assert (await pod.translate(TEXT, adapter="a"))[0] == 503, pod.log
        await pod.until_ready()
        [entry] = (await pod.until(lambda found: found.adapters[0].state == "Loaded")).adapters
        assert entry.source == "origin"
        assert (await pod.inventory()).revision == 7
        assert (await pod.translate(TEXT, adapter="a", max_new_tokens=8))[0] == 200
    assert pod.recording.peer_promotions == [] == pod.recording.failed_promotions


async def test_an_operator_that_calls_in_time_decides_instead_of_the_file(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    digest = write_random_adapter(tmp_path / "a", tiny_nllb, seed=1)
    (tmp_path / "wanted.json").write_text(wanted_set(1, adapter(tmp_path / "a", digest)).model_dump_json())
    async with server_pod(tiny_nllb, tmp_path, boot_grace_seconds=1, fleet="f") as pod:
        await pod.put_wanted(wanted_set(2, adapter(tmp_path / "a", digest, sources=[{"kind": "wait"}])))
        await asyncio.sleep(1.5)
        inventory = await pod.inventory()
        assert (inventory.revision, [one.state for one in inventory.adapters]) == (2, ["Absent"])


async def test_the_operator_may_call_while_the_model_is_still_loading(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    digest = write_random_adapter(tmp_path / "a", tiny_nllb, seed=1)
    wanted = wanted_set(1, adapter(tmp_path / "a", digest, required=True, sources=[{"kind": "origin"}]))
    async with server_pod(tiny_nllb, tmp_path, wait=False, fleet="f") as pod:
        while True:
            try:
                status, _ = await pod.put_wanted(wanted)
                break
            except aiohttp.ClientError:
                await asyncio.sleep(0.005)
        assert status == 200
        await pod.until_ready()
        assert [one.state for one in (await pod.inventory()).adapters] == ["Loaded"]


async def test_readiness_waits_for_required_adapters_but_not_beyond_its_deadline_and_never_goes_back(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    nowhere = adapter(tmp_path / "nowhere", "0" * 64, required=True, sources=[{"kind": "origin"}])
    (tmp_path / "wanted.json").write_text(wanted_set(1, nowhere).model_dump_json())
    async with server_pod(
        tiny_nllb, tmp_path, wait=False, boot_grace_seconds=0, ready_deadline_seconds=1.5, fleet="f"
    ) as pod:
        await until_loaded(pod)
        began = time.monotonic()
        assert not (await readiness(pod)).ready
        await pod.until_ready()
        assert time.monotonic() - began > 1.0
        assert (await readiness(pod)).missing == ["a"], "it reports what it gave up on"
        status, body = await pod.translate(TEXT, adapter="a")
        assert (status, body["error"]["code"]) == (503, "adapter_failed")
        assert (await pod.translate(TEXT))[0] == 200
        await pod.put_wanted(wanted_set(2, nowhere, {**nowhere, "name": "b", "digest": "1" * 64}))
        assert (await readiness(pod)).ready, "a new digest never makes a running pod unready"


async def test_an_adapter_that_never_was_ready_in_the_fleet_holds_up_no_pod(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    nowhere = adapter(tmp_path / "nowhere", None, sources=[{"kind": "origin"}])
    (tmp_path / "wanted.json").write_text(wanted_set(1, nowhere).model_dump_json())
    async with server_pod(tiny_nllb, tmp_path, boot_grace_seconds=0, fleet="f") as pod:
        assert (await readiness(pod)).ready


@pytest.mark.parametrize("content", ["{", '{"fleet": "other", "revision": 9}'])
async def test_a_file_that_cannot_be_used_is_said_in_the_log_and_stops_nobody(
    tiny_nllb: Path, tmp_path: Path, content: str
) -> None:
    (tmp_path / "wanted.json").write_text(content)
    async with server_pod(tiny_nllb, tmp_path, boot_grace_seconds=0, fleet="f") as pod:
        assert (await pod.translate(TEXT))[0] == 200
        await asyncio.sleep(0.2)
        assert "wanted.json" in pod.log


async def test_after_a_restart_adapters_on_disk_are_there_at_once(tiny_nllb: Path, tmp_path: Path) -> None:
    digest = write_random_adapter(tmp_path / "a", tiny_nllb, seed=1)
    wanted = adapter(tmp_path / "a", digest, required=True, sources=[{"kind": "origin"}])
    async with server_pod(tiny_nllb, tmp_path, fleet="f") as pod:
        await pod.put_wanted(wanted_set(1, wanted))
        await pod.until(lambda found: found.adapters[0].state == "Loaded")
        expected = await pod.texts(TEXT, adapter="a", max_new_tokens=8)
        boot = (await pod.inventory()).boot_id
    (tmp_path / "wanted.json").write_text(wanted_set(1, wanted).model_dump_json())
    async with server_pod(tiny_nllb, tmp_path, fleet="f") as pod:
        [entry] = (await pod.inventory()).adapters
        assert (entry.state, entry.source) == ("Stored", "disk")
        assert await pod.texts(TEXT, adapter="a", max_new_tokens=8) == expected, "loaded at its first request"
        assert (await pod.inventory()).boot_id != boot


async def exit_of(model: Path, home: Path, **settings: object) -> tuple[int, str]:
    async with server_pod(model, home, wait=False, **settings) as pod:
        async with asyncio.timeout(60):
            code = await pod.process.wait()
    return code, pod.log


async def test_a_gpu_that_is_not_there_is_an_error_and_never_the_cpu_instead(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    devices = ("auto", "cuda")
    exits = await asyncio.gather(*(exit_of(tiny_nllb, tmp_path / one, device=one) for one in devices))
    for code, log in exits:
        assert code == 1 and "the model cannot be served" in log
        assert "Traceback" not in log


async def test_a_model_that_is_not_there_is_named(tiny_nllb: Path, tmp_path: Path) -> None:
    code, log = await exit_of(tmp_path / "nothing", tmp_path)
    assert code == 1 and str(tmp_path / "nothing") in log
    assert "Traceback" not in log


async def test_settings_that_cannot_be_used_end_the_process_with_their_name(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bad: list[tuple[dict[str, object], str]] = [
            ({"max_batch": "none"}, "NLLB_MAX_BATCH"),
            ({"adapters_dir": "/proc/none"}, "NLLB_ADAPTERS_DIR cannot be used"),
            ({"http_port": taken.getsockname()[1]}, "the public port cannot be used"),
        ]
        exits = await asyncio.gather(*(exit_of(tiny_nllb, tmp_path / says[-9:], **one) for one, says in bad))
    for (_, says), (code, log) in zip(bad, exits, strict=True):
        assert code == 2 and says in log
        assert "Traceback" not in log


async def test_a_float32_checkpoint_is_converted_once_and_answers_alike(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_nllb.iterdir():
        if file.is_file() and file.name != "model.safetensors":
            (model / file.name).write_bytes(file.read_bytes())
    tensors = {name: tensor.float() for name, tensor in load_file(tiny_nllb / "model.safetensors").items()}
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    async with server_pod(tiny_nllb, tmp_path / "bf16") as pod:
        expected = await pod.texts("Where is the cat?")
    for _ in range(2):
        async with server_pod(model, tmp_path / "float32") as pod:
            assert await pod.texts("Where is the cat?") == expected
    assert pod.log.count("writing a bfloat16 copy") == 1
    [copy] = (tmp_path / "float32" / "cache").iterdir()
    assert (copy / "model.safetensors").stat().st_size == (tiny_nllb / "model.safetensors").stat().st_size
