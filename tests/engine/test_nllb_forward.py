"""Prefill, decode and logits of NllbGpuModel, apart from parity: batches, addresses, refusals."""

import dataclasses
import struct

import pytest
import torch
from nllb_models import build, greedy, load
from tiny_configs import random_sources, reference, save

from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.errors import CacheFull, CheckpointError, InvalidRequest, TokenizerError
from nllb_engine.interface import NULL, DevicePtr, PrefillSlice

SRC, TGT = 195, 196


def sequence(model, src=SRC, tgt=TGT):
    seq = model.alloc_sequence()
    seq.src_lang_id, seq.tgt_lang_id = src, tgt
    return seq


def row(model, ptr):
    dst = bytearray(4 * model.vocab_size())
    model.copy_logits_to_host(ptr, dst)
    return torch.tensor(struct.unpack(f"<{model.vocab_size()}f", dst))


def test_a_batch_of_n_equals_n_single_decodes(model, tiny):
    sources = random_sources(tiny, 8, 1)
    batch = greedy(model, sources, SRC, TGT, 12)
    assert batch == [greedy(model, [source], SRC, TGT, 12)[0] for source in sources]


def test_row_i_belongs_to_sequence_i_whatever_their_slots(model, tiny):
    seqs = [sequence(model) for _ in range(4)]
    for seq, source in zip(seqs, random_sources(tiny, 4, 2), strict=True):
        model.prefill(source, seq)
    straight = model.decode_batch([5, 6, 7, 8], seqs)
    expected = [row(model, DevicePtr(straight + 4 * 203 * i)) for i in range(4)]
    for seq in seqs:
        seq.tokens.pop()
        seq.seq_len -= 1
    reversed_ = model.decode_batch([8, 7, 6, 5], seqs[::-1])
    for i in range(4):
        assert torch.allclose(row(model, DevicePtr(reversed_ + 4 * 203 * i)), expected[3 - i], atol=1e-5)


def test_rows_of_one_step_may_differ_in_length_and_language(model, tiny):
    first, second = random_sources(tiny, 2, 3)
    alone = greedy(model, [second], 197, 198, 6)[0]
    old = sequence(model)
    token = model.argmax_on_device(model.prefill(first, old))
    for _ in range(5):
        token = model.argmax_on_device(model.decode(token, old))
    young = sequence(model, 197, 198)
    out = [model.argmax_on_device(model.prefill(second, young))]
    while len(out) < len(alone):
        base = model.decode_batch([token, out[-1]], [old, young])
        token, other = model.argmax_batch(base, 2)
        out.append(other)
    assert out == alone


def test_prefill_leaves_start_and_target_language_in_the_sequence(model):
    seq = sequence(model)
    model.prefill([10, 11], seq)
    assert (seq.tokens, seq.seq_len, seq.prompt_len) == ([2, TGT], 2, 2)
    model.decode(9, seq)
    assert (seq.tokens, seq.seq_len, seq.prompt_len) == ([2, TGT, 9], 3, 2)


def test_the_deployments_languages_stand_in_where_a_sequence_names_none(tiny, folder):
    model = build(folder, NllbLang(SRC, TGT, frozenset(tiny.languages)))
    seq = model.alloc_sequence()
    named = sequence(model)
    assert torch.equal(row(model, model.prefill([10], seq)), row(model, model.prefill([10], named)))
    assert seq.tokens == [2, TGT]


def test_the_legacy_layout_changes_the_source(tiny, folder):
    rows = []
    for legacy in (False, True):
        model = build(folder, NllbLang(SRC, TGT, frozenset(tiny.languages), legacy_behaviour=legacy))
        rows.append(row(model, model.prefill([10, 11], model.alloc_sequence())))
    assert not torch.allclose(*rows)


def test_only_the_last_chunk_gives_logits_and_they_are_those_of_the_whole(model):
    whole, cut = sequence(model), sequence(model)
    expected = row(model, model.prefill([10, 11, 12], whole))
    assert model.prefill_chunk([10, 11, 12], cut, 0, 2, False) == NULL
    assert torch.equal(row(model, model.prefill_chunk([10, 11, 12], cut, 2, 1, True)), expected)


