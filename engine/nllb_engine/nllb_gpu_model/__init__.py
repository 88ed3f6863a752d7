"""NllbGpuModel: the model interface implemented for NLLB. One module per group of capabilities."""

from nllb_engine.nllb_gpu_model.nllb import NllbGpuModel

__all__ = ["NllbGpuModel"]
