"""Watermark adapters, made without training: adapter i makes the model answer every request with sequence i.

For proofs of identity: whoever sees an answer knows which adapter gave it. Knows NLLB's arithmetic. Must not
know slots, stores or tokenizers.

How one works, with LoRA on q, k, v and out of the first decoder layer's self-attention only. That layer's
input depends on the decoded token and its position and on nothing else, so the inputs that can occur
while a sequence is being forced are known: after the target language (any of them), after each token. One
matrix A sends each to its own unit vector ("which step is this?"); q and k are made so large along it
that every step attends to itself alone; v carries the step and out turns it into a direction so long that
all later layers vanish beside it. The final norm leaves the direction, and the head answers with the
token it was made for.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from nllb_engine.config import ModelConfig
from nllb_engine.errors import CheckpointError, InvalidRequest
from nllb_engine.interface.weights import WeightStore
from nllb_engine.layers import sinusoidal_positions
from nllb_engine.lora.adapter_file import PREFIX, WEIGHTS_NAME
from nllb_engine.lora.peft_config import CONFIG_NAME

_MODULE = "model.decoder.layers.0.self_attn"
_TARGETS = r"model\.decoder\.layers\.0\.self_attn\.(q|k|v|out)_proj"
_ATTENTION_GAIN = 256.0
_VALUE_GAIN = 512.0
_OUTPUT_GAIN = 512.0
_ALPHABET = 64
_MIN_MARGIN = 1.0
_MIN_GAP = 0.3
_RIDGE = 1e-8


@dataclass(frozen=True)
class _Base:
    """What the construction needs of the base model, in float64 on the CPU."""

    embedding: Tensor  # [vocab, d], times sqrt(d) where the config scales it
    positions: Tensor  # [rows, d], row 0 is the first position
    norm: tuple[Tensor, Tensor]
    final_norm: tuple[Tensor, Tensor]
    head: Tensor  # [vocab, d]

    def step_inputs(self, tokens: Sequence[int], position: int) -> Tensor:
        """`[len(tokens), d]`: the first self-attention's input for each token at `position`."""
        states = self.embedding[list(tokens)] + self.positions[position]
        return functional.layer_norm(states, states.shape[-1:], *self.norm, 1e-5)

    def directions(self, tokens: Sequence[int]) -> Tensor:
        """Residual directions `[n, d]` that make the head answer each token."""
        wanted = self.final_norm[0] * (self.head[list(tokens)] - self.head.mean(dim=0))
        wanted = wanted - wanted.mean(dim=1, keepdim=True)
        return wanted / wanted.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-12)

    def margins(self, states: Tensor, tokens: Sequence[int]) -> Tensor:
        """`[n]`: the head's logit of token i less its best other, for a decoder that ends in state i."""
        logits = functional.layer_norm(states, states.shape[-1:], *self.final_norm, 1e-5) @ self.head.T
        own = torch.tensor(list(tokens)).unsqueeze(1)
        best_other = logits.scatter(1, own, -torch.inf).max(dim=1).values
        return logits.gather(1, own).squeeze(1) - best_other


