"""Slots, owners and the end of NllbGpuModel."""

import dataclasses
import gc
import random
import weakref

import pytest
import torch
from nllb_models import greedy

from nllb_engine.errors import CacheFull, InvalidRequest, UnsupportedByModel
from nllb_engine.interface import NO_SLOT, ForwardDisclosure, Legacy

SRC, TGT = 195, 196


def started(model, source):
    seq = model.alloc_sequence()
    seq.src_lang_id, seq.tgt_lang_id = SRC, TGT
    return seq, model.argmax_on_device(model.prefill(source, seq))


def finish(model, seq, token, length):
    out = [token]
    while len(out) < length and out[-1] != 2:
        out.append(model.argmax_on_device(model.decode(out[-1], seq)))
    return out


def test_the_pool_is_as_large_as_its_blocks(model):
    pool = model.core.self_kv._kv
    assert model.num_total_blocks() * model.kv_block_bytes() == pool.numel() * pool.element_size()
    assert model.num_total_blocks() == model.num_free_blocks() == 8


def test_slots_run_out_with_a_named_error_and_come_back(model):
    seqs = [model.alloc_sequence() for _ in range(8)]
    assert sorted(seq.slot_idx for seq in seqs) == list(range(8))
    assert model.num_free_blocks() == 0
    with pytest.raises(CacheFull, match="8 sequence slots"):
        model.alloc_sequence_for(100)
    model.free_sequence(seqs[3])
    assert model.alloc_sequence().slot_idx == 3


def test_freeing_twice_frees_nothing_of_the_next_owner(model):
    first = model.alloc_sequence()
    stale = dataclasses.replace(first)
    model.free_sequence(first)
    second = model.alloc_sequence()
    model.free_sequence(first)
    model.free_sequence(stale)
    assert (second.slot_idx, model.num_free_blocks()) == (0, 7)


def test_compaction_moves_a_survivor_into_a_retired_slot(model):
    expected = greedy(model, [[20, 21, 22]], SRC, TGT, 8)[0]
    retired, _ = started(model, [10])
    survivor, token = started(model, [20, 21, 22])
    model.compact_sequence(survivor, retired.slot_idx)
    model.detach_slot_for_reuse(retired)
    assert (survivor.slot_idx, retired.slot_idx) == (0, NO_SLOT)
    model.free_sequence(retired)
    assert model.num_free_blocks() == 7
    newcomer, _ = started(model, [30, 31])
    assert newcomer.slot_idx == 1
    assert finish(model, survivor, token, len(expected)) == expected


def test_compaction_into_a_free_slot_and_into_its_own(model):
    expected = greedy(model, [[20, 21]], SRC, TGT, 6)[0]
    first = model.alloc_sequence()
    seq, token = started(model, [20, 21])
    model.free_sequence(first)
    model.compact_sequence(seq, 0)
    model.compact_sequence(seq, 0)
    assert model.num_free_blocks() == 7
    assert {model.alloc_sequence().slot_idx for _ in range(7)} == set(range(1, 8))
    assert finish(model, seq, token, len(expected)) == expected


def test_compaction_refuses_slots_that_do_not_exist(model):
    seq, _ = started(model, [10])
    with pytest.raises(InvalidRequest):
        model.compact_sequence(seq, 8)
    model.free_sequence(seq)
    with pytest.raises(InvalidRequest):
        model.compact_sequence(seq, 1)


def test_detaching_a_sequence_that_nobody_replaced_frees_its_slot(model):
    seq = model.alloc_sequence()
    model.detach_slot_for_reuse(seq)
    assert (seq.slot_idx, model.num_free_blocks()) == (NO_SLOT, 8)


