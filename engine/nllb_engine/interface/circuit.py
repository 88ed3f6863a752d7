"""Which forward decode runs. Knows nothing of how either is built."""

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface.values import ForwardDisclosure, ForwardSelect, Legacy


class ModelCircuit:
    """Selection and disclosure of the decode forward."""

    def set_forward(self, sel: ForwardSelect) -> None:
        """Make decode run `sel` from the next step on; captured decode graphs are dropped.

        Seed's default: only Legacy is accepted.
        """
        if not isinstance(sel, Legacy):
            raise UnsupportedByModel("set_forward(Circuit)", "select Legacy")

    def forward_disclosure(self) -> ForwardDisclosure:
        """The forward that decode runs now. Seed's default: legacy."""
        return ForwardDisclosure()
