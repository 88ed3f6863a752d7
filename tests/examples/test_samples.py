"""The samples for users: the schemas of the CRDs and the operator accept each object as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nllb_engine.lora.digest import folder_digest
from nllb_operator.backends.local.admission import admitted, located

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.yaml"))
DEPLOYMENT, ADAPTER = "NllbDeployment", "LoraAdapter"


def objects(file: Path) -> list[dict[str, Any]]:
    """What the file holds, checked and with defaults, as a store would keep it."""
    return [admitted(located(body, "default")) for body in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [body for file in FILES for body in objects(file) if body["kind"] == kind]


def unknown(body: Any, schema: dict[str, Any], path: str) -> list[str]:
    """The fields of `body` that the schema does not name."""
    if isinstance(body, list):
        return [name for item in body for name in unknown(item, schema["items"], f"{path}[]")]
    if not isinstance(body, dict) or "additionalProperties" in schema:
        return []
    known = schema.get("properties", {})
    inside = [
        name for key in body if key in known for name in unknown(body[key], known[key], f"{path}.{key}")
    ]
    return [f"{path}.{key}" for key in body if key not in known] + inside


def spec_schema(kind: str) -> dict[str, Any]:
    file = EXAMPLES.parent / "crds" / f"{kind.lower()}s.yaml"
    version = yaml.safe_load(file.read_text())["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def test_there_is_a_sample_for_each_kind_of_user() -> None:
    wanted = {"minimal", "gpu-production", "cpu-laptop", "several-adapters", "private-source"}
    assert wanted <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_sample_is_accepted_and_has_only_fields_that_exist(file: Path) -> None:
    assert file.read_text().startswith("# "), "a sample begins with what it is for"
    assert objects(file)
    for body in yaml.safe_load_all(file.read_text()):
        assert not unknown(body["spec"], spec_schema(body["kind"]), "spec")


def test_a_field_that_the_schema_lacks_is_found() -> None:
    body = {"model": {"url": "x"}, "volumes": [{"name": "a", "claim": "b"}], "podLabels": {"any": "x"}}
    assert unknown(body, spec_schema(DEPLOYMENT), "spec") == ["spec.model.url", "spec.volumes[].claim"]


def test_every_adapter_names_a_fleet_and_a_volume_of_the_samples() -> None:
    fleets = {body["metadata"]["name"]: body["spec"] for body in of_kind(DEPLOYMENT)}
    for body in of_kind(ADAPTER):
        volumes = fleets[body["spec"]["deploymentRef"]["name"]]["volumes"]
        named = body["spec"]["source"]["uri"].removeprefix("pvc://").split("/")[0]
        assert named in {volume["name"] for volume in volumes}


def test_no_two_fleets_of_the_samples_share_a_name() -> None:
    names = [body["metadata"]["name"] for body in of_kind(DEPLOYMENT)]
    assert len(names) == len(set(names))


def test_a_pinned_digest_is_that_of_the_folder_where_the_folder_is_here() -> None:
    pinned = [body["spec"]["source"] for body in of_kind(ADAPTER) if "sha256" in body["spec"]["source"]]
    here = [s for s in pinned if (EXAMPLES / s["uri"].removeprefix("pvc://models/")).is_dir()]
    assert here
    for source in here:
        folder = EXAMPLES / source["uri"].removeprefix("pvc://models/")
        assert folder_digest(folder) == source["sha256"]
