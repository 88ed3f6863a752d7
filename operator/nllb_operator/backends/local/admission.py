"""Decides whether a user's object may enter the store: what the API server does with the CRDs.

The schemas are those of `crds/*.yaml`, defaults included; the rules that are CEL there are `resources.py`
here. A contract test holds that both refuse the same objects. Pure; must not know the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jsonschema

from nllb_operator.backends.base import Manifest
from nllb_operator.custom_resources import CustomResource, custom_resources
from nllb_operator.naming import LORA_ADAPTER, NLLB_DEPLOYMENT
from nllb_operator.resources import InvalidResource, LoraAdapter, NllbDeployment

_READERS = {NLLB_DEPLOYMENT: NllbDeployment.from_body, LORA_ADAPTER: LoraAdapter.from_body}
_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {  # what the API server decodes strictly, of the fields that a user may write
    "properties": {
        "labels": _STRINGS,
        "annotations": _STRINGS,
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {key: {"type": "string"} for key in ("apiVersion", "kind", "name", "uid")},
            },
        },
    }
}


class Refused(Exception):
    """The object is not accepted; the message names it, the fields and what to write instead."""


def resource_of(manifest: Mapping[str, Any]) -> CustomResource:
    """The custom resource that the manifest is one of. Refused for anything else."""
    for resource in custom_resources():
        if (manifest.get("apiVersion"), manifest.get("kind")) == (resource.api_version, resource.kind):
            return resource
    known = " and ".join(f"{r.kind} ({r.api_version})" for r in custom_resources())
    raise Refused(
        f"a local fleet takes {known}, not {manifest.get('kind')!r} of {manifest.get('apiVersion')!r}"
    )


def located(manifest: Any, namespace: str) -> Manifest:
    """The manifest with its namespace, if it is an object with a valid name. Refused otherwise."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("metadata"), dict):
        raise Refused("not an object: apiVersion, kind, metadata.name and spec are needed")
    metadata = manifest["metadata"]
    for field, value in (("name", metadata.get("name")), ("namespace", metadata.get("namespace", namespace))):
        if not isinstance(value, str) or len(value) > 253 or not re.fullmatch(_NAME, value):
            raise Refused(
                f"metadata.{field} is {value!r}; use at most 253 lower-case letters, digits, dashes and dots"
            )
    for error in jsonschema.Draft7Validator(_METADATA).iter_errors(metadata):
        raise Refused(f"metadata.{'.'.join(map(str, error.path))}: {error.message}")
    return {**manifest, "metadata": {**metadata, "namespace": metadata.get("namespace", namespace)}}


def admitted(body: Manifest) -> Manifest:
    """The object with defaults, as it is to be stored. Refused if a schema or a rule does not hold."""
    resource = resource_of(body)
    label = f"{resource.kind} {body['metadata']['name']}"
    complete = resource.with_defaults(body)
    try:
        _READERS[resource.kind](complete)
    except InvalidResource as error:
        raise Refused(f"{label}: {error}") from error
    errors = sorted(
        jsonschema.Draft7Validator(resource.schema).iter_errors(complete), key=lambda e: list(e.path)
    )
    if errors:
        places = "; ".join(
            f"{'.'.join(map(str, error.path)) or 'object'}: {error.message}" for error in errors
        )
        raise Refused(f"{label}: {places}")
    return complete
