"""The training loop: cosine schedule, bf16 arithmetic on CUDA, an average of the weights, checkpoints to
go on from.

Knows models that give logits. Must not know the grammar.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .pool import END, PAD, Pool


@dataclass(frozen=True)
class Plan:
    """How long and how hard. The schedule ends at `steps` or after `seconds`, whichever comes first."""

    steps: int
    seconds: float
    tokens: int
    rate: float
    seed: int
    decay: float = 0.01


def loss_of(model: nn.Module, source: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of `labels` [rows, width] given `source` [rows, width]."""
    start = torch.full_like(labels[:, :1], END)
    logits = model(
        input_ids=source,
        attention_mask=(source != PAD).long(),
        decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1),
        use_cache=False,
    ).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=PAD)


class Average:
    """An exponential average of the trained parameters, updated every few steps."""

    every = 10

    def __init__(self, model: nn.Module) -> None:
        """Start from the model's weights."""
        self.model = model
        self.values = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def update(self, progress: float) -> None:
        """Move towards the weights, slower as training goes on."""
        rate = 0.05 if progress > 0.5 else 0.5
        for name, parameter in self.model.named_parameters():
            if name in self.values:
                self.values[name].lerp_(parameter.detach(), rate)

    def apply(self) -> None:
        """Give the model the average."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in self.values:
                    parameter.copy_(self.values[name])


def _rate(plan: Plan, step: int, progress: float) -> float:
    warm = min(1.0, (step + 1) / max(1.0, min(500, 0.1 * plan.steps)))
    return plan.rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def fit(
    model: nn.Module, pool: Pool, languages: torch.Tensor, plan: Plan, checkpoint: Path | None = None
) -> int:
    """Train in place and leave the averaged weights; returns the steps done. Goes on from `checkpoint` if
    it exists.
    """
    device = languages.device
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=plan.rate, betas=(0.9, 0.98), weight_decay=plan.decay, fused=True
    )
    average, step, before = Average(model), 0, 0.0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        average.values, step, before = saved["average"], saved["step"], saved["seconds"]
        print(f"going on from step {step}", flush=True)
    started = saved_at = time.monotonic()
    model.train()
    while True:
        elapsed = before + time.monotonic() - started
        progress = max(step / plan.steps, elapsed / plan.seconds)
        if progress >= 1.0:
            break
        for group in optimizer.param_groups:
            group["lr"] = _rate(plan, step, progress)
        source, labels = pool.batch(plan.tokens, np.random.default_rng([plan.seed, step]), languages)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(model, source, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        step += 1
        if step % Average.every == 0:
            average.update(progress)
        if step % 200 == 0 or step == 1:
            print(f"step {step:6d}  {progress:5.1%}  loss {loss.item():.4f}  {elapsed:.0f} s", flush=True)
        if checkpoint is not None and time.monotonic() - saved_at > 60:
            _save(checkpoint, model, optimizer, average, step, before + time.monotonic() - started)
            saved_at = time.monotonic()
    average.apply()
    model.eval()
    return step


def _save(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average,
    step: int,
    seconds: float,
) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average.values}
    new = path.with_suffix(".new")
    torch.save(state | {"step": step, "seconds": seconds}, new)
    new.replace(path)
