"""Objects as text: what `local get` prints."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from nllb_operator.cli.tables import age, kinds, pod_status, rendered, table, value_at

LORA = next(kind for kind in kinds() if kind.kind == "LoraAdapter")
POD = next(kind for kind in kinds() if kind.kind == "Pod")


def lora(name: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "False", "reason": "Fetching", "message": "one pod\nfetches"}
    return {
        "apiVersion": "fleet.nllb.io/v1alpha1",
        "kind": "LoraAdapter",
        "metadata": {"name": name, "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
        "spec": {"deploymentRef": {"name": "tiny"}, "source": {"uri": "pvc://models/a"}},
        "status": {"conditions": [condition], "desiredReplicas": 3},
    }


def test_a_custom_resource_has_the_columns_of_its_crd() -> None:
    head, row = rendered(LORA, [lora("formal")], "table").splitlines()
    assert head.split() == [
        "NAME",
        "DEPLOYMENT",
        "VERSION",
        "DESIRED",
        "READY",
        "ORIGIN",
        "PEERS",
        "STATUS",
        "AGE",
    ]
    assert row.split()[:2] == ["formal", "tiny"]
    assert "Fetching" in row and "3" in row
    wide_head, wide_row = rendered(LORA, [lora("formal")], "wide").splitlines()
    assert "MESSAGE" in wide_head
    assert "one pod fetches" in wide_row


def test_a_missing_value_is_an_empty_cell_and_columns_stay_aligned() -> None:
    head, row = rendered(LORA, [lora("x")], "table").splitlines()
    assert row[head.index("VERSION") : head.index("DESIRED")].strip() == ""
    assert row[head.index("STATUS") :].startswith("Fetching")


def test_yaml_and_json_are_the_object_and_several_are_a_list() -> None:
    assert yaml.safe_load(rendered(LORA, [lora("a")], "yaml"))["metadata"]["name"] == "a"
    several = json.loads(rendered(LORA, [lora("a"), lora("b")], "json"))
    assert [item["metadata"]["name"] for item in several["items"]] == ["a", "b"]
    assert rendered(LORA, [lora("a")], "name") == "loraadapter.fleet.nllb.io/a"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (190, "3m10s"), (1200, "20m"), (9000, "2h"), (200_000, "2d")],
)
def test_an_age_is_written_as_kubectl_writes_it(seconds: int, text: str) -> None:
    then = datetime.now(UTC) - timedelta(seconds=seconds)
    assert age(then.isoformat()) in (text, text.replace("10s", "11s").replace("0s", "1s"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".spec.source.uri", "pvc://models/a"),
        ('.status.conditions[?(@.type=="Ready")].reason', "Fetching"),
        ('.status.conditions[?(@.type=="Absent")].reason', None),
        (".status.nothing.at.all", None),
        (".spec.source.uri.deeper", None),
    ],
)
def test_a_json_path_of_a_column_finds_its_value(path: str, value: str | None) -> None:
    assert value_at(lora("a"), path) == value


def test_a_pods_status_says_why_it_does_not_run() -> None:
    pod: dict[str, Any] = {"metadata": {}, "status": {"phase": "Running"}}
    assert pod_status(pod) == "Running"
    pod["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    assert pod_status(pod) == "CrashLoopBackOff"
    pod["metadata"]["deletionTimestamp"] = "now"
    assert pod_status(pod) == "Terminating"


def test_an_empty_table_is_empty() -> None:
    assert table([]) == ""
    assert rendered(POD, [], "table") == ""
