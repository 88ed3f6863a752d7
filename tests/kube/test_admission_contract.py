"""The same YAML, the same answer: API server and local fleet refuse the same objects and fill in the same."""

import json
import subprocess
from typing import Any

import pytest
import yaml
from bad_objects import BAD_OBJECTS, GOOD_OBJECTS, Body
from kube_cluster import Kube

from nllb_operator.backends.local.admission import admitted, located


def numbered(objects: dict[str, Body]) -> dict[str, Body]:
    """The objects by names of their own, so that one call can send them all; bad names stay."""
    named = {}
    for number, body in enumerate(objects.values()):
        known = body["metadata"]["name"] in ("fleet", "formal")
        name = f"case-{number}" if known else body["metadata"]["name"]
        named[name] = {**body, "metadata": {**body["metadata"], "name": name}}
    return named


def test_the_api_server_refuses_every_bad_object_that_a_local_fleet_refuses(kube: Kube) -> None:
    documents = yaml.safe_dump_all(numbered(BAD_OBJECTS).values())
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=documents)
    assert refusal.value.stdout == ""  # nothing was accepted
    assert all(name in refusal.value.stderr for name in numbered(BAD_OBJECTS))


def test_the_api_server_accepts_every_good_object_and_fills_in_the_same_defaults(kube: Kube) -> None:
    good = numbered(GOOD_OBJECTS)
    documents = yaml.safe_dump_all(good.values())
    answer = kube.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=documents)
    stored: dict[str, Any] = {item["metadata"]["name"]: item["spec"] for item in json.loads(answer)["items"]}
    assert stored == {name: admitted(located(body, "default"))["spec"] for name, body in good.items()}
