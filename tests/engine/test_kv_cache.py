"""Slots, the self-attention cache and padded sources, as plain tensors."""

import random

import pytest
import torch

from nllb_engine.errors import CacheFull, InvalidRequest
from nllb_engine.kv_cache import CrossKv, SelfKvCache, SlotPool, gather_sources, padding_mask, split_sources

CPU = torch.device("cpu")


def cache(slots=4, rows=8):
    return SelfKvCache(2, slots, rows, 2, 3, CPU, torch.float32)


def test_the_lowest_free_slot_goes_first_and_only_its_owner_frees_it():
    pool, owners = SlotPool(3), [object() for _ in range(3)]
    assert [pool.take(owner) for owner in owners] == [0, 1, 2]
    with pytest.raises(CacheFull):
        pool.take(object())
    assert not pool.give_back(1, owners[0])
    assert pool.give_back(1, owners[1])
    assert not pool.give_back(1, owners[1])
    assert pool.take(object()) == 1


def test_a_pool_survives_random_walks():
    draw, pool, held = random.Random(5), SlotPool(6), {}
    for _ in range(10_000):
        if pool.free and draw.random() < 0.5:
            owner = object()
            slot = pool.take(owner)
            assert slot not in held
            held[slot] = owner
        elif held:
            slot, target = draw.choice(list(held)), draw.randrange(6)
            if draw.random() < 0.5:
                assert pool.give_back(slot, held.pop(slot))
            else:
                pool.move(slot, target, held[slot])
                held[target] = held.pop(slot)
        assert pool.free == 6 - len(held)
        assert all(pool.owns(slot, owner) for slot, owner in held.items())


def test_a_move_by_anyone_else_is_refused():
    pool, owner = SlotPool(2), object()
    slot = pool.take(owner)
    for old, new, who in [(slot, 1, object()), (1, slot, owner), (slot, 2, owner), (slot, -1, owner)]:
        with pytest.raises(InvalidRequest):
            pool.move(old, new, who)


@pytest.mark.parametrize("slots", [[0, 1], [1, 0], [2, 0]])
def test_rows_are_read_back_from_the_slots_they_were_written_to(slots):
    kv, written = cache(), {}
    starts = [0, 3]
    for step in range(3):
        view = kv.begin(slots, [start + step for start in starts], 1)
        key, value = torch.randn(2, 1, 2, 3), torch.randn(2, 1, 2, 3)
        keys, values = view.extend(1, key, value)
        for row in range(2):
            written[row, starts[row] + step] = (key[row, 0], value[row, 0])
        for (row, position), (k, v) in written.items():
            assert torch.equal(keys[row, position], k)
            assert torch.equal(values[row, position], v)


def test_a_row_sees_its_own_past_and_nothing_else():
    view = cache().begin([0, 1], [2, 0], 2)
    visible = view.mask[:, 0] == 0
    assert visible.tolist() == [
        [[True, True, True, False], [True, True, True, True]],
        [[True, False, False, False], [True, True, False, False]],
    ]
    assert cache().begin([0, 1], [3, 3], 1).mask is None


def test_a_full_slot_is_refused():
    cache().begin([0], [7], 1)
    with pytest.raises(CacheFull, match="8 rows"):
        cache().begin([0, 1], [0, 8], 1)


def test_copies_carry_all_layers_and_only_the_asked_rows():
    kv = cache()
    kv._kv.normal_()
    before = kv._kv.clone()
    kv.copy([(0, 2), (1, 3)], 5)
    assert torch.equal(kv._kv[:, :, 2:, :5], before[:, :, :2, :5])
    assert torch.equal(kv._kv[:, :, :, 5:], before[:, :, :, 5:])
    assert torch.equal(kv._kv[:, :, :2], before[:, :, :2])
    kv.copy([], 5)


def test_block_bytes_count_keys_and_values_of_all_layers():
    assert cache().block_bytes == 2 * 2 * 8 * 2 * 3 * 4


def test_padding_is_hidden_and_absent_padding_costs_no_mask():
    mask = padding_mask([3, 1], CPU, torch.float32)
    assert (mask[:, 0, 0] == 0).tolist() == [[True, True, True], [True, False, False]]
    assert padding_mask([2, 2], CPU, torch.float32) is None


def test_sources_are_cut_and_padded_again():
    padded = torch.randn(2, 2, 2, 5, 2, 3)
    long, short = split_sources(padded, [5, 2])
    assert (long.length, short.length) == (5, 2)
    batch = gather_sources([short, long])
    assert torch.equal(batch.kv[:, :, 0, :2], padded[:, :, 1, :2])
    assert torch.equal(batch.kv[:, :, 1], padded[:, :, 0])
    assert batch.rows_of is None


def test_rows_of_one_source_share_its_keys():
    one, two = (CrossKv(torch.randn(1, 2, 4, 1, 2)) for _ in range(2))
    batch = gather_sources([one, one, one, two])
    assert batch.kv.shape[2] == 2
    assert batch.rows_of.tolist() == [[0, 1, 2], [3, 0, 0]]
    assert batch.place_of.tolist() == [0, 1, 2, 3]
    assert batch.rows_of.flatten()[batch.place_of].tolist() == [0, 1, 2, 3]
