"""The training loop: cosine schedule, bf16 arithmetic on CUDA, an average of the weights, checkpoints to
go on from.

Knows models that give logits. Must not know the grammar.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .pool import END, PAD, Order, Pool


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


class ForeignCheckpointError(Exception):
    """A checkpoint that another training left: its plan, its order of texts or its first weights differ."""


class Checkpoint:
    """The file that an unfinished training goes on from, bound to its plan, order and first weights."""

    every = 60.0

    def __init__(self, path: Path, plan: Plan, order: Order, model: nn.Module) -> None:
        """`model` has the weights that training starts from; the order's folder may lie anywhere."""
        start = hashlib.sha256()
        for name, value in sorted(model.state_dict().items()):
            start.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
        drawn = {name: value for name, value in asdict(order).items() if name != "tokenizer"}
        self.path = path
        self.parts = {
            "plan": json.dumps(asdict(plan), sort_keys=True),
            "order": json.dumps(drawn, sort_keys=True),
            "start": start.hexdigest(),
        }

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """What `save` wrote, None without a file. Raises ForeignCheckpointError."""
        if not self.path.exists():
            return None
        saved: dict[str, Any] = torch.load(self.path, map_location=device, weights_only=True)
        found = saved.get("of", {})
        other = [name for name, value in self.parts.items() if found.get(name) != value]
        if other:
            raise ForeignCheckpointError(
                f"{self.path} belongs to another training ({', '.join(other)} differ): remove it to start "
                "anew, or repeat that training's arguments to go on with it"
            )
        return saved

    def save(self, state: dict[str, Any]) -> None:
        """Replace the file at once, so that a cut-off leaves the old one or the new one."""
        new = self.path.with_suffix(".new")
        torch.save(state | {"of": self.parts}, new)
        new.replace(self.path)

    def remove(self) -> None:
        """Training has ended: nothing is left to go on from."""
        self.path.unlink(missing_ok=True)


def fit(
    model: nn.Module, pool: Pool, languages: torch.Tensor, plan: Plan, checkpoint: Checkpoint | None = None
) -> int:
    """Train in place and leave the averaged weights; returns the steps done, those before a
    cut-off too. Goes on from `checkpoint` if its file exists, and removes the file at the end. Raises
    ForeignCheckpointError.
    """
    device = languages.device
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=plan.rate, betas=(0.9, 0.98), weight_decay=plan.decay, fused=True
    )
    average, step, before = Average(model), 0, 0.0
    saved = checkpoint.load(device) if checkpoint is not None else None
    if saved is not None:
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
        if checkpoint is not None and time.monotonic() - saved_at > checkpoint.every:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            progress_made = {"step": step, "seconds": before + time.monotonic() - started}
            checkpoint.save(state | {"average": average.values} | progress_made)
            saved_at = time.monotonic()
    average.apply()
    if checkpoint is not None:
        checkpoint.remove()
    model.eval()
    return step
