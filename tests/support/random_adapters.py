"""Random PEFT adapters for a checkpoint, seeded: strong enough that each changes what is translated."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from nllb_engine.config import ModelConfig
from nllb_engine.lora.digest import folder_digest


def write_random_adapter(folder: Path, base: Path, seed: int, rank: int = 4) -> str:
    """Write an adapter on the decoder's attention of the checkpoint `base`; returns its digest."""
    config, draw = ModelConfig.from_folder(base), torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config.decoder.layers):
        for attention in ("self_attn", "encoder_attn"):
            for projection in ("q_proj", "v_proj", "out_proj"):
                prefix = f"base_model.model.model.decoder.layers.{layer}.{attention}.{projection}"
                for half, shape in (("A", (rank, config.d_model)), ("B", (config.d_model, rank))):
                    tensors[f"{prefix}.lora_{half}.weight"] = 0.25 * torch.randn(shape, generator=draw)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "inference_mode": True,
        "target_modules": r"model\.decoder\..*\.(q_proj|v_proj|out_proj)",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder_digest(folder)
