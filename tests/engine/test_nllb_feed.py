"""The device feed of NllbGpuModel: ids that stay on the device between two steps."""

import ctypes

import pytest
from nllb_models import greedy
from tiny_configs import random_sources

from nllb_engine.errors import CacheFull, InvalidRequest
from nllb_engine.interface import NO_TOKEN, DevicePtr, HostPtr, HostToken, PreviousRow

SRC, TGT = 195, 196
OPEN = (NO_TOKEN, NO_TOKEN)


def started(model, sources):
    seqs = []
    for source in sources:
        seq = model.alloc_sequence()
        seq.src_lang_id, seq.tgt_lang_id = SRC, TGT
        seqs.append((seq, model.argmax_on_device(model.prefill(source, seq))))
    return [seq for seq, _ in seqs], [token for _, token in seqs]


def host_ids(ptr, n):
    return list((ctypes.c_uint32 * n).from_address(ptr))


def test_fed_steps_decode_like_plain_ones_without_the_host_knowing_a_token(model, tiny):
    sources = random_sources(tiny, 3, 11)
    expected = greedy(model, sources, SRC, TGT, 6)
    seqs, first = started(model, sources)
    pinned, event = model.alloc_host_pinned(4 * 3), model.create_event()
    feed = [HostToken(token) for token in first]
    outputs = [[token] for token in first]
    for _ in range(5):
        base = model.decode_batch_fed(feed, seqs)
        model.argmax_batch_to_feed(base, [OPEN] * 3, pinned, event)
        for seq in seqs:
            seq.seq_len += 1
        model.event_synchronize(event)
        assert model.event_query(event)
        for output, token in zip(outputs, host_ids(pinned, 3), strict=True):
            output.append(token)
        feed = [PreviousRow(row) for row in range(3)]
    for output, reference in zip(outputs, expected, strict=True):
        assert output[: len(reference)] == reference
    assert model.supports_device_token_feed()
    model.fed_step_settled()
    model.free_host_pinned(pinned, 12)
    model.destroy_event(event)


def test_a_fed_step_neither_pushes_the_token_nor_advances(model):
    seqs, tokens = started(model, [[10]])
    model.decode_batch_fed([HostToken(tokens[0])], seqs)
    assert (seqs[0].tokens, seqs[0].seq_len) == ([2, TGT], 2)


def test_a_mask_is_never_picked_and_leaves_the_logits_alone(model):
    seqs, tokens = started(model, [[10]])
    base = model.decode(tokens[0], seqs[0])
    best = model.argmax_on_device(base)
    pinned, event = model.alloc_host_pinned(8), model.create_event()
    model.argmax_batch_to_feed(base, [(best, NO_TOKEN)], pinned, event)
    second = host_ids(pinned, 1)[0]
    model.argmax_batch_to_feed(base, [(best, second)], HostPtr(pinned + 4), event)
    assert len({best, second, host_ids(pinned + 4, 1)[0]}) == 3
    assert model.argmax_on_device(base) == best


def test_feed_arguments_are_checked(model):
    seqs, _ = started(model, [[10]])
    pinned, event = model.alloc_host_pinned(4), model.create_event()
    base = model.decode(5, seqs[0])
    refused = [
        ("decode_batch_fed", ([], [])),
        ("decode_batch_fed", ([HostToken(1), HostToken(1)], seqs)),
        ("decode_batch_fed", ([PreviousRow(8)], seqs)),
        ("decode_batch_fed", ([PreviousRow(-1 - 1)], seqs)),
        ("decode_batch_fed", ([HostToken(203)], seqs)),
        ("argmax_batch_to_feed", (base, [], pinned, event)),
        ("argmax_batch_to_feed", (base, [OPEN, OPEN], pinned, event)),
        ("argmax_batch_to_feed", (base, [(203, NO_TOKEN)], pinned, event)),
        ("argmax_batch_to_feed", (base, [OPEN], pinned, event + 7)),
        ("alloc_host_pinned", (0,)),
        ("free_host_pinned", (HostPtr(pinned + 1), 3)),
        ("release_decode_blocks", (seqs[0], 1)),
        ("copy_d2h_async", (DevicePtr(8), memoryview(bytearray(4)))),
    ]
    for method, args in refused:
        with pytest.raises(InvalidRequest):
            getattr(model, method)(*args)


def test_a_sequence_reserves_rows_until_its_slot_is_full(model):
    seqs, _ = started(model, [[10]])
    assert model.reserve_decode_block(seqs[0]) == 0
    model.release_decode_blocks(seqs[0], 0)
    seqs[0].seq_len = 512
    with pytest.raises(CacheFull):
        model.reserve_decode_block(seqs[0])


def test_rows_are_copied_to_the_host_on_a_stream(model):
    seqs, _ = started(model, [[10]])
    base = model.decode(5, seqs[0])
    whole, part = bytearray(4 * 203), bytearray(8)
    model.copy_logits_to_host(base, whole)
    stream = model.create_stream()
    model.copy_d2h_async(DevicePtr(base + 4), memoryview(part), stream)
    model.synchronize(stream)
    assert part == whole[4:12]


def test_pinned_memory_starts_as_zeros(model):
    ptr = model.alloc_host_pinned(64)
    assert host_ids(ptr, 16) == [0] * 16
