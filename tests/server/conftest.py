"""The tiny model that server tests serve."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def tiny_nllb() -> Path:
    return EXAMPLES / "tiny-nllb"


@pytest.fixture(scope="session")
def formal_v1() -> Path:
    return EXAMPLES / "adapters" / "formal-v1"
