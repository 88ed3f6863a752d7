"""Training that is repeated, cut off and gone on with, on a model of a few hundred weights on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_grammar import LANGUAGES
from tiny_training.fitting import Checkpoint, ForeignCheckpointError, Plan, fit
from tiny_training.pool import Order, Pool
from torch import nn

LANGUAGE_IDS = torch.arange(20, 20 + len(LANGUAGES))
PLAN = Plan(steps=30, seconds=3600.0, tokens=64, rate=1e-2, seed=1)
ORDER = Order(Path("anywhere"), "base 1", 40)


class Copier(nn.Module):
    """Says next what it is shown: ids [rows, width] → logits [rows, width, 28]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(28, 8)

    def forward(self, decoder_input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.words(decoder_input_ids) @ self.words.weight.T)


class CutOffPool(Pool):
    """Like a pool, but the machine goes away when it has given `left` batches."""

    left = 17

    def batch(
        self, tokens: int, rng: np.random.Generator, languages: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().batch(tokens, rng, languages)


def _pool(kind: type[Pool] = Pool) -> Pool:
    texts = torch.randint(3, 20, (40, len(LANGUAGES), 8), generator=torch.Generator().manual_seed(5))
    return kind({8: texts.to(torch.int16)}, np.zeros((1, 1), dtype=np.bool_))


def _weights(model: Copier) -> torch.Tensor:
    return model.words.weight.detach().clone()


@pytest.fixture(autouse=True)
def _one_thread_and_a_checkpoint_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(Checkpoint, "every", -1.0)


def _cut_off(file: Path) -> None:
    model = Copier()
    with pytest.raises(KeyboardInterrupt):
        fit(model, _pool(CutOffPool), LANGUAGE_IDS, PLAN, Checkpoint(file, PLAN, ORDER, model))


def test_a_training_after_one_that_ended_starts_from_the_weights_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, model = tmp_path / "base.pt", Copier()
    assert fit(model, _pool(), LANGUAGE_IDS, PLAN, Checkpoint(file, PLAN, ORDER, model)) == PLAN.steps
    assert list(tmp_path.iterdir()) == []
    first = _weights(model)
    assert fit(model, _pool(), LANGUAGE_IDS, PLAN, Checkpoint(file, PLAN, ORDER, model)) == PLAN.steps
    assert not torch.equal(_weights(model), first)
    said = capsys.readouterr().out
    assert said.count("step      1 ") == 2
    assert "going on" not in said


def test_a_training_that_was_cut_off_goes_on_and_ends_as_if_it_never_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Copier()
    fit(whole, _pool(), LANGUAGE_IDS, PLAN)
    _cut_off(tmp_path / "base.pt")
    model = Copier()
    checkpoint = Checkpoint(tmp_path / "base.pt", PLAN, ORDER, model)
    assert fit(model, _pool(), LANGUAGE_IDS, PLAN, checkpoint) == PLAN.steps
    assert "going on from step 17" in capsys.readouterr().out
    torch.testing.assert_close(_weights(model), _weights(whole))


@pytest.mark.parametrize("other", ["plan", "order", "start"])
def test_a_checkpoint_of_another_training_is_refused_and_kept(tmp_path: Path, other: str) -> None:
    file, model = tmp_path / "base.pt", Copier()
    _cut_off(file)
    plan = replace(PLAN, rate=6e-4) if other == "plan" else PLAN
    order = replace(ORDER, long=0.4) if other == "order" else ORDER
    if other == "start":
        nn.init.ones_(model.words.weight)
    before = _weights(model)
    with pytest.raises(ForeignCheckpointError, match=rf"another training \({other} differ\): remove it"):
        fit(model, _pool(), LANGUAGE_IDS, plan, Checkpoint(file, plan, order, model))
    assert file.exists()
    assert torch.equal(_weights(model), before)
