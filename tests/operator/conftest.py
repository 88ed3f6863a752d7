"""Makes what the pure functions of the operator take, with only what a test cares about spelled out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from operator_objects import Objects


@pytest.fixture
def make() -> Objects:
    """Makes resources, pods and inventories."""
    return Objects(itertools.count(1))


@pytest.fixture
def body(make: Objects) -> dict[str, Any]:
    """A small valid NllbDeployment."""
    return make.deployment_body()
