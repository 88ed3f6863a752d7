"""A pod that stops loses no request: behind a forwarder that learns of it late, as Services do."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from server_pods import ServerPod, free_port, server_pod
from tiny_grammar import held_out

ENDPOINT_LAG_SECONDS = 1.0
TEXTS = [sentence.text for sentence in held_out("eng_Latn", seed="drain", count=50)]


class Forwarder:
    """Forwards connections in turn to the pods that were ready a while ago."""

    def __init__(self, pods: list[ServerPod], lag: float) -> None:
        self._pods = pods
        self._lag = lag
        self._turns = itertools.count()
        self._seen: list[tuple[float, list[ServerPod]]] = []
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        port = free_port()
        watcher = asyncio.create_task(self._watch())
        while not self._endpoints():
            await asyncio.sleep(0.05)
        async with await asyncio.start_server(self._accept, "127.0.0.1", port):
            yield f"http://127.0.0.1:{port}"
            watcher.cancel()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(watcher, *self._connections, return_exceptions=True)
            await asyncio.sleep(0.05)

    async def _watch(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                ready = []
                for pod in self._pods:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(pod.url + "/readyz") as reply:
                            ready += [pod] if reply.status == 200 else []
                self._seen.append((time.monotonic(), ready))
                await asyncio.sleep(0.05)

    def _endpoints(self) -> list[ServerPod]:
        past = time.monotonic() - self._lag
        return next((ready for moment, ready in reversed(self._seen) if moment <= past), [])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        endpoints = self._endpoints()
        pod = endpoints[next(self._turns) % len(endpoints)]
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", int(pod.url.rpartition(":")[2]))
            with contextlib.closing(up_writer):
                await asyncio.wait(
                    [
                        asyncio.create_task(_pump(reader, up_writer)),
                        asyncio.create_task(_pump(up_reader, writer)),
                    ],
                    return_when=asyncio.FIRST_COMPLETED,
                )


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def load(url: str, enough: asyncio.Event, count: int, outcomes: Counter[str]) -> None:
    """At least `count` translations by 8 clients, until `enough`; counts who answered, or why nobody did."""
    numbers = itertools.count()

    async def client(session: aiohttp.ClientSession) -> None:
        while not (outcomes.total() >= count and enough.is_set()):
            text = TEXTS[next(numbers) % len(TEXTS)]
            body = {"text": text, "source": "eng_Latn", "target": "deu_Latn", "max_new_tokens": 3}
            try:
                async with session.post(url + "/v1/translate", json=body) as reply:
                    answer = await reply.json()
                    outcomes[answer["pod"] if reply.status == 200 else f"status {reply.status}"] += 1
            except (aiohttp.ClientError, OSError) as error:
                outcomes[f"failed: {type(error).__name__}"] += 1

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(8)))


async def stop_one_of_two(
    model: Path, home: Path, drain_lag: float, count: int
) -> tuple[Counter[str], int | None]:
    """Load on two pods while the first gets SIGTERM in the middle; outcomes and its exit status."""
    settings = {"drain_lag_seconds": drain_lag, "drain_seconds": 20}
    async with (
        server_pod(model, home / "stays", "stays", **settings) as stays,
        server_pod(model, home / "goes", "goes", **settings) as goes,
        Forwarder([stays, goes], ENDPOINT_LAG_SECONDS).listening() as url,
    ):
        gone, outcomes = asyncio.Event(), Counter[str]()
        running = asyncio.create_task(load(url, gone, count, outcomes))
        while outcomes.total() < count // 3:
            await asyncio.sleep(0.01)
        goes.terminate()
        code = await goes.process.wait()
        await asyncio.sleep(1)
        gone.set()
        await running
        return outcomes, code


@pytest.mark.slow
async def test_no_request_fails_while_a_pod_stops(tiny_nllb: Path, tmp_path: Path) -> None:
    outcomes, code = await stop_one_of_two(tiny_nllb, tmp_path, 2 * ENDPOINT_LAG_SECONDS, 2200)
    assert set(outcomes) == {"stays", "goes"}, outcomes
    assert outcomes.total() >= 2000 and outcomes["goes"] > 100, outcomes
    assert code == 0


@pytest.mark.slow
async def test_without_the_lag_requests_do_fail_so_the_measurement_means_something(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    outcomes, _ = await stop_one_of_two(tiny_nllb, tmp_path, 0, 100)
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("failed")) > 0, outcomes


async def test_running_requests_finish_and_the_pod_says_at_once_that_it_is_not_ready(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    async with server_pod(tiny_nllb, tmp_path, drain_lag_seconds=3, drain_seconds=60) as pod:
        long = [asyncio.create_task(pod.translate(TEXTS[:20], num_beams=4)) for _ in range(4)]
        await asyncio.sleep(0.2)
        pod.terminate()
        await asyncio.sleep(0.1)
        async with pod.session.get(pod.url + "/readyz") as reply:
            assert (reply.status, reply.headers["Connection"]) == (503, "close")
            assert (await reply.json())["reason"] == "Draining"
        assert (await pod.inventory()).draining
        assert (await pod.translate(TEXTS[0]))[0] == 200, "still served within the lag"
        assert [status for status, _ in await asyncio.gather(*long)] == [200] * 4
        assert await pod.process.wait() == 0
    assert "draining" in pod.log


async def test_a_request_that_outlasts_the_drain_is_cut_and_the_pod_still_exits(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    async with server_pod(tiny_nllb, tmp_path, drain_lag_seconds=0, drain_seconds=0.3) as pod:
        endless = asyncio.create_task(pod.translate(TEXTS * 5, num_beams=8))
        await asyncio.sleep(0.3)
        pod.terminate()
        async with asyncio.timeout(10):
            assert await pod.process.wait() == 0
        with contextlib.suppress(aiohttp.ClientError):
            assert (await endless)[0] == 503
    assert "did not end within NLLB_DRAIN_SECONDS" in pod.log


async def test_sigterm_while_the_model_loads_ends_the_process_at_once(
    tiny_nllb: Path, tmp_path: Path
) -> None:
    async with server_pod(tiny_nllb, tmp_path, wait=False) as pod:
        while "public port" not in pod.log:
            await asyncio.sleep(0.001)
        pod.terminate()
        async with asyncio.timeout(10):
            assert await pod.process.wait() == 0
