"""The command-line program `nllb-fleet`."""

from nllb_operator.cli.program import main

__all__ = ["main"]
