"""The engine for asyncio: one worker thread drives `Engine.step`, futures cross over.

Knows the engine and one event loop. Must not know text, HTTP or the class that implements the model. All
forwards happen in the worker thread; everything public here belongs to the event loop's thread.
"""

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nllb_engine.engine import Engine
from nllb_engine.errors import EngineClosed
from nllb_engine.jobs import JobResult, Outcome, TranslateJob

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineLoad:
    """How busy the engine is now, and its totals since the start. `max_rows` is the size of the batch."""

    waiting_requests: int
    waiting_tokens: int
    rows: int
    max_rows: int
    steps_total: int
    rows_total: int
    tokens_total: int


class AsyncEngine:
    """Translations as coroutines. Cancelling one frees its rows at the next step and disturbs nobody."""

    def __init__(self, engine: Engine, bind_to_thread: Callable[[], None]) -> None:
        """Start the worker; `bind_to_thread` runs first in it (`Model.bind_gpu_to_thread`)."""
        self._engine = engine
        self._bind = bind_to_thread
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._futures: dict[int, asyncio.Future[JobResult]] = {}
        self._wake = threading.Condition()
        self._inbox: deque[tuple[int, TranslateJob | None]] = deque()  # a job to add, or None to cancel
        self._inbox_tokens = 0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="nllb-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the worker thread runs; when it does not, the process must be replaced."""
        return self._thread.is_alive()

    @property
    def load(self) -> EngineLoad:
        """A snapshot for metrics and admission; single integers are exact, their combination is not."""
        scheduler, counts = self._engine.scheduler, self._engine.counts
        return EngineLoad(
            waiting_requests=scheduler.waiting_requests + len(self._inbox),
            waiting_tokens=scheduler.waiting_tokens + self._inbox_tokens,
            rows=scheduler.rows_in_use,
            max_rows=scheduler.max_rows,
            steps_total=counts.steps,
            rows_total=counts.rows,
            tokens_total=counts.tokens,
        )

    async def translate(self, job: TranslateJob) -> JobResult:
        """Translate one sentence; raises the engine's error, or EngineClosed after `close`."""
        if self._closing:
            raise EngineClosed("this process is shutting down; send the request to another one")
        job_id = next(self._ids)
        future: asyncio.Future[JobResult] = self._loop.create_future()
        self._futures[job_id] = future
        self._send(job_id, job)
        try:
            return await future
        except asyncio.CancelledError:
            self._send(job_id, None)
            raise
        finally:
            del self._futures[job_id]

    async def close(self) -> None:
        """Give up what still runs with EngineClosed and end the worker thread; a second call does nothing."""
        self._closing = True
        with self._wake:
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _send(self, job_id: int, job: TranslateJob | None) -> None:
        with self._wake:
            self._inbox.append((job_id, job))
            self._inbox_tokens += len(job.tokens) if job else 0
            self._wake.notify()

    # ---- worker thread

    def _work(self) -> None:
        self._bind()
        while not self._closing:
            self._hand_over(self._receive())
            try:
                self._hand_over(self._engine.step())
            except (
                Exception
            ) as error:  # a defect of the engine itself: everybody learns of it, and it goes on
                log.exception("an engine step failed")
                self._hand_over(self._engine.abort_all(error))
        self._hand_over(self._receive())
        self._hand_over(
            self._engine.abort_all(EngineClosed("this process is shutting down; try another one"))
        )

    def _receive(self) -> list[Outcome]:
        """Wait for something to do and take the inbox over; returns the jobs that were refused."""
        with self._wake:
            while not (self._inbox or self._engine.busy or self._closing):
                self._wake.wait()
            messages = list(self._inbox)
            self._inbox.clear()
            refused = []
            for job_id, job in messages:
                try:
                    self._engine.cancel(job_id) if job is None else self._engine.add(job_id, job)
                except Exception as error:
                    refused.append(Outcome(job_id, error))
            self._inbox_tokens = 0
        return refused

    def _hand_over(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            self._loop.call_soon_threadsafe(self._resolve, outcomes)

    def _resolve(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            future = self._futures.get(outcome.job_id)
            if future is None or future.done():
                continue  # its caller has gone
            if isinstance(outcome.result, Exception):
                future.set_exception(outcome.result)
            else:
                future.set_result(outcome.result)
