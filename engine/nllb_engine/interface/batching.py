"""Batch ladder and logits arithmetic of the interface, in plain Python. Must not know a tensor library."""

import heapq
import math
import struct
from collections.abc import Sequence

from nllb_engine.interface.values import PromptTokenLogprob

DECODE_BATCH_LADDER = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def padded_batch_n(n: int) -> int:
    """The smallest rung of the ladder that is at least `n`; above the ladder `n` itself."""
    return next((rung for rung in DECODE_BATCH_LADDER if rung >= n), n)


def bf16_to_f32(lo: int, hi: int) -> float:
    """One bfloat16 given as its two little-endian bytes: they are the upper half of a float32."""
    value: float = struct.unpack("<f", bytes((0, 0, lo, hi)))[0]
    return value


def logprob_of(f32_logits: Sequence[float], target: int, k: int) -> tuple[float, list[tuple[int, float]]]:
    """Log-softmax of one row: the target's log-probability and the `k` best (id, log-probability) pairs.

    Natural logarithm, stable by subtracting the maximum. A target outside the row, or an empty row, gives
    -inf; `k` is cut at the row's length and 0 gives no pairs. Of equal logits the lower id comes first.
    """
    if not f32_logits:
        return -math.inf, []
    highest = max(f32_logits)
    normaliser = math.log(math.fsum(math.exp(logit - highest) for logit in f32_logits))
    best = heapq.nsmallest(max(k, 0), range(len(f32_logits)), key=lambda index: (-f32_logits[index], index))
    top = [(index, f32_logits[index] - highest - normaliser) for index in best]
    inside = 0 <= target < len(f32_logits)
    return (f32_logits[target] - highest - normaliser if inside else -math.inf), top


def extract_bf16(row: bytes, target: int, k: int, vocab: int) -> PromptTokenLogprob:
    """Score `target` against one row of `vocab` bfloat16 logits (2 · `vocab` bytes, little-endian)."""
    halves = struct.unpack(f"<{vocab}H", row[: 2 * vocab])
    logits = struct.unpack(f"<{vocab}f", struct.pack(f"<{vocab}I", *(half << 16 for half in halves)))
    logprob, top = logprob_of(logits, target, k)
    return PromptTokenLogprob(target, logprob, top)
