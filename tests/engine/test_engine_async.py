"""AsyncEngine: coroutines over one worker thread, on a real tiny model."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tiny_configs

from nllb_engine.async_engine import AsyncEngine
from nllb_engine.backend import CpuBackend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.engine import Engine
from nllb_engine.errors import EngineClosed, InvalidRequest
from nllb_engine.jobs import TranslateJob
from nllb_engine.nllb_gpu_model import NllbGpuModel
from nllb_engine.testing import INTERFACE_METHODS, read_recording, record_model

SHAPE = tiny_configs.TinyConfig(
    seed=11, encoder_layers=1, decoder_layers=1, d_model=32, heads=(2, 2), ffn=(32, 32), vocab=97, tied=True,
    layout="single",
)  # fmt: skip
SOURCE, TARGET = SHAPE.languages[0], SHAPE.languages[1]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


@pytest.fixture
async def engine(tmp_path: Path, recording: Path) -> AsyncIterator[AsyncEngine]:
    folder = tiny_configs.save(tiny_configs.reference(SHAPE), SHAPE, tmp_path / "model")
    lang = NllbLang(language_ids=frozenset(SHAPE.languages))
    config, weights = ModelConfig.from_folder(folder), open_checkpoint(folder)
    model = record_model(NllbGpuModel.new(config, weights, CpuBackend(), lang, 128, 8), recording)
    engine = AsyncEngine(Engine(model, model, model.limits()), model.bind_gpu_to_thread)
    yield engine
    await engine.close()
    assert model.num_free_blocks() == model.num_total_blocks()
    model.teardown()


def job(number: int, **options: int) -> TranslateJob:
    source = tiny_configs.random_sources(SHAPE, 1, seed=number)[0]
    return TranslateJob(tuple(source), SOURCE, TARGET, **options)


async def test_every_token_that_is_given_out_came_from_the_interface(
    engine: AsyncEngine, recording: Path
) -> None:
    jobs = [job(number, num_beams=1 + number % 3, max_new_tokens=20) for number in range(60)]
    results = await asyncio.gather(*(engine.translate(one) for one in jobs))
    await engine.close()
    recorded = read_recording(recording)
    assert recorded.methods <= INTERFACE_METHODS
    for result in results:
        ended = (*result.token_ids, 2) if result.finish_reason == "stop" else result.token_ids
        assert (result.token_ids if result.hypotheses else ended) in recorded.outputs


async def test_the_recording_proxy_hides_what_is_not_in_the_interface(engine: AsyncEngine) -> None:
    with pytest.raises(AttributeError, match="core is not a method of the model interface"):
        _ = engine._engine._model.core


async def test_a_cancelled_translation_frees_its_rows_and_disturbs_nobody(engine: AsyncEngine) -> None:
    expected = [await engine.translate(job(number)) for number in range(4)]
    doomed = [asyncio.create_task(engine.translate(job(100 + number, num_beams=4))) for number in range(30)]
    kept = [asyncio.create_task(engine.translate(job(number))) for number in range(4)]
    await asyncio.sleep(0.01)
    for task in doomed:
        task.cancel()
    assert await asyncio.gather(*kept) == expected
    gone = await asyncio.gather(*doomed, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in gone) > 10
    await engine.translate(job(1))
    assert (engine.load.rows, engine.load.waiting_requests) == (0, 0)


async def test_an_error_reaches_its_own_caller_only(engine: AsyncEngine) -> None:
    bad = TranslateJob((5, 6), SOURCE, 3)
    results = await asyncio.gather(
        engine.translate(job(1)), engine.translate(bad), engine.translate(job(2)), return_exceptions=True
    )
    assert isinstance(results[1], InvalidRequest)
    assert not isinstance(results[0], BaseException) and not isinstance(results[2], BaseException)


async def test_closing_ends_what_runs_and_refuses_what_comes_later(engine: AsyncEngine) -> None:
    running = [asyncio.create_task(engine.translate(job(number, num_beams=4))) for number in range(30)]
    await asyncio.sleep(0.01)
    await engine.close()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert any(isinstance(one, EngineClosed) for one in results)
    with pytest.raises(EngineClosed):
        await engine.translate(job(1))
    assert not engine.alive
    assert "nllb-engine" not in {thread.name for thread in threading.enumerate()}
