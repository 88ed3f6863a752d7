"""What the operator does with objects alone; no pod runs in these tests."""

import json
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from kube_cluster import Kube, OperatorProcess, until
from kube_fleet import KubeFleet

from nllb_server.wire import WantedSet

pytestmark = pytest.mark.usefixtures("operator")

NOWHERE = {"nodeSelector": {"pool": "nowhere"}}
"""Pods exist, but no node takes them."""


def test_an_adapter_of_a_fleet_that_is_not_there_says_so_and_heals_when_it_comes(fleet: KubeFleet) -> None:
    fleet.apply(fleet.adapter("polite"))
    condition = fleet.until_reason("lora/polite", "DeploymentNotFound")
    assert "no NllbDeployment 'fleet'" in condition["message"]

    fleet.apply(fleet.deployment(replicas=0))

    fleet.until_reason("lora/polite", "NoPods")


def test_an_adapter_that_moves_to_another_fleet_is_seen_by_both(fleet: KubeFleet) -> None:
    other = fleet.deployment(replicas=0)
    other["metadata"]["name"] = "other"
    fleet.apply(fleet.deployment(replicas=0), other, fleet.adapter("polite"))
    until(lambda: fleet.get("nllb/fleet")["status"]["adapters"] == 1)

    fleet.apply(fleet.adapter("polite", deploymentRef={"name": "other"}))

    until(lambda: fleet.get("nllb/other")["status"]["adapters"] == 1)
    until(lambda: fleet.get("nllb/fleet")["status"]["adapters"] == 0)


def test_the_older_of_two_claims_has_the_name_until_it_goes(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=0), fleet.adapter("first", servedName="polite"))
    fleet.until_reason("lora/first", "NoPods")
    time.sleep(1)  # creation times have whole seconds
    fleet.apply(fleet.adapter("second", servedName="polite"))
    assert "LoraAdapter first" in fleet.until_reason("lora/second", "NameConflict")["message"]

    fleet.kubectl("delete", "lora", "first")

    fleet.until_reason("lora/second", "NoPods")


def test_an_unknown_volume_is_told_with_those_that_exist(fleet: KubeFleet) -> None:
    source = {"uri": "pvc://attic/polite"}
    fleet.apply(fleet.deployment(replicas=0), fleet.adapter("polite", source=source))

    assert "it has models" in fleet.until_reason("lora/polite", "VolumeNotFound")["message"]

    fleet.apply(fleet.adapter("polite"))
    fleet.until_reason("lora/polite", "NoPods")


def test_files_of_the_image_are_not_allowed_unless_the_platform_says_so(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=1, model={"uri": "file:///models/tiny"}))

    condition = fleet.until_reason("nllb/fleet", "SourceNotAllowed")

    assert "NLLB_OPERATOR_ALLOW_FILE_URIS" in condition["message"]
    assert fleet.get("rs")["items"] == []


def test_every_child_is_made_and_belongs_to_the_fleet(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=2, **NOWHERE))
    fleet.until_reason("nllb/fleet", "Unschedulable")

    kinds = "rs,svc,cm,sa,pdb"
    items = [item for item in fleet.get(kinds)["items"] if item["metadata"].get("ownerReferences")]

    names = sorted(f"{item['kind']}/{item['metadata']['name']}" for item in items)
    assert [name.rsplit("-", 1)[0] if name.startswith("Rep") else name for name in names] == [
        "ConfigMap/fleet-wanted",
        "PodDisruptionBudget/fleet",
        "ReplicaSet/fleet",
        "Service/fleet",
        "Service/fleet-peers",
        "ServiceAccount/fleet-pods",
    ]
    pod = fleet.pods()[0]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert not any("finalizers" in item["metadata"] for item in items)


def test_pods_satisfy_the_restricted_standard(kube: Kube, fleet: KubeFleet) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    kube.kubectl("label", "namespace", fleet.namespace, label)

    fleet.apply(fleet.deployment(replicas=1, **NOWHERE))

    until(lambda: len(fleet.pods()) == 1)


def test_too_few_gpus_are_called_by_that_name(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=1, gpu={"resourceName": "example.org/gpu", "count": 1}))

    # Without any node the scheduler does not speak of GPUs; with nodes it does.
    condition = until(lambda: fleet.condition("nllb/fleet", "Degraded"))
    until(lambda: fleet.condition("nllb/fleet", "Degraded")["status"] == "True")
    assert fleet.condition("nllb/fleet", "Degraded")["reason"] in ("InsufficientGPU", "Unschedulable"), (
        condition
    )


def test_what_somebody_breaks_is_mended(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=2, **NOWHERE))
    fleet.until_reason("nllb/fleet", "Unschedulable")
    before = fleet.get("svc/fleet")["metadata"]["uid"]

    fleet.kubectl("delete", "service", "fleet")
    fleet.kubectl("patch", "cm", "fleet-wanted", "--type=merge", "-p", '{"data":{"wanted.json":"{}"}}')
    fleet.kubectl(
        "patch", "svc", "fleet-peers", "--type=merge", "-p", '{"spec":{"selector":{"app":"other"}}}'
    )
    fleet.kubectl("delete", "pdb", "fleet")

    until(lambda: fleet.get("svc/fleet")["metadata"]["uid"] != before)
    until(lambda: WantedSet.model_validate_json(fleet.get("cm/fleet-wanted")["data"]["wanted.json"]))
    until(lambda: "app" not in fleet.get("svc/fleet-peers")["spec"]["selector"] or None)
    until(lambda: fleet.get("pdb/fleet"))


