"""The batch ladder and logits arithmetic at their edges."""

import math
import struct

import pytest

from nllb_engine.interface import DECODE_BATCH_LADDER, bf16_to_f32, extract_bf16, logprob_of, padded_batch_n


@pytest.mark.parametrize(
    ("n", "padded"),
    [(1, 2), (2, 2), (3, 4), (5, 8), (9, 12), (13, 16), (17, 24), (25, 32), (33, 48), (49, 64), (65, 96),
     (97, 128), (128, 128), (129, 129), (4096, 4096)],
)  # fmt: skip
def test_a_batch_is_padded_to_the_next_rung_or_not_at_all(n, padded):
    assert padded_batch_n(n) == padded


def test_the_ladder_is_the_seeds():
    assert DECODE_BATCH_LADDER == (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 65280.0, 2.0**-133, math.inf, -math.inf])
def test_bf16_bytes_become_the_same_float(value):
    lo, hi = struct.pack("<f", value)[2:]
    assert struct.pack("<f", bf16_to_f32(lo, hi)) == struct.pack("<f", value)


def test_a_bf16_nan_stays_a_nan():
    assert math.isnan(bf16_to_f32(0xC0, 0x7F))


def test_log_probabilities_sum_to_one_and_the_best_come_first():
    logprob, top = logprob_of([1.0, 3.0, 2.0], 2, 2)
    assert [index for index, _ in top] == [1, 2]
    assert top[1][1] == logprob
    assert math.isclose(sum(math.exp(logprob_of([1.0, 3.0, 2.0], i, 0)[0]) for i in range(3)), 1.0)


def test_large_logits_do_not_overflow():
    logprob, _ = logprob_of([1e30, 1e30, -1e30], 0, 0)
    assert math.isclose(logprob, -math.log(2))


def test_the_edges_of_logprob_of():
    assert logprob_of([], 0, 3) == (-math.inf, [])
    assert logprob_of([0.0, 0.0], 2, 0) == (-math.inf, [])
    assert logprob_of([0.0, 0.0], -1, 0)[0] == -math.inf
    assert len(logprob_of([0.0, 0.0], 0, 9)[1]) == 2
    assert [index for index, _ in logprob_of([5.0, 7.0, 7.0], 0, 2)[1]] == [1, 2]


def test_a_bf16_row_is_scored_like_its_floats():
    floats = [0.5, -1.25, 3.0, 2.0]
    row = b"".join(struct.pack("<f", value)[2:] for value in floats)
    scored = extract_bf16(row, 3, 2, 4)
    assert (scored.logprob, scored.top) == logprob_of(floats, 3, 2)
    assert scored.token_id == 3