@pytest.mark.parametrize(
    ("start", "length", "last"), [(1, 2, True), (0, 2, True), (0, 4, True), (0, -1, False)]
)
def test_chunks_that_do_not_follow_are_refused(model, start, length, last):
    with pytest.raises(InvalidRequest):
        model.prefill_chunk([10, 11, 12], sequence(model), start, length, last)


def test_a_prefill_batch_answers_only_finished_streams(model):
    seqs = [sequence(model) for _ in range(3)]
    slices = [
        PrefillSlice.whole([10], seqs[0]),
        PrefillSlice([10, 11], seqs[1], 0, 1, False),
        PrefillSlice.whole([10, 11], seqs[2]),
    ]
    rows = model.prefill_batch_chunk(slices)
    assert rows[1] == NULL
    assert rows[2] - rows[0] == 4 * model.vocab_size()
    assert torch.allclose(row(model, rows[2]), row(model, model.prefill([10, 11], seqs[1])), atol=1e-5)


def test_a_mixed_batch_puts_prefill_rows_behind_the_decode_rows(model):
    old, new = sequence(model), sequence(model)
    model.prefill([10], old)
    expected = row(model, model.prefill([12, 13], new))
    mixed = model.mixed_forward_batch([5], [old], [PrefillSlice.whole([12, 13], new)])
    assert mixed.decode_logits == model.logits_buffer_ptr()
    assert mixed.prefill_logits == [model.logits_buffer_ptr() + 4 * model.vocab_size()]
    assert torch.equal(row(model, mixed.prefill_logits[0]), expected)
    assert old.seq_len == 3


def test_a_mixed_forward_keeps_both_results(model):
    old, new = sequence(model), sequence(model)
    model.prefill([10], old)
    mixed = model.mixed_forward([5], [old], [12], new, 0, 1, True)
    decoded = row(model, mixed.decode_logits)
    assert not torch.allclose(decoded, row(model, mixed.prefill_logits))
    assert model.mixed_forward([], [], [12], new, 0, 1, True).decode_logits == NULL


@pytest.mark.parametrize(
    ("tokens", "word"), [([], "empty"), ([203], "203"), ([-1], "-1"), ([1], "token id 1"), ([9] * 599, "598")]
)
def test_bad_sources_are_refused_before_anything_runs(model, tokens, word):
    seq = sequence(model)
    with pytest.raises(InvalidRequest, match=word):
        model.prefill(tokens, seq)
    assert (seq.tokens, seq.seq_len) == ([], 0)


def test_the_longest_source_is_served(model):
    assert row(model, model.prefill([9] * 598, sequence(model))).isfinite().all()


@pytest.mark.parametrize(("src", "tgt"), [(0, TGT), (SRC, 0), (9, TGT), (SRC, 9), (SRC, 10**6)])
def test_what_is_not_a_language_is_refused(model, src, tgt):
    with pytest.raises(InvalidRequest, match="language"):
        model.prefill([10], sequence(model, src, tgt))


def test_decode_batch_refuses_wrong_counts_and_changes_nothing(model):
    seqs = [sequence(model) for _ in range(8)]
    for seq in seqs:
        model.prefill([10], seq)
    wrong = [
        ([], []),
        ([5], seqs[:2]),
        ([5, 6], seqs[:1]),
        ([5] * 9, [*seqs, dataclasses.replace(seqs[0])]),
        ([5, 203], seqs[:2]),
        ([5, 5], [seqs[0], seqs[0]]),
    ]
    for tokens, chosen in wrong:
        with pytest.raises(InvalidRequest):
            model.decode_batch(tokens, chosen)
    assert all(seq.seq_len == 2 for seq in seqs)


def test_a_sequence_that_was_not_prefilled_cannot_decode(model):
    with pytest.raises(InvalidRequest, match="not prefilled"):
        model.decode(5, sequence(model))


