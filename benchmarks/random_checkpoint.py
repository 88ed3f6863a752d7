"""Full-size checkpoints without files: random weights in the shapes of a config, for measuring speed."""

from collections.abc import Iterable

import torch

from nllb_engine.config import ModelConfig, StackConfig


def nllb_config(layers: int = 12, d_model: int = 1024, ffn: int = 4096, vocab: int = 256206) -> ModelConfig:
    """NLLB-200 sizes; the defaults are distilled-600M's (1.3B: 24, 1024, 8192; 3.3B: 24, 2048, 8192)."""
    stack = StackConfig(layers, 16, ffn)
    return ModelConfig(
        model_type="m2m_100", d_model=d_model, vocab_size=vocab, encoder=stack, decoder=stack,
        max_position_embeddings=1024, scale_embedding=True, tie_word_embeddings=True,
        activation_function="relu", bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2,
    )  # fmt: skip


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a tied checkpoint of `config`."""
    d = config.d_model
    shapes: dict[str, tuple[int, ...]] = {"model.shared.weight": (config.vocab_size, d)}
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        modules: dict[str, tuple[int, ...]] = {"layer_norm": (d,)}
        for layer in range(stack.layers):
            at = f"layers.{layer}"
            for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                modules |= {f"{at}.{attention}.{one}_proj": (d, d) for one in ("q", "k", "v", "out")}
                modules[f"{at}.{attention}_layer_norm"] = (d,)
            modules |= {f"{at}.fc1": (stack.ffn_dim, d), f"{at}.fc2": (d, stack.ffn_dim)}
            modules[f"{at}.final_layer_norm"] = (d,)
        for name, shape in modules.items():
            shapes[f"model.{side}.{name}.weight"] = shape
            shapes[f"model.{side}.{name}.bias"] = shape[:1]
    return shapes


class RandomStore:
    """A WeightStore of seeded bfloat16 noise, made on `device` so that a GPU fills itself."""

    def __init__(self, config: ModelConfig, device: str) -> None:
        """Nothing is made before it is asked for."""
        self._shapes = weight_shapes(config)
        self._device = device

    def names(self) -> Iterable[str]:
        """All names."""
        return self._shapes

    def dtype(self, name: str) -> torch.dtype:
        """bfloat16."""
        return torch.bfloat16

    def shape(self, name: str) -> tuple[int, ...]:
        """From the config."""
        return self._shapes[name]

    def tensor(self, name: str) -> torch.Tensor:
        """Noise that keeps activations of order one."""
        shape = self._shapes[name]
        noise = torch.empty(shape, device=self._device, dtype=torch.bfloat16).normal_(std=shape[-1] ** -0.5)
        return noise + 1 if name.endswith("norm.weight") else noise