def test_a_budget_goes_when_one_pod_is_left(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=2, **NOWHERE))
    until(lambda: fleet.get("pdb/fleet"))

    fleet.kubectl("scale", "nllb/fleet", "--replicas=1")

    until(lambda: not fleet.get("pdb")["items"])


def test_the_scale_subresource_has_a_selector_and_never_loses_to_the_operator(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=1, **NOWHERE))
    until(lambda: len(fleet.pods()) == 1)

    fleet.kubectl("scale", "nllb/fleet", "--replicas=3")

    until(lambda: len(fleet.pods()) == 3)
    path = f"/apis/fleet.nllb.io/v1alpha1/namespaces/{fleet.namespace}/nllbdeployments/fleet/scale"
    scale = until(lambda: json.loads(fleet.kube.kubectl("get", "--raw", path)))
    assert scale["spec"]["replicas"] == 3
    assert "fleet.nllb.io/deployment=fleet" in scale["status"]["selector"]
    fleet.kubectl("scale", "nllb/fleet", "--replicas=0")
    until(lambda: not fleet.pods())
    fleet.until_reason("nllb/fleet", "ScaledToZero")


def test_a_service_of_somebody_else_is_left_alone_and_named(fleet: KubeFleet) -> None:
    fleet.kubectl("create", "service", "clusterip", "fleet", "--tcp=80:80")
    foreign = fleet.get("svc/fleet")

    fleet.apply(fleet.deployment(replicas=0))

    condition = fleet.until_reason("nllb/fleet", "NameConflict")
    assert "Service" in condition["message"] and "delete it, or rename" in condition["message"]
    assert fleet.get("svc/fleet") == foreign
    fleet.kubectl("delete", "svc", "fleet")
    fleet.until_reason("nllb/fleet", "ScaledToZero")


def test_what_the_api_server_does_not_accept_is_shown_in_its_words(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=0, podLabels={"not a label": "x"}))

    condition = fleet.until_reason("nllb/fleet", "ObjectRejected")

    assert "not a label" in condition["message"]
    fleet.apply(fleet.deployment(replicas=0, podLabels={"team": "mt"}))
    fleet.until_reason("nllb/fleet", "ScaledToZero")


def test_a_forged_status_is_written_anew(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=0))
    fleet.until_reason("nllb/fleet", "ScaledToZero")

    forged = '{"status":{"readyReplicas":7,"conditions":[]}}'
    fleet.kubectl("patch", "nllb", "fleet", "--subresource=status", "--type=merge", "-p", forged)

    fleet.until_reason("nllb/fleet", "ScaledToZero")
    assert fleet.get("nllb/fleet")["status"]["readyReplicas"] == 0


def test_deleting_returns_at_once_and_leaves_nothing_even_without_an_operator(
    fleet: KubeFleet, operator: OperatorProcess
) -> None:
    fleet.apply(fleet.deployment(replicas=2, **NOWHERE), fleet.adapter("polite"))
    fleet.until_reason("nllb/fleet", "Unschedulable")
    operator.stop(signal.SIGKILL)
    try:
        began = time.monotonic()
        fleet.kubectl("delete", "nllb/fleet", "lora/polite", "--timeout=5s")
        assert time.monotonic() - began < 3

        def left() -> list[Any]:
            items = fleet.get("rs,pods,svc,cm,sa,pdb")["items"]
            return [item for item in items if "fleet" in item["metadata"]["name"]]

        until(lambda: not left())
    finally:
        operator.start()


def test_a_fleet_deleted_and_made_again_at_once_stands_again(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=1, **NOWHERE))
    fleet.until_reason("nllb/fleet", "Unschedulable")

    fleet.kubectl("delete", "nllb", "fleet")
    fleet.apply(fleet.deployment(replicas=1, **NOWHERE))

    uid = fleet.get("nllb/fleet")["metadata"]["uid"]

    def owned() -> bool:
        items = fleet.get("rs,svc,cm")["items"]
        mine = [item for item in items if "fleet" in item["metadata"]["name"]]
        return len(mine) == 4 and all(
            owner["uid"] == uid for item in mine for owner in item["metadata"]["ownerReferences"]
        )

    until(owned, 40)
    fleet.until_reason("nllb/fleet", "Unschedulable")


def test_an_operator_that_cannot_read_its_settings_says_which(kube: Kube) -> None:
    env = {**kube.env, "NLLB_OPERATOR_WORKERS": "many"}
    done = subprocess.run(
        [sys.executable, "-m", "nllb_operator"],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 1
    assert "NLLB_OPERATOR_WORKERS is 'many'; write a number" in done.stderr
