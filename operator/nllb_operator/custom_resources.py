"""The two CustomResourceDefinitions as shipped: where they lie, their names, columns and schemas.

Knows the format of a CustomResourceDefinition. Must not know what the fields mean: that is `resources`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nllb_operator.naming import VERSION


@dataclass(frozen=True)
class Column:
    """A printer column. `wide`: only shown by `-o wide`."""

    name: str
    type: str
    path: str
    wide: bool


@dataclass(frozen=True)
class CustomResource:
    """One kind: what it is called, how it is shown and what it may hold."""

    kind: str
    api_version: str
    names: frozenset[str]  # every word by which a user may ask for it, lower case
    categories: frozenset[str]
    columns: tuple[Column, ...]
    schema: Mapping[str, Any]  # openAPIV3Schema

    def with_defaults(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of `body` with the schema's defaults filled in, as the API server does it."""
        result: dict[str, Any] = copy.deepcopy(dict(body))
        _fill(result, self.schema)
        return result


@functools.cache
def custom_resources() -> tuple[CustomResource, ...]:
    """Both kinds, read from the YAML files of the package (or of the repository, if run from it)."""
    return tuple(
        _resource(yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in sorted(definitions_folder().glob("*.yaml"))
    )


def definitions_folder() -> Path:
    """Where the definitions lie: inside an installed package, else in the repository's `crds`."""
    package = Path(__file__).resolve().parent
    installed = package / "crds"
    return installed if installed.is_dir() else package.parents[1] / "crds"


def _resource(definition: Mapping[str, Any]) -> CustomResource:
    spec = definition["spec"]
    names = spec["names"]
    (version,) = (version for version in spec["versions"] if version["name"] == VERSION)
    words = {names["kind"], names["plural"], names["singular"], *names.get("shortNames", ())}
    return CustomResource(
        kind=names["kind"],
        api_version=f"{spec['group']}/{version['name']}",
        names=frozenset(word.lower() for word in words),
        categories=frozenset(names.get("categories", ())),
        columns=tuple(
            Column(column["name"], column["type"], column["jsonPath"], column.get("priority", 0) > 0)
            for column in version.get("additionalPrinterColumns", ())
        ),
        schema=version["schema"]["openAPIV3Schema"],
    )


def _fill(value: Any, schema: Mapping[str, Any]) -> None:
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name not in value and "default" in part:
                value[name] = copy.deepcopy(part["default"])
            if name in value:
                _fill(value[name], part)
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for name in value.keys() - schema.get("properties", {}).keys():
                _fill(value[name], extra)
    elif isinstance(value, list):
        for item in value:
            _fill(item, schema.get("items", {}))
