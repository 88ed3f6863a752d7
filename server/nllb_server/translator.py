"""From a TranslateRequest to a TranslateResponse: languages, adapter, tokens, engine, text.

Knows the tokenizer, the engine's jobs and the leases. Must not know HTTP. Text exists here and in the
tokenizer only; it is never logged.
"""

import asyncio
import time
from collections.abc import Sequence

from nllb_engine.async_engine import AsyncEngine
from nllb_engine.config import PROMPT_ROWS
from nllb_engine.errors import CacheFull, DeadlineExceeded, EngineClosed, EngineError, InvalidRequest
from nllb_engine.interface.limits import Limits
from nllb_engine.jobs import JobResult, TranslateJob
from nllb_engine.tokenizer import Tokenizer
from nllb_server.leases import AdapterLeases
from nllb_server.metrics import ServerMetrics
from nllb_server.problems import ApiError, unavailable, unknown_name
from nllb_server.settings import ServerSettings
from nllb_server.wire import Alternative, TranslateRequest, TranslateResponse, Translation

_INLINE_CHARACTERS = 2000
"""Longer input is tokenised in a thread, so that it does not hold up the event loop."""

_NOTHING = JobResult((), "stop")
"""The translation of a text without any token: nothing, and no call of the model."""


class Translator:
    """Answers translation requests; any number at once."""

    def __init__(
        self,
        model_name: str,
        tokenizer: Tokenizer,
        engine: AsyncEngine,
        leases: AdapterLeases,
        limits: Limits,
        settings: ServerSettings,
        metrics: ServerMetrics,
    ) -> None:
        """`limits` are the model's; `settings` may be narrower."""
        self._model_name = model_name
        self._tokenizer = tokenizer
        self._engine = engine
        self._leases = leases
        self._limits = limits
        self._settings = settings
        self._metrics = metrics

    async def translate(self, request: TranslateRequest) -> TranslateResponse:
        """Translate every text with one adapter version; raises ApiError. Cancelling frees all rows."""
        self._check(request)
        self._require_room()  # before the work of encoding, and again after it
        source = self._language(request.source, self._settings.default_source, "source")
        target = self._language(request.target, self._settings.default_target, "target")
        async with self._leases.lease(request.adapter) as lease:
            encoded = await self._encode(request.texts)
            deadline = time.monotonic() + self._settings.request_seconds
            jobs = [
                TranslateJob(
                    tokens=tuple(tokens),
                    src_lang_id=self._tokenizer.language_id(source),
                    tgt_lang_id=self._tokenizer.language_id(target),
                    adapter_slot=lease.slot,
                    num_beams=request.num_beams,
                    max_new_tokens=request.max_new_tokens,
                    length_penalty=request.length_penalty,
                    early_stopping=request.early_stopping,
                    deadline=deadline,
                )
                for tokens in encoded
            ]
            self._require_room()
            results = await self._run(jobs)
        return TranslateResponse(
            model=self._model_name,
            adapter=lease.ref,
            source=source,
            target=target,
            translations=[self._translation(result, request) for result in results],
            pod=self._settings.pod_name,
        )

    def _check(self, request: TranslateRequest) -> None:
        most_beams = min(self._settings.max_beams, self._limits.max_batch)
        most_new = self._limits.max_rows - PROMPT_ROWS
        if request.num_beams > most_beams:
            raise _bad(f"num_beams is {request.num_beams}; this fleet allows {most_beams}")
        if request.max_new_tokens is not None and request.max_new_tokens > most_new:
            raise _bad(f"max_new_tokens is {request.max_new_tokens}; this fleet allows {most_new}")
        if len(request.texts) > self._settings.max_texts:
            count, most = len(request.texts), self._settings.max_texts
            raise _bad(f"the request holds {count} texts; send at most {most} at once")

    def _require_room(self) -> None:
        if self._engine.load.waiting_tokens > self._settings.max_queue_tokens:
            raise ApiError(429, "queue_full", "too many tokens are waiting; retry later", retry_after=1)

    def _language(self, named: str | None, default: str | None, role: str) -> str:
        code = default if named is None else named
        if code is None:
            raise _bad(f"the request names no {role} language and this fleet has no default; add {role!r}")
        if code not in self._tokenizer.languages:
            raise unknown_name("language", code, self._tokenizer.languages)
        return code

    async def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if sum(map(len, texts)) > _INLINE_CHARACTERS:
            encoded = await asyncio.to_thread(self._encode_now, texts)
        else:
            encoded = self._encode_now(texts)
        for index, tokens in enumerate(encoded):
            if len(tokens) > self._limits.max_source_tokens:
                raise ApiError(
                    400,
                    "text_too_long",
                    f"text {index} has {len(tokens)} tokens; this model takes "
                    f"{self._limits.max_source_tokens}: split it",
                )
        self._metrics.texts.inc(len(encoded))
        self._metrics.source_tokens.inc(sum(map(len, encoded)))
        return encoded

    def _encode_now(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            return [self._tokenizer.encode(text) for text in texts]
        except InvalidRequest as error:
            raise _bad(str(error)) from error

    async def _run(self, jobs: Sequence[TranslateJob]) -> list[JobResult]:
        """All jobs together; when one fails, or the caller leaves, the others are given up."""
        tasks = [asyncio.ensure_future(self._result(job)) for job in jobs]
        try:
            return await asyncio.gather(*tasks)
        except EngineError as error:
            raise _answer_to(error) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _result(self, job: TranslateJob) -> JobResult:
        return await self._engine.translate(job) if job.tokens else _NOTHING

    def _translation(self, result: JobResult, request: TranslateRequest) -> Translation:
        decode, with_ids = self._tokenizer.decode, request.return_tokens
        return Translation(
            text=decode(result.token_ids),
            finish_reason=result.finish_reason,
            score=result.score,
            token_ids=list(result.token_ids) if with_ids else None,
            alternatives=[
                Alternative(
                    text=decode(one.token_ids),
                    score=one.score,
                    token_ids=list(one.token_ids) if with_ids else None,
                )
                for one in result.hypotheses[1 : request.num_return_sequences]
            ],
        )


def _bad(message: str) -> ApiError:
    return ApiError(400, "invalid_request", message)


def _answer_to(error: EngineError) -> ApiError:
    match error:
        case InvalidRequest():
            return _bad(str(error))
        case DeadlineExceeded():
            return ApiError(504, "deadline_exceeded", str(error), retry_after=1)
        case CacheFull():
            return unavailable("overloaded", "the model has no memory left for this request; retry later")
        case EngineClosed():
            return unavailable("draining", str(error))
        case _:
            return ApiError(
                500, "engine_failed", "the engine failed on this request; the pod's log says more"
            )