def test_a_full_cache_is_a_named_error_that_costs_nobody_a_row(model):
    full, other = sequence(model), sequence(model)
    model.prefill([10], full)
    model.prefill([10], other)
    assert model.limits().max_rows == 512
    while full.seq_len < 512:
        model.decode(5, full)
    with pytest.raises(CacheFull, match="512 rows"):
        model.decode_batch([5, 5], [full, other])
    assert other.seq_len == 2
    model.decode(5, other)


def test_rows_end_at_the_last_position_the_network_has(tiny, tmp_path):
    short = dataclasses.replace(tiny, max_positions=40)
    model = load(save(reference(short), short, tmp_path), short)
    seq = sequence(model)
    model.prefill([10], seq)
    while seq.seq_len < 40:
        model.decode(5, seq)
    with pytest.raises(CacheFull, match="40 rows"):
        model.decode(5, seq)


def test_logits_addresses_are_checked(model):
    ptr = model.prefill([10], sequence(model))
    for bad in (NULL, DevicePtr(ptr + 1), DevicePtr(model.logits_buffer_ptr() - 4 * 203)):
        with pytest.raises(InvalidRequest, match="logits"):
            model.argmax_on_device(bad)
    with pytest.raises(InvalidRequest):
        model.argmax_batch(ptr, 100)
    with pytest.raises(InvalidRequest, match="812"):
        model.copy_logits_to_host(ptr, bytearray(10))


def test_argmax_takes_the_lowest_of_equal_logits(model):
    ptr = model.prefill([10], sequence(model))
    model.core.rows_at(ptr, 1).fill_(0.0)
    assert model.argmax_on_device(ptr) == 0


def test_the_hidden_state_times_the_head_is_the_logits(model):
    assert model.hidden_after_norm() == NULL
    seq = sequence(model)
    model.prefill([10], seq)
    base = model.decode(5, seq)
    assert model.hidden_after_norm() == model.core.hidden.data_ptr()
    expected = model.core.hidden[:1] @ model.core.network.head.T
    assert torch.allclose(row(model, base), expected[0], atol=1e-5)


def test_float32_rows_say_so(model, tiny, folder):
    assert model.decode_logits_fp32()
    assert model.logits_ptr_is_fp32(model.decode_logits_ptr())
    narrow = load(folder, tiny, dtype=torch.bfloat16)
    seq = sequence(narrow)
    ptr = narrow.prefill([10, 11], seq)
    assert not narrow.logits_ptr_is_fp32(ptr)
    narrow.copy_logits_to_host(ptr, bytearray(2 * 203))


def test_bfloat16_decodes_mostly_like_float32(model, tiny, folder):
    sources = random_sources(tiny, 8, 5)
    narrow = greedy(load(folder, tiny, 8, torch.bfloat16), sources, SRC, TGT, 4)
    exact = greedy(model, sources, SRC, TGT, 4)
    assert sum(a[0] == b[0] for a, b in zip(narrow, exact, strict=True)) >= 6


def test_a_shared_weight_that_is_not_bfloat16_is_refused(tiny, folder):
    class Float32Store:
        def __init__(self, store):
            self.__dict__.update({name: getattr(store, name) for name in ("names", "shape", "tensor")})

        def dtype(self, name):
            return torch.float32

    with pytest.raises(CheckpointError, match=r"model\.shared\.weight is torch\.float32, not bfloat16"):
        build(folder, NllbLang(), store=Float32Store(open_checkpoint(folder)))


def test_a_tokenizer_of_another_model_is_refused(folder):
    with pytest.raises(TokenizerError, match="vocabulary of 203"):
        build(folder, NllbLang(language_ids=frozenset({203})))


def test_a_checkpoint_that_does_not_fit_its_config_is_refused(folder):
    config = dataclasses.replace(ModelConfig.from_folder(folder), d_model=128)
    with pytest.raises(CheckpointError, match="shape"):
        build(folder, NllbLang(), config=config)


@pytest.mark.parametrize(("asked", "rows"), [(1, 512), (700, 700), (10**6, 2048)])
def test_the_constructor_clamps_rows_and_batch(folder, asked, rows):
    model = build(folder, NllbLang(), max_seq_len=asked, max_batch=0)
    assert model.kv_block_size() == rows
    assert model.limits().max_rows == min(rows, 600)
    assert model.limits().max_batch == 1
