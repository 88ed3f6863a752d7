"""Stepwise beams of NllbGpuModel: shared steps, slots, refusals. Parity is in tests/parity."""

import math

import pytest
from nllb_models import beams
from tiny_configs import random_sources

from nllb_engine.errors import CacheFull, InvalidRequest
from nllb_engine.interface import BeamReq
from nllb_engine.nllb_gpu_model import core
from nllb_engine.nllb_gpu_model.beams import fork_slots

SRC, TGT = 195, 196


def req(source, **changes):
    defaults = {"src_lang_id": SRC, "tgt_lang_id": TGT, "num_beams": 2, "max_new": 8}
    return BeamReq(tuple(source), **defaults | changes)


def ids(found):
    return [[tokens for tokens, _ in request] for request in found]


def test_fused_searches_equal_one_at_a_time(model, tiny):
    reqs = [
        req(random_sources(tiny, 1, 1)[0], num_beams=3),
        req(random_sources(tiny, 1, 2)[0], num_beams=1, max_new=3),
        req(random_sources(tiny, 1, 3)[0], num_beams=3, tgt_lang_id=198, length_penalty=0.0),
    ]
    assert ids(beams(model, reqs)) == [ids(beams(model, [one]))[0] for one in reqs]


def test_a_search_may_join_while_another_runs(model, tiny):
    first, second = (req(source, max_new=12) for source in random_sources(tiny, 2, 4))
    expected = [ids(beams(model, [one]))[0] for one in (first, second)]
    early = model.beam_begin([first])[0]
    model.beam_step([early])
    model.beam_step([early])
    late = model.beam_begin([second])[0]
    while not (early.done and late.done):
        model.beam_step([late, early])
    assert [[list(one.token_ids) for one in handle.hypotheses] for handle in (early, late)] == expected


def test_greedy_rows_and_beams_do_not_disturb_each_other(model, tiny):
    source, other = random_sources(tiny, 2, 5)
    expected = ids(beams(model, [req(source, max_new=6)]))[0]
    seq = model.alloc_sequence()
    seq.src_lang_id, seq.tgt_lang_id = SRC, TGT
    model.prefill(other, seq)
    handle = model.beam_begin([req(source, max_new=6)])[0]
    while not handle.done:
        model.decode(9, seq)
        model.beam_step([handle])
    assert [list(one.token_ids) for one in handle.hypotheses] == expected


def test_one_beam_is_greedy(model, tiny):
    source = random_sources(tiny, 1, 6)[0]
    seq = model.alloc_sequence()
    seq.src_lang_id, seq.tgt_lang_id = SRC, TGT
    out = [model.argmax_on_device(model.prefill(source, seq))]
    while len(out) < 8 and out[-1] != 2:
        out.append(model.argmax_on_device(model.decode(out[-1], seq)))
    found = ids(beams(model, [req(source, num_beams=1)]))[0][0]
    assert found == [token for token in out if token != 2]


def test_slots_are_held_until_the_end_and_given_back_once(model, tiny):
    handle = model.beam_begin([req(random_sources(tiny, 1, 7)[0], num_beams=3, max_new=1)])[0]
    assert handle.done
    assert (handle.rows, model.num_free_blocks()) == (3, 5)
    model.beam_step([handle])
    model.beam_end(handle)
    model.beam_end(handle)
    assert model.num_free_blocks() == 8
    with pytest.raises(InvalidRequest, match="ended"):
        model.beam_step([handle])


def test_a_cut_hypothesis_is_marked(model, tiny):
    handle = model.beam_begin([req(random_sources(tiny, 1, 8)[0], max_new=1)])[0]
    cut = [one for one in handle.hypotheses if not one.finished]
    assert cut
    assert all(len(one.token_ids) == 1 for one in cut)


def test_begin_is_all_or_nothing(model):
    with pytest.raises(InvalidRequest):
        model.beam_begin([req([10]), req([])])
    with pytest.raises(CacheFull, match="9 beams"):
        model.beam_begin([req([10], num_beams=5), req([11], num_beams=4)])
    assert model.num_free_blocks() == 8


def test_a_failed_prefill_gives_every_slot_back(model, monkeypatch):
    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(model.core.network, "encode", fail)
    with pytest.raises(MemoryError):
        model.beam_begin([req([10], num_beams=4)])
    assert model.num_free_blocks() == 8


@pytest.mark.parametrize(
    "changes",
    [{"num_beams": 0}, {"num_beams": 9}, {"num_beams": 10_000}, {"max_new": 0},
     {"length_penalty": math.nan}, {"length_penalty": math.inf}, {"length_penalty": 11.0},
     {"early_stopping": "always"}, {"tgt_lang_id": 5}],
)  # fmt: skip
def test_odd_parameters_are_refused(model, changes):
    with pytest.raises(InvalidRequest):
        model.beam_begin([req([10], **changes)])
    assert model.num_free_blocks() == 8


def test_a_step_wider_than_the_batch_is_refused(model):
    handles = model.beam_begin([req([10], num_beams=4), req([11], num_beams=4)])
    with pytest.raises(InvalidRequest, match="16"):
        model.beam_step([*handles, *handles])


def test_generate_returns_language_to_end_token_for_more_requests_than_fit(model, tiny):
    sources = random_sources(tiny, 5, 9)
    results = model.generate_beam_batch([req(source, num_beams=3) for source in sources])
    assert model.supports_beam()
    for source, result in zip(sources, results, strict=True):
        best = ids(beams(model, [req(source, num_beams=3)]))[0][0]
        assert result == [TGT, *best, 2]
    assert model.num_free_blocks() == 8
    assert model.generate_beam_batch([]) == []


def test_a_length_beyond_the_cache_is_a_length_stop(model):
    handle = model.beam_begin([req([10], num_beams=1, max_new=10**6, length_penalty=1.0)])[0]
    while not handle.done:
        model.beam_step([handle])
    assert len(handle.hypotheses[0].token_ids) <= 511


@pytest.mark.parametrize("parents", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 0], [1, 1, 3, 3], [2, 0, 2, 2]])
def test_a_fork_copies_into_dead_slots_only(parents):
    slots = [10, 11, 12, 13]
    content = dict(zip(slots, "abcd", strict=True))
    expected = [content[slots[parent]] for parent in parents]
    chosen, pairs = fork_slots(slots, parents)
    assert sorted(chosen) == slots
    assert not {source for source, _ in pairs} & {target for _, target in pairs}
    assert len(pairs) == 4 - len(set(parents))
    for source, target in pairs:
        content[target] = content[source]
    assert [content[slot] for slot in chosen] == expected


def test_sources_are_padded_once_while_greedy_rows_and_beams_take_turns(model, tiny, monkeypatch):
    calls = []
    gather = core.gather_sources
    monkeypatch.setattr(core, "gather_sources", lambda crosses: calls.append(len(crosses)) or gather(crosses))
    source, other = random_sources(tiny, 2, 5)
    seq = model.alloc_sequence()
    seq.src_lang_id, seq.tgt_lang_id = SRC, TGT
    model.prefill(other, seq)
    handle = model.beam_begin([req(source, max_new=6, early_stopping="never", length_penalty=2.0)])[0]
    for _ in range(4):
        model.decode(9, seq)
        model.beam_step([handle])
    assert not handle.done
    assert sorted(calls) == [1, 2]