def test_a_busy_slot_is_never_shared_over_random_lives(model):
    draw = random.Random(3)
    live = []
    for _ in range(2000):
        action = draw.random()
        if action < 0.45 and model.num_free_blocks():
            live.append(model.alloc_sequence())
        elif action < 0.75 and live:
            model.free_sequence(live.pop(draw.randrange(len(live))))
        elif len(live) >= 2:
            retired = live.pop(draw.randrange(len(live)))
            survivor = draw.choice(live)
            model.compact_sequence(survivor, retired.slot_idx)
            model.detach_slot_for_reuse(retired)
            model.free_sequence(retired)
        slots = [seq.slot_idx for seq in live]
        assert len(set(slots)) == len(slots) == 8 - model.num_free_blocks()
    for seq in live:
        model.free_sequence(seq)
    assert model.num_free_blocks() == 8


def test_a_freed_sequences_source_is_forgotten(model):
    seq, token = started(model, [10, 11])
    model.decode(token, seq)
    cross = weakref.ref(model._sources[seq.slot_idx])
    model.free_sequence(seq)
    gc.collect()
    assert cross() is None


def test_teardown_releases_every_tensor(model):
    seq, token = started(model, [10])
    model.decode(token, seq)
    tensors = [model.core.self_kv._kv, model.core.logits, model.core.network.head, model.core.hidden]
    owned = [weakref.ref(tensor) for tensor in tensors]
    del tensors
    model.teardown()
    model.teardown()
    gc.collect()
    assert [ref() for ref in owned] == [None] * 4
    for call in (lambda: model.decode(5, seq), model.alloc_sequence, lambda: model.argmax_on_device(0)):
        with pytest.raises(InvalidRequest):
            call()


def test_the_model_answers_what_nllb_has_not_as_the_seed_does(model):
    seq = model.alloc_sequence()
    for method, args in [
        ("decode_verify", ([1], seq)), ("decode_verify_graphed", ((1, 2), seq)),
        ("decode_verify_graphed_k3", ((1, 2, 3), seq)), ("decode_verify_graphed_k4", ((1, 2, 3, 4), seq)),
        ("decode_verify_dflash", ([1], seq)), ("decode_draft", (1, seq)),
        ("generate_speculative", ([1], None, 1)),
    ]:  # fmt: skip
        with pytest.raises(UnsupportedByModel):
            getattr(model, method)(*args)
    assert not model.has_proposer()
    assert not model.has_self_speculative()
    assert model.run_mtp_propose(1, 0, seq) is None
    assert model.run_mtp_propose_multi(1, 0, 2, seq) == []
    assert model.save_hidden_for_mtp(0) is None
    assert model.trim_proposer_state(seq, 0) is None
    assert model.checkpoint_ssm_states(seq) is None
    assert model.rollback_ssm_states(seq, 1) is None
    assert model.cache_sequence(seq) is None
    assert model.bind_gpu_to_thread() is None


def test_the_forward_is_the_hand_written_one(model):
    model.set_forward(Legacy())
    assert model.forward_disclosure() == ForwardDisclosure("legacy", None, None)


def test_streams_and_events_work_and_unknown_handles_are_refused(model):
    stream, event = model.create_stream(), model.create_event()
    assert stream != model.default_stream()
    seq = model.alloc_sequence()
    seq.src_lang_id, seq.tgt_lang_id = SRC, TGT
    on_stream = model.prefill([10], seq, stream)
    model.record_event(event, stream)
    model.stream_wait_event(0, event)
    model.synchronize(stream)
    model.event_synchronize(event)
    assert model.event_query(event)
    assert model.argmax_on_device(on_stream) == model.argmax_on_device(model.prefill([10], seq))
    model.destroy_event(event)
    for method, args in [("event_query", (event,)), ("synchronize", (99,)), ("decode", (5, seq, 99))]:
        with pytest.raises(InvalidRequest, match="does not exist"):
            getattr(model, method)(*args)


def test_nothing_is_recorded_for_gradients(model):
    started(model, [10])
    assert not torch.is_inference_mode_enabled()
    assert not model.core.logits.requires_grad
