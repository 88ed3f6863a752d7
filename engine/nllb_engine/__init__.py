"""Inference engine for NLLB-200. Docstring only: a re-export would drag torch into every import."""
