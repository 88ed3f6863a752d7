"""The synchronous engine: schedule, call the model, update. One call of `step` is one step for every row.

Knows `Model` and `ModelBeam`, the scheduler, and what a request wants. Must not know text, threads, sockets
or the class that implements the model. Every call comes from the worker thread.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nllb_engine.config import PROMPT_ROWS
from nllb_engine.errors import CacheFull, DeadlineExceeded, EngineError, InvalidRequest
from nllb_engine.interface.beam import BeamHandle, ModelBeam
from nllb_engine.interface.limits import Limits
from nllb_engine.interface.model import Model
from nllb_engine.interface.values import BeamReq, DevicePtr, PrefillSlice, SequenceState
from nllb_engine.jobs import FinishReason, JobResult, Outcome, TranslateJob, default_max_new_tokens
from nllb_engine.scheduler import Scheduler, Ticket

log = logging.getLogger(__name__)


@dataclass
class EngineCounts:
    """Totals since the start: steps run, rows decoded in them, tokens given out, requests admitted."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    admitted: int = 0


@dataclass(eq=False)
class _Running:
    job: TranslateJob
    max_new: int
    seq: SequenceState | None = None
    handle: BeamHandle | None = None
    out: list[int] = field(default_factory=list)


class Engine:
    """All translations of one model. Invariant: each leaves by exactly one Outcome or by cancel."""

    def __init__(
        self,
        model: Model,
        beams: ModelBeam,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`model` and `beams` are two views of one model, and `limits` are its bounds."""
        self._model = model
        self._beams = beams
        self._limits = limits
        self._clock = clock
        self._scheduler = Scheduler(limits.max_batch)
        self._requests: dict[int, _Running] = {}
        self._outcomes: list[Outcome] = []
        self.counts = EngineCounts()

    @property
    def busy(self) -> bool:
        """Whether `step` would find anything to do."""
        return self._scheduler.busy

    @property
    def scheduler(self) -> Scheduler:
        """Queue lengths, for metrics and admission."""
        return self._scheduler

    def add(self, job_id: int, job: TranslateJob) -> None:
        """Queue a job; InvalidRequest when its beams exceed the batch or its source the model."""
        if len(job.tokens) > self._limits.max_source_tokens:
            raise InvalidRequest(
                f"the source has {len(job.tokens)} tokens; this model takes {self._limits.max_source_tokens}"
            )
        rows = job.num_beams
        self._scheduler.add(Ticket(job_id, rows, len(job.tokens), is_beam=rows > 1, deadline=job.deadline))
        wanted = job.max_new_tokens or default_max_new_tokens(len(job.tokens))
        self._requests[job_id] = _Running(job, min(wanted, self._limits.max_rows - PROMPT_ROWS))

    def cancel(self, job_id: int) -> None:
        """Give a job up; its rows are free from the next step on, and it has no outcome."""
        self._scheduler.cancel(job_id)

    def step(self) -> list[Outcome]:
        """One token for every running row, after admitting what fits; returns what ended."""
        plan = self._scheduler.schedule(self._clock())
        for job_id in plan.dropped:
            self._release(self._requests.pop(job_id))
        for job_id in plan.expired:
            self._fail(job_id, DeadlineExceeded("the request was not done in time; send less or retry later"))
        self._admit(plan.admit)
        self._decode([job_id for job_id in plan.decode if job_id in self._requests])
        self._step_beams(plan.beams)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def abort_all(self, error: Exception) -> list[Outcome]:
        """End every queued and running request with `error`."""
        for job_id in list(self._requests):
            self._fail(job_id, error)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # ---- entering

    def _admit(self, job_ids: Sequence[int]) -> None:
        beams = [job_id for job_id in job_ids if self._requests[job_id].job.num_beams > 1]
        greedy = [job_id for job_id in job_ids if self._requests[job_id].job.num_beams == 1]
        self.counts.admitted += len(job_ids)
        self._attempt(greedy, self._start_greedy)
        self._attempt(beams, self._start_beams)

    def _attempt(self, job_ids: list[int], start: Callable[[list[int]], None]) -> None:
        """Start all together; when that fails, one by one, so that an error costs only its own request."""
        if not job_ids:
            return
        try:
            start(job_ids)
        except CacheFull as error:
            self._undo(job_ids)
            if self._scheduler.defer(job_ids):
                self.counts.admitted -= len(job_ids)
            elif len(job_ids) > 1:
                self._one_by_one(job_ids, start)
            else:
                self._fail(job_ids[0], error)
        except Exception as error:
            self._undo(job_ids)
            if len(job_ids) > 1:
                self._one_by_one(job_ids, start)
            else:
                self._fail(job_ids[0], error)

    def _one_by_one(self, job_ids: list[int], start: Callable[[list[int]], None]) -> None:
        for job_id in job_ids:
            self._attempt([job_id], start)

    def _undo(self, job_ids: list[int]) -> None:
        for job_id in job_ids:
            self._release(self._requests[job_id])

    def _start_greedy(self, job_ids: list[int]) -> None:
        slices = []
        for job_id in job_ids:
            request = self._requests[job_id]
            seq = request.seq = self._model.alloc_sequence()
            seq.src_lang_id, seq.tgt_lang_id = request.job.src_lang_id, request.job.tgt_lang_id
            seq.adapter_slot = request.job.adapter_slot
            slices.append(PrefillSlice.whole(list(request.job.tokens), seq))
        rows = self._model.prefill_batch_chunk(slices)
        for job_id, token in zip(job_ids, self._argmax(rows), strict=True):
            self._take(job_id, token)

    def _start_beams(self, job_ids: list[int]) -> None:
        handles = self._beams.beam_begin([self._beam_req(self._requests[job_id]) for job_id in job_ids])
        for job_id, handle in zip(job_ids, handles, strict=True):
            self._requests[job_id].handle = handle

    @staticmethod
    def _beam_req(request: _Running) -> BeamReq:
        job = request.job
        return BeamReq(
            prompt_tokens=job.tokens,
            src_lang_id=job.src_lang_id,
            tgt_lang_id=job.tgt_lang_id,
            adapter_slot=job.adapter_slot,
            num_beams=job.num_beams,
            max_new=request.max_new,
            length_penalty=job.length_penalty,
            early_stopping=job.early_stopping,
        )

    # ---- stepping

    def _decode(self, job_ids: list[int]) -> None:
        if not job_ids:
            return
        pairs = [(self._requests[job_id].out[-1], self._sequence(job_id)) for job_id in job_ids]
        lengths = [seq.seq_len for _, seq in pairs]
        try:
            base = self._model.decode_batch([token for token, _ in pairs], [seq for _, seq in pairs])
            tokens = self._model.argmax_batch(base, len(pairs))
        except Exception as error:
            unchanged = all(seq.seq_len == length for (_, seq), length in zip(pairs, lengths, strict=True))
            if len(job_ids) > 1 and unchanged:
                for job_id in job_ids:
                    self._decode([job_id])
            else:
                self._end_by_error(job_ids, error)
            return
        self._count(len(job_ids))
        for job_id, token in zip(job_ids, tokens, strict=True):
            self._take(job_id, token)

    def _end_by_error(self, job_ids: list[int], error: Exception) -> None:
        for job_id in job_ids:
            if isinstance(error, CacheFull) and len(job_ids) == 1:
                self._finish(job_id, JobResult(tuple(self._requests[job_id].out), "length"))
            else:
                self._fail(job_id, error)

    def _step_beams(self, job_ids: Sequence[int]) -> None:
        if not job_ids:
            return
        handles = {job_id: self._requests[job_id].handle for job_id in job_ids}
        live = {job_id: handle for job_id, handle in handles.items() if handle is not None}
        try:
            self._beams.beam_step(list(live.values()))
        except Exception as error:
            # The beams of one forward share its fate: no state says which of them has advanced.
            for job_id in live:
                self._fail(job_id, error)
            return
        self._count(sum(handle.rows for handle in live.values()))
        for job_id, handle in live.items():
            if handle.done and not handle.hypotheses:
                self._fail(job_id, EngineError("the search found nothing: its scores are not finite"))
            elif handle.done:
                best = handle.hypotheses[0]
                self.counts.tokens += len(best.token_ids)
                reason: FinishReason = "stop" if best.finished else "length"
                self._finish(job_id, JobResult(best.token_ids, reason, best.score, tuple(handle.hypotheses)))

    # ---- leaving

    def _take(self, job_id: int, token: int) -> None:
        request = self._requests[job_id]
        if token == self._limits.eos_token_id:
            self._finish(job_id, JobResult(tuple(request.out), "stop"))
            return
        request.out.append(token)
        self.counts.tokens += 1
        if len(request.out) >= request.max_new:
            self._finish(job_id, JobResult(tuple(request.out), "length"))

    def _finish(self, job_id: int, result: JobResult | Exception) -> None:
        self._release(self._requests.pop(job_id))
        self._scheduler.finish(job_id)
        self._outcomes.append(Outcome(job_id, result))

    def _fail(self, job_id: int, error: Exception) -> None:
        if not isinstance(error, EngineError):
            log.error("a forward failed", exc_info=error)
        self._finish(job_id, error)

    def _release(self, request: _Running) -> None:
        if request.seq is not None:
            self._model.free_sequence(request.seq)
        if request.handle is not None:
            self._beams.beam_end(request.handle)
        request.seq = request.handle = None
        request.out.clear()

    def _sequence(self, job_id: int) -> SequenceState:
        seq = self._requests[job_id].seq
        assert seq is not None, "a running greedy request has a sequence"
        return seq

    def _count(self, rows: int) -> None:
        self.counts.steps += 1
        self.counts.rows += rows

    def _argmax(self, rows: list[DevicePtr]) -> list[int]:
        """Argmax of each row, in one call where the rows follow one another in memory."""
        width = self._model.vocab_size() * (4 if self._model.logits_ptr_is_fp32(rows[0]) else 2)
        if all(row == rows[0] + index * width for index, row in enumerate(rows)):
            return self._model.argmax_batch(rows[0], len(rows))
        return [self._model.argmax_on_device(row) for row in rows]
