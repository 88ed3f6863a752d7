"""Token ids and scores against transformers, float32 on the CPU, over random tiny checkpoints."""

import itertools

import pytest
import torch
from nllb_models import beams, greedy, load_pair, their_beams, their_greedy
from tiny_configs import LAYOUTS, random_sources, tiny_configs

from nllb_engine.interface import BeamReq

CONFIGS = tiny_configs(15, seed=1)
RULES = list(itertools.product((False, True, "never"), (1.0, 0.0, 2.0, -1.0)))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda one: f"{one.layout}-{one.d_model}-{one.vocab}")
def pair(request, tmp_path_factory):
    return load_pair(request.param, tmp_path_factory.mktemp("checkpoint"))


def test_the_configs_cover_what_they_promise():
    assert {one.layout for one in CONFIGS} == set(LAYOUTS)
    assert {one.d_model // one.heads[1] for one in CONFIGS} == {16, 64, 128}
    assert {one.encoder_layers for one in CONFIGS} == {one.decoder_layers for one in CONFIGS} == {1, 2, 3, 4}
    assert {one.tied for one in CONFIGS} == {one.scale_embedding for one in CONFIGS} == {True, False}
    assert any(one.heads[0] != one.heads[1] for one in CONFIGS)
    assert all(one.vocab % 8 for one in CONFIGS)


def test_greedy_ids_of_a_padded_batch_equal_one_by_one(pair):
    src, tgt = pair.config.languages[0], pair.config.languages[3]
    sources = random_sources(pair.config, 12, pair.config.seed)
    ours = greedy(pair.ours, sources, src, tgt, 24)
    assert ours == [their_greedy(pair.theirs, source, src, tgt, 24) for source in sources]


def test_beam_ids_and_scores_equal_under_every_rule(pair):
    src, tgt = pair.config.languages[1], pair.config.languages[2]
    sources = random_sources(pair.config, len(RULES), pair.config.seed + 1)
    reqs = [
        BeamReq(tuple(source), src, tgt, num_beams=2 + index % 3, max_new=4 + index, length_penalty=penalty,
                early_stopping=stopping)
        for index, (source, (stopping, penalty)) in enumerate(zip(sources, RULES, strict=True))
    ]  # fmt: skip
    ours = [found for first in range(0, len(reqs), 4) for found in beams(pair.ours, reqs[first : first + 4])]
    for source, req, found in zip(sources, reqs, ours, strict=True):
        expected = their_beams(pair.theirs, source, req)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-4)
    assert pair.ours.num_free_blocks() == pair.ours.num_total_blocks()


def test_the_outputs_compared_differ_in_content_and_length(tmp_path):
    pair = load_pair(CONFIGS[0], tmp_path)
    sources = random_sources(pair.config, 12, pair.config.seed)
    outputs = greedy(pair.ours, sources, pair.config.languages[0], pair.config.languages[3], 24)
    assert len({tuple(output[:4]) for output in outputs}) >= 8
    assert len({len(output) for output in outputs}) >= 4
