"""Random tiny M2M100 checkpoints, seeded and made on the fly: every shape and layout the engine must read."""

import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from transformers import M2M100Config, M2M100ForConditionalGeneration

Layout = Literal["single", "sharded", "bin", "sharded-bin", "base-model"]
LAYOUTS: tuple[Layout, ...] = ("single", "sharded", "bin", "sharded-bin", "base-model")
FIRST_LANGUAGE_FROM_END = 8
"""The last ids of each vocabulary but the very last stand for languages."""


@dataclass(frozen=True)
class TinyConfig:
    """One shape. `heads` are (encoder, decoder)."""

    seed: int
    encoder_layers: int
    decoder_layers: int
    d_model: int
    heads: tuple[int, int]
    ffn: tuple[int, int]
    vocab: int
    tied: bool
    layout: Layout
    scale_embedding: bool = True
    max_positions: int = 128

    @property
    def languages(self) -> range:
        """Ids that stand for languages."""
        return range(self.vocab - FIRST_LANGUAGE_FROM_END, self.vocab - 1)


def tiny_configs(count: int, seed: int = 0) -> list[TinyConfig]:
    """`count` shapes: 1 to 4 layers per stack, head sizes 16, 64 and 128, odd vocabularies, every layout."""
    draw = random.Random(seed)
    configs = []
    for index in range(count):
        head_dim = (16, 64, 128)[index % 3]
        heads = draw.choice([(2, 2), (1, 2), (2, 1)] if head_dim > 16 else [(2, 4), (4, 4), (4, 2)])
        # Both stacks share d_model; the second entry's head size follows from it.
        configs.append(
            TinyConfig(
                seed=draw.randrange(2**31),
                encoder_layers=draw.randint(1, 4),
                decoder_layers=draw.randint(1, 4),
                d_model=head_dim * heads[1],
                heads=heads,
                ffn=(draw.choice([32, 96]), draw.choice([40, 64])),
                vocab=draw.choice([61, 97, 203, 517]),
                tied=index % 4 != 3,
                layout=LAYOUTS[index % len(LAYOUTS)],
                scale_embedding=index % 5 != 4,
            )
        )
    return configs


def reference(config: TinyConfig) -> M2M100ForConditionalGeneration:
    """transformers' model with seeded weights that are exact in bfloat16, computing in float32.

    The weights are strong, so that outputs depend on the whole source; the end token's row is larger than
    others, so that hypotheses end at different lengths.
    """
    torch.manual_seed(config.seed)
    model = M2M100ForConditionalGeneration(
        M2M100Config(
            vocab_size=config.vocab,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads[0],
            decoder_attention_heads=config.heads[1],
            encoder_ffn_dim=config.ffn[0],
            decoder_ffn_dim=config.ffn[1],
            max_position_embeddings=config.max_positions,
            scale_embedding=config.scale_embedding,
            tie_word_embeddings=config.tied,
        )
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(_drawn(name, weight))
        model.lm_head.weight[2] *= 2.5
        for weight in model.parameters():
            weight.copy_(weight.bfloat16().float())
    return model


def _drawn(name: str, weight: torch.Tensor) -> torch.Tensor:
    noise = torch.randn_like(weight)
    if name == "model.decoder.layer_norm.weight":
        # Of mixed sign: otherwise a tied head prefers the token that was just read, for ever.
        return 6.0 * noise
    if "norm" in name or name.endswith("bias"):
        return float(name.endswith("weight")) + 0.05 * noise
    scale = 2.0 if "encoder_attn" in name else 1.0
    return scale * weight.shape[-1] ** -0.5 * noise


def save(model: M2M100ForConditionalGeneration, config: TinyConfig, folder: Path) -> Path:
    """Write the checkpoint as bfloat16 in the config's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = model.config.to_dict() | {"architectures": ["M2M100ForConditionalGeneration"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(raw))
    state = {name: weight.detach().bfloat16().contiguous() for name, weight in model.named_parameters()}
    if config.layout == "base-model":
        state = {name.removeprefix("model."): weight for name, weight in state.items()}
    if config.layout in ("single", "base-model"):
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    elif config.layout == "bin":
        # Old files repeat the tied names.
        tied = {name: state["model.shared.weight"] for name in ("lm_head.weight",) if name not in state}
        torch.save(state | tied, folder / "pytorch_model.bin")
    else:
        _save_shards(state, folder, pickled=config.layout == "sharded-bin")
    return folder


def _save_shards(state: dict[str, torch.Tensor], folder: Path, pickled: bool) -> None:
    stem, suffix = ("pytorch_model", "bin") if pickled else ("model", "safetensors")
    names = sorted(state)
    shards = [names[start::3] for start in range(3)]
    weight_map = {}
    for number, members in zip(itertools.count(1), shards, strict=False):
        file = f"{stem}-{number:05}-of-00003.{suffix}"
        part = {name: state[name] for name in members}
        if pickled:
            torch.save(part, folder / file)
        else:
            save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(members, file)
    index = f"{stem}.{suffix}.index.json"
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def random_sources(config: TinyConfig, count: int, seed: int, longest: int = 14) -> list[list[int]]:
    """Source pieces: no control ids, no languages."""
    draw = random.Random(seed)
    return [
        [draw.randrange(3, config.vocab - FIRST_LANGUAGE_FROM_END) for _ in range(draw.randint(1, longest))]
        for _ in range(count)
    ]