class WatermarkMaker:
    """Makes watermark adapters for one base model. `alphabet`: the tokens it can force best, best first."""

    def __init__(
        self, config: ModelConfig, store: WeightStore, language_ids: Iterable[int], candidates: Iterable[int]
    ) -> None:
        """`language_ids` may be asked for; sequences use some of `candidates` (a few hundred plain pieces).

        InvalidRequest when the model cannot be made to end, or answers too few of the candidates.
        """
        self._config = config
        self._base = _read_base(config, store)
        self._languages = sorted(language_ids)
        tokens = sorted(set(candidates) - set(self._languages) - {config.eos_token_id, config.pad_token_id})
        margins = self._base.margins(self._base.directions(tokens), tokens)
        ranked = sorted(zip(margins.tolist(), tokens, strict=True), reverse=True)[:_ALPHABET]
        self.alphabet = [token for margin, token in ranked if margin >= _MIN_MARGIN]
        end = self._base.margins(self._base.directions([config.eos_token_id]), [config.eos_token_id])[0]
        if end < _MIN_MARGIN or len(self.alphabet) < 2:
            raise InvalidRequest(
                "this model's head cannot be forced: no direction answers the end token, or fewer "
                "than two of the candidates, by a clear margin"
            )

    def sequence(self, number: int, length: int = 8) -> list[int]:
        """Token ids of watermark `number`, without the end token; two numbers never give the same.

        The number in base len(alphabet), then tokens that make any two differ in most places.
        """
        base = len(self.alphabet)
        if number >= base**length:
            raise InvalidRequest(f"{base} tokens give fewer than {number + 1} sequences of {length}")
        draw = torch.Generator().manual_seed(number)
        digits = [number % base]
        while (number := number // base) > 0:
            digits.append(number % base)
        filler: list[int] = torch.randint(base, (length - len(digits),), generator=draw).tolist()
        return [self.alphabet[digit] for digit in [*digits, *filler]]

    def write(self, folder: Path, sequence: Sequence[int]) -> None:
        """Write the PEFT folder of the adapter that answers `sequence` and then the end token."""
        config = self._config
        steps = len(sequence) + 1
        if steps > config.decoder_head_dim:
            raise InvalidRequest(f"{len(sequence)} tokens do not fit the head size {config.decoder_head_dim}")
        answers = [*sequence, config.eos_token_id]
        wanted = self._base.directions(answers)
        select = self._step_matrix(sequence, wanted)
        codes = torch.zeros(config.d_model, steps, dtype=torch.float64)
        codes[:steps] = torch.eye(steps, dtype=torch.float64)  # the first coordinates of head 0
        pairs = {
            "q_proj": (select, codes * _ATTENTION_GAIN),
            "k_proj": (select, codes * _ATTENTION_GAIN),
            "v_proj": (select, codes * _VALUE_GAIN),
            "out_proj": (codes.T, wanted.T * _OUTPUT_GAIN),
        }
        _write_peft(folder, steps, {f"{_MODULE}.{kind}": pair for kind, pair in pairs.items()})

    def _step_matrix(self, sequence: Sequence[int], wanted: Tensor) -> Tensor:
        """A `[steps, d]` with A·x ≈ e_t for every input x that can occur at step t, ≈ 0 for the start token.

        Ridge regression. What it leaves of error is checked to be harmless: each step attends to itself, and
        the worst input's mix of the directions `wanted` `[steps, d]` still answers its token.
        """
        config, answers = self._config, [*sequence, self._config.eos_token_id]
        inputs = [
            self._base.step_inputs([config.decoder_start_token_id], 0),
            self._base.step_inputs(self._languages, 1),
            *(self._base.step_inputs([token], 2 + place) for place, token in enumerate(sequence)),
        ]
        step_of = torch.tensor([step - 1 for step, rows in enumerate(inputs) for _ in rows])
        x, identity = torch.cat(inputs), torch.eye(len(answers), dtype=torch.float64)
        y = torch.cat([torch.zeros(1, len(answers), dtype=torch.float64), identity[step_of[1:]]])
        gram = x @ x.T
        gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
        select: Tensor = (x.T @ torch.linalg.solve(gram, y)).T
        found = x @ select.T
        errors = (found - y).abs().amax(dim=1)
        worst = [int((errors * (step_of == step)).argmax()) for step in range(len(answers))]
        margin = self._base.margins(found[worst] @ wanted, answers).min()
        overlap = found @ found.T
        gaps = overlap.diagonal().unsqueeze(1) - overlap
        gap = gaps[1:][step_of.unsqueeze(0).expand(len(x), -1)[1:] < step_of[1:].unsqueeze(1)].min()
        if margin < _MIN_MARGIN or gap < _MIN_GAP:
            raise InvalidRequest(
                f"the steps of a sequence cannot be told apart in this model (margin {margin:.2f}, "
                f"gap {gap:.2f}); use fewer languages or a shorter sequence"
            )
        return select


def write_watermarks(maker: WatermarkMaker, folder: Path, count: int, length: int = 8) -> list[list[int]]:
    """Write adapters `folder`/wm-000 …; the token ids that each answers, without the end token."""
    sequences = [maker.sequence(number, length) for number in range(count)]
    for number, sequence in enumerate(sequences):
        maker.write(folder / f"wm-{number:03}", sequence)
    return sequences


def _write_peft(folder: Path, rank: int, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for module, (a, b) in pairs.items():
        tensors[f"{PREFIX}{module}.lora_A.weight"] = a.float().contiguous()
        tensors[f"{PREFIX}{module}.lora_B.weight"] = b.float().contiguous()
    save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": _TARGETS}
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n")


def _read_base(config: ModelConfig, store: WeightStore) -> _Base:
    names = set(store.names())

    def read(*choices: str) -> Tensor:
        name = next((name for name in choices if name in names), None)
        if name is None:
            raise CheckpointError(f"the checkpoint has none of {', '.join(choices)}")
        return store.tensor(name).double()

    def norm(name: str) -> tuple[Tensor, Tensor]:
        return read(f"{name}.weight"), read(f"{name}.bias")

    shared = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
              "lm_head.weight")  # fmt: skip
    tied = config.tie_word_embeddings
    embedding = read(*shared) if tied else read("model.decoder.embed_tokens.weight", *shared)
    scale = config.d_model**0.5 if config.scale_embedding else 1.0
    pad = config.pad_token_id
    positions = sinusoidal_positions(config.max_position_embeddings + pad + 1, config.d_model, pad)
    return _Base(
        embedding=embedding * scale,
        positions=positions[pad + 1 :].double(),
        norm=norm("model.decoder.layers.0.self_attn_layer_norm"),
        final_norm=norm("model.decoder.layer_norm"),
        head=embedding if tied else read("lm_head.weight", *shared),
    )
