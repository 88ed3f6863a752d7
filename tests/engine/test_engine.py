"""The engine on a real (random, tiny) model: what requests get does not depend on their neighbours."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tiny_configs
import torch

from nllb_engine.backend import CpuBackend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.engine import Engine
from nllb_engine.errors import CacheFull, DeadlineExceeded, InvalidRequest
from nllb_engine.interface import DevicePtr, PrefillSlice, SequenceState
from nllb_engine.jobs import JobResult, TranslateJob, default_max_new_tokens
from nllb_engine.nllb_gpu_model import NllbGpuModel

SHAPE = tiny_configs.TinyConfig(
    seed=13, encoder_layers=2, decoder_layers=2, d_model=32, heads=(4, 2), ffn=(48, 40), vocab=203, tied=True,
    layout="single",
)  # fmt: skip
LANGUAGES = list(SHAPE.languages)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_configs.save(tiny_configs.reference(SHAPE), SHAPE, tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(folder: Path) -> Iterator[NllbGpuModel]:
    torch.set_num_threads(1)
    model = load(folder, NllbGpuModel)
    yield model
    model.teardown()


def load(folder: Path, kind: type[NllbGpuModel]) -> NllbGpuModel:
    lang = NllbLang(language_ids=frozenset(LANGUAGES))
    config = ModelConfig.from_folder(folder)
    return kind.new(config, open_checkpoint(folder), CpuBackend(), lang, 128, 8)


def engine_on(model: NllbGpuModel, clock: Sequence[float] = (0.0,)) -> Engine:
    moments = iter(clock)
    last = clock[-1]
    return Engine(model, model, model.limits(), clock=lambda: next(moments, last))


def job(number: int, **options: object) -> TranslateJob:
    source = tiny_configs.random_sources(SHAPE, 1, seed=number)[0]
    target = LANGUAGES[number % len(LANGUAGES)]
    return TranslateJob(tuple(source), LANGUAGES[0], target, **options)  # type: ignore[arg-type]


def run(engine: Engine, jobs: dict[int, TranslateJob], steps: int = 400) -> dict[int, JobResult | Exception]:
    for number, one in jobs.items():
        engine.add(number, one)
    results: dict[int, JobResult | Exception] = {}
    for _ in range(steps):
        if not engine.busy:
            break
        results |= {outcome.job_id: outcome.result for outcome in engine.step()}
    assert not engine.busy, "every request ends"
    return results


def mixed_jobs(count: int) -> dict[int, TranslateJob]:
    beams = (1, 1, 3, 2)
    return {number: job(number, num_beams=beams[number % 4], max_new_tokens=24) for number in range(count)}


def test_each_request_gets_what_it_gets_alone_whatever_shares_its_steps(model: NllbGpuModel) -> None:
    jobs = mixed_jobs(40)
    together = run(engine_on(model), jobs)
    for number, one in jobs.items():
        alone = run(engine_on(model), {number: one})[number]
        crowd = together[number]
        assert isinstance(alone, JobResult) and isinstance(crowd, JobResult)
        assert crowd.token_ids == alone.token_ids
        assert [one.token_ids for one in crowd.hypotheses] == [one.token_ids for one in alone.hypotheses]
    assert len({together[number].token_ids for number in jobs}) > 20, "the outputs differ from one another"
    assert model.num_free_blocks() == model.num_total_blocks()


def test_a_greedy_request_says_whether_it_ended_or_was_cut(model: NllbGpuModel) -> None:
    whole = run(engine_on(model), {number: job(number) for number in range(12)})
    assert {result.finish_reason for result in whole.values()} == {"stop", "length"}
    for number, result in whole.items():
        cut = run(engine_on(model), {number: job(number, max_new_tokens=2)})[number]
        assert cut.token_ids == result.token_ids[:2]
        assert len(cut.token_ids) <= 2
    lengths = {len(one.token_ids) for one in whole.values() if one.finish_reason == "length"}
    assert lengths == {model.limits().max_rows - 2}, "a full cache ends a request by length"


def test_without_a_limit_an_output_may_be_as_long_as_transformers_allows_or_twice_the_source() -> None:
    assert default_max_new_tokens(10) == 198
    assert default_max_new_tokens(300) == 600


def test_cancelling_frees_the_rows_at_the_next_step(model: NllbGpuModel) -> None:
    engine = engine_on(model)
    for number in range(3):
        engine.add(number, job(number, num_beams=2 if number else 1))
    engine.step()
    assert engine.scheduler.rows_in_use == 5
    for number in range(3):
        engine.cancel(number)
    assert engine.step() == []
    assert (engine.busy, engine.scheduler.rows_in_use) == (False, 0)
    assert model.num_free_blocks() == model.num_total_blocks()


def test_a_request_past_its_deadline_ends_with_that_error_and_frees_its_rows(model: NllbGpuModel) -> None:
    engine = engine_on(model, clock=[0.0, 1.0, 2.0])
    engine.add(1, job(1, deadline=1.5))
    engine.add(2, job(2, num_beams=2, deadline=1.5))
    engine.step()
    engine.step()
    results = {outcome.job_id: outcome.result for outcome in engine.step()}
    assert [type(results[number]) for number in (1, 2)] == [DeadlineExceeded] * 2
    assert model.num_free_blocks() == model.num_total_blocks()


def test_a_bad_request_fails_alone(model: NllbGpuModel) -> None:
    jobs = mixed_jobs(9)
    good = run(engine_on(model), jobs)
    bad = {
        100: TranslateJob((5, 6), LANGUAGES[0], 4),  # no language
        101: TranslateJob((5, SHAPE.vocab), LANGUAGES[0], LANGUAGES[1]),  # no such token
        102: TranslateJob((5, 6), LANGUAGES[0], LANGUAGES[1], num_beams=2, length_penalty=1e9),
    }
    results = run(engine_on(model), {**bad, **jobs})
    assert all(isinstance(results[number], InvalidRequest) for number in bad)
    assert {number: results[number] for number in jobs} == good


def test_a_source_longer_than_the_model_takes_is_refused_when_it_is_added(model: NllbGpuModel) -> None:
    with pytest.raises(InvalidRequest, match="this model takes 126"):
        engine_on(model).add(1, TranslateJob((5,) * 127, LANGUAGES[0], LANGUAGES[1]))


def test_a_sequence_whose_values_overflowed_spoils_nobody_who_uses_its_memory_later(
    model: NllbGpuModel,
) -> None:
    jobs = mixed_jobs(24)
    good = run(engine_on(model), jobs)
    cache = model.core.self_kv
    for slot, rows in enumerate(cache._written):
        assert rows > 2, "every slot was used"
        cache._kv[:, :, slot, :rows] = float("nan")
    assert run(engine_on(model), jobs) == good


class Faulty(NllbGpuModel):
    """A real model whose device fails whenever the forward includes an ill-fated source."""

    ill_fated: tuple[int, ...] = ()
    full_after: int | None = None

    def alloc_sequence(self) -> SequenceState:
        taken = self.num_total_blocks() - self.num_free_blocks()
        if self.full_after is not None and taken >= self.full_after:
            raise CacheFull("no memory for another sequence")
        return super().alloc_sequence()

    def prefill_batch_chunk(self, streams: Sequence[PrefillSlice], stream: int = 0) -> list[DevicePtr]:
        if any(tuple(one.tokens) == self.ill_fated for one in streams):
            raise RuntimeError("device failed")
        return super().prefill_batch_chunk(streams, stream)

    def decode_batch(
        self, tokens: Sequence[int], seqs: Sequence[SequenceState], stream: int = 0
    ) -> DevicePtr:
        if any(seq.src_lang_id == LANGUAGES[5] and seq.seq_len == 4 for seq in seqs):
            raise RuntimeError("device failed")
        return super().decode_batch(tokens, seqs, stream)


@pytest.fixture
def faulty(folder: Path) -> Iterator[Faulty]:
    model = load(folder, Faulty)
    assert isinstance(model, Faulty)
    yield model
    model.teardown()


def test_a_forward_that_fails_costs_only_the_request_that_makes_it_fail(
    model: NllbGpuModel, faulty: Faulty
) -> None:
    jobs = {number: job(number, max_new_tokens=24) for number in range(7)}
    good = run(engine_on(model), jobs)
    long_enough = next(number for number in jobs if len(good[number].token_ids) > 6)
    faulty.ill_fated = (9, 9, 9)
    doomed_later = TranslateJob(jobs[long_enough].tokens, LANGUAGES[5], jobs[long_enough].tgt_lang_id)
    doomed = {100: TranslateJob((9, 9, 9), LANGUAGES[0], LANGUAGES[1]), 101: doomed_later}
    results = run(engine_on(faulty), {**doomed, **jobs})
    assert isinstance(results[100], RuntimeError)
    assert isinstance(results[101], RuntimeError)
    assert {number: results[number] for number in jobs} == good
    assert faulty.num_free_blocks() == faulty.num_total_blocks()


def test_requests_wait_when_the_model_has_no_memory_and_all_of_them_end(
    model: NllbGpuModel, faulty: Faulty
) -> None:
    jobs = {number: job(number, max_new_tokens=12) for number in range(9)}
    faulty.full_after = 3
    assert run(engine_on(faulty), jobs, steps=2000) == run(engine_on(model), jobs)


def test_a_request_for_which_there_will_never_be_memory_fails_instead_of_waiting(faulty: Faulty) -> None:
    faulty.full_after = 0
    assert isinstance(run(engine_on(faulty), {1: job(1)})[1], CacheFull)


def test_aborting_ends_every_request_with_the_given_error(model: NllbGpuModel) -> None:
    engine = engine_on(model)
    for number, one in mixed_jobs(12).items():
        engine.add(number, one)
    engine.step()
    error = RuntimeError("the end")
    assert {outcome.job_id for outcome in engine.abort_all(error)} == set(range(12))
    assert model.num_free_blocks() == model.num_total_blocks()
