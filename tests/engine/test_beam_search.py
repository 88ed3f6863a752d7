"""One step of beam search on hand-made scores. Equality with transformers is in tests/parity."""

import math

import pytest
import torch

from nllb_engine.beam_search import BeamRules, BeamScores, beam_step

EOS = 0
CPU = torch.device("cpu")


def logits_of(probabilities):
    return torch.tensor(probabilities).log()[None]


def rules(length=2, max_length=10, penalty=1.0, stopping=False):
    return [BeamRules(penalty, stopping, length, max_length)]


def test_at_the_start_only_the_first_beam_brings_forth_candidates():
    probabilities = [[0.1, 0.2, 0.3, 0.4]] * 2
    step = beam_step(logits_of(probabilities), BeamScores.start(2, CPU), rules(), EOS)
    assert [step.candidates[0][chosen] for chosen in step.running[0]] == [(0, 3), (0, 2)]
    assert step.scores.running[0].tolist() == pytest.approx([math.log(0.4), math.log(0.3)])
    assert not step.done[0]


def test_an_end_token_among_the_best_finishes_and_its_score_is_divided_by_its_length():
    probabilities = [[0.6, 0.1, 0.1, 0.2]] * 2
    step = beam_step(logits_of(probabilities), BeamScores.start(2, CPU), rules(length=4), EOS)
    assert step.scores.is_finished[0].tolist() == [True, False]
    assert step.kept[0][0] == 2
    assert step.scores.finished[0, 0].item() == pytest.approx(math.log(0.6) / 4)
    assert step.candidates[0][step.running[0][0]] == (0, 3)


def test_an_end_token_beyond_the_best_beams_is_ignored():
    probabilities = [[0.2, 0.05, 0.35, 0.4]] * 2
    step = beam_step(logits_of(probabilities), BeamScores.start(2, CPU), rules(), EOS)
    assert not step.scores.is_finished.any()


def test_the_length_limit_finishes_what_is_best_whatever_the_token():
    probabilities = [[0.1, 0.2, 0.3, 0.4]] * 2
    step = beam_step(logits_of(probabilities), BeamScores.start(2, CPU), rules(10, 10), EOS)
    assert step.done[0]
    assert step.scores.is_finished.all()
    assert [step.candidates[0][kept - 2] for kept in step.kept[0]] == [(0, 3), (0, 2)]


@pytest.mark.parametrize(
    ("stopping", "penalty", "done"),
    [(True, 1.0, True), (False, 1.0, True), ("never", 1.0, False), ("never", -1.0, True), (False, 0.0, True)],
)
def test_a_full_pool_ends_by_the_rule_asked_for(stopping, penalty, done):
    """Pool full of -0.5; the best live beam stands at -2.2 and -0.05 per token would still be possible."""
    state = BeamScores(
        torch.tensor([[-2.0, -2.1]]), torch.tensor([[-0.5, -0.5]]), torch.tensor([[True, True]]),
        torch.tensor([[True]]),
    )  # fmt: skip
    probabilities = [[1e-9, 0.8, 0.1, 0.1]] * 2
    step = beam_step(logits_of(probabilities), state, rules(3, 100, penalty, stopping), EOS)
    assert step.done[0] is done


def test_searches_in_one_call_do_not_touch_each_other():
    left = torch.tensor([[0.6, 0.1, 0.1, 0.2]] * 2).log()
    right = torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 2).log()
    start = BeamScores.start(2, CPU)
    both = beam_step(torch.stack([left, right]), BeamScores.cat([start, start]), rules() * 2, EOS)
    for index, alone in enumerate([left, right]):
        one = beam_step(alone[None], start, rules(), EOS)
        assert both.candidates[index] == one.candidates[0]
        assert both.kept[index] == one.kept[0]
        part = both.scores.split()[index]
        assert torch.equal(part.running, one.scores.running)
        assert torch.equal(part.finished, one.scores.finished)


def test_bfloat16_logits_are_scored_in_float32():
    logits = torch.randn(1, 2, 64).bfloat16()
    step = beam_step(logits, BeamScores.start(2, CPU), rules(), EOS)
    expected = torch.log_softmax(logits.float(), -1)[0, 0].max()
    assert step.scores.running[0, 0] == expected
