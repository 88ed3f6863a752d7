"""The operator with the rights that it ships with, in one namespace."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_cluster import REPOSITORY, Kube, OperatorProcess, until
from kube_fleet import KubeFleet


@pytest.fixture
def restricted(
    kube: Kube, operator: OperatorProcess, fleet: KubeFleet, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """An operator that may do what the chart's `operator_role.yaml` says, in the namespace of `fleet`."""
    where = {"name": "operator", "namespace": fleet.namespace}
    role = REPOSITORY / "charts" / "nllb-fleet" / "files" / "operator_role.yaml"
    rules = yaml.safe_load(role.read_text(encoding="utf-8"))
    rbac = "rbac.authorization.k8s.io"
    fleet.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": where},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": where, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": where,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "operator"},
            "subjects": [{"kind": "ServiceAccount", **where}],
        },
    )
    token = fleet.kubectl("create", "token", "operator").strip()
    config: dict[str, Any] = json.loads(kube.kubeconfig.read_text(encoding="utf-8"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config), encoding="utf-8")
    process = OperatorProcess.beside(kube)
    process.log = tmp_path / "operator.log"
    process.env = {
        **process.env, "KUBECONFIG": str(kubeconfig), "NLLB_OPERATOR_NAMESPACES": fleet.namespace,
    }  # fmt: skip
    operator.stop()  # it would do what this one may not
    try:
        with process.running():
            yield process
    finally:
        operator.start()


def test_it_needs_no_right_beyond_its_role(restricted: OperatorProcess, fleet: KubeFleet) -> None:
    nowhere = {"nodeSelector": {"pool": "nowhere"}}
    fleet.apply(fleet.deployment(replicas=3, **nowhere), fleet.adapter("polite"))
    until(lambda: len(fleet.pods()) == 3)
    fleet.until_reason("lora/polite", "NoReadyPods")
    fleet.kubectl("scale", "nllb/fleet", "--replicas=1")
    until(lambda: len(fleet.pods()) == 1)
    fleet.apply(fleet.deployment(replicas=1, image="server:2", **nowhere))
    until(lambda: fleet.pods()[0]["spec"]["containers"][0]["image"] == "server:2")
    until(lambda: len(fleet.get("rs")["items"]) == 1)
    until(lambda: not fleet.get("pdb")["items"])
    fleet.kubectl("delete", "svc", "fleet")
    until(lambda: fleet.get("svc/fleet"))

    assert "forbidden" not in restricted.output.lower()
    assert restricted.page("/metrics").count("nllb_operator_reconciles_total{") == 1, "only good reconciles"


def test_without_a_right_it_says_which_and_goes_on(restricted: OperatorProcess, fleet: KubeFleet) -> None:
    role = fleet.get("role/operator")
    role["metadata"] = {"name": "operator", "namespace": fleet.namespace}
    rules = role["rules"]
    role["rules"] = [rule for rule in rules if "policy" not in rule["apiGroups"]]
    fleet.apply(role)

    fleet.apply(fleet.deployment(replicas=2, nodeSelector={"pool": "nowhere"}))

    until(lambda: len(fleet.pods()) == 2, what="what is allowed is done")
    assert "poddisruptionbudgets" in fleet.until_reason("nllb/fleet", "Forbidden")["message"]

    fleet.apply({**role, "rules": rules})
    fleet.until_reason("nllb/fleet", "Unschedulable")
