"""The chart: what it renders and refuses; install, upgrade and uninstall on a real API server.

Its pods do not run here (no nodes): that the operator works with exactly the chart's rights is in tests/kube.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_cluster import REPOSITORY, Kube, needed_cluster_tool

CHART = REPOSITORY / "charts" / "nllb-fleet"
CRDS = ("nllbdeployments", "loraadapters")
TEMPLATE = ("template", "fleet", CHART, "--kube-version", "1.34.4")

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A control plane without our CRDs. Skipped where there are no binaries, a failure in CI."""
    needed_cluster_tool()
    with Kube.running(tmp_path_factory.mktemp("chart")) as kube:
        yield kube


def helm(kube: Kube, *words: str | Path, fails: bool = False) -> str:
    done = subprocess.run(
        [kube.folder / "bin" / "helm", *words], capture_output=True, text=True, env=kube.env, timeout=60
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def rendered(kube: Kube, *options: str) -> list[dict[str, Any]]:
    text = helm(kube, *TEMPLATE, "--namespace", "system", *options)
    return [item for item in yaml.safe_load_all(text) if item]


def kinds(items: list[dict[str, Any]]) -> list[str]:
    return sorted(item["kind"] for item in items)


def test_the_charts_crds_are_copies_of_the_source() -> None:
    for name in CRDS:
        source = REPOSITORY / f"crds/{name}.yaml"
        assert (CHART / f"files/crds/{name}.yaml").read_bytes() == source.read_bytes()


def test_the_chart_has_the_version_of_the_package() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert f'version = "{version}"' in (REPOSITORY / "pyproject.toml").read_text()


def test_every_value_is_explained_and_has_a_schema() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    for key in yaml.safe_load("\n".join(lines)):
        at = next(index for index, line in enumerate(lines) if line.startswith(f"{key}:"))
        following = lines[at + 1] if at + 1 < len(lines) else ""
        above = next((line for line in reversed(lines[:at]) if not line or line.startswith("#")), "")
        assert above.startswith("#") or following.strip().startswith("#"), f"{key} has no comment"
        assert key in schema


def test_helm_finds_nothing_to_complain_about(kube: Kube) -> None:
    assert "0 chart(s) failed" in helm(kube, "lint", "--strict", CHART)


def test_rights_are_the_cluster_s_or_each_namespace_s(kube: Kube) -> None:
    everywhere, some = rendered(kube), rendered(kube, "--set", "namespaces={a,b}")
    crds = ["CustomResourceDefinition"] * 2
    assert kinds(everywhere) == sorted(
        ["ServiceAccount", "Deployment", "ClusterRole", "ClusterRoleBinding", *crds]
    )
    assert kinds(some).count("Role") == kinds(some).count("RoleBinding") == 2
    assert not {"ClusterRole", "ClusterRoleBinding"} & set(kinds(some))
    rules = yaml.safe_load((CHART / "files/operator_role.yaml").read_text())
    roles = [item for item in [*everywhere, *some] if item["kind"] in ("Role", "ClusterRole")]
    assert len(roles) == 3 and all(role["rules"] == rules for role in roles)


def test_the_operators_pod_is_restricted_and_told_its_settings(kube: Kube) -> None:
    items = rendered(kube, "--set", "namespaces={a,b}", "--set", "workers=7")
    spec = next(item for item in items if item["kind"] == "Deployment")["spec"]
    pod, container = spec["template"]["spec"], spec["template"]["spec"]["containers"][0]
    assert spec["strategy"] == {"type": "Recreate"}
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env == {
        "NLLB_OPERATOR_NAMESPACES": "a,b",
        "NLLB_OPERATOR_ALLOW_FILE_URIS": "false",
        "NLLB_OPERATOR_RESYNC_SECONDS": "10",
        "NLLB_OPERATOR_WORKERS": "7",
    }


def test_the_crds_stay_when_the_chart_goes_and_can_be_left_out(kube: Kube) -> None:
    crds = [item for item in rendered(kube) if item["kind"] == "CustomResourceDefinition"]
    assert {crd["metadata"]["annotations"]["helm.sh/resource-policy"] for crd in crds} == {"keep"}
    for crd in crds:
        source = yaml.safe_load((REPOSITORY / "crds" / f"{crd['spec']['names']['plural']}.yaml").read_text())
        assert crd["spec"] == source["spec"]
    assert "CustomResourceDefinition" not in kinds(rendered(kube, "--set", "crds.enabled=false"))


@pytest.mark.parametrize(
    ("value", "word"),
    [("replicaCount=2", "replicaCount"), ("workers=0", "workers"), ("namespaces={A_b}", "namespaces"),
     ("image.pullPolicy=Sometimes", "pullPolicy"),
     ("podLabels.app\\.kubernetes\\.io/name=x", "app.kubernetes.io/name")],
)  # fmt: skip
def test_a_value_that_means_nothing_is_refused_by_name(kube: Kube, value: str, word: str) -> None:
    assert word in helm(kube, *TEMPLATE, "--set", value, fails=True)


def older_chart(folder: Path) -> Path:
    """The chart as an earlier release might have been: its CRDs lack their last printer column."""
    chart = shutil.copytree(CHART, folder / "older")
    for name in CRDS:
        file = chart / f"files/crds/{name}.yaml"
        crd = yaml.safe_load(file.read_text())
        crd["spec"]["versions"][0]["additionalPrinterColumns"].pop()
        file.write_text(yaml.safe_dump(crd))
    return chart


def columns(kube: Kube, name: str) -> list[str]:
    version = kube.get("crd", f"{name}.fleet.nllb.io")["spec"]["versions"][0]
    return [column["name"] for column in version["additionalPrinterColumns"]]


def test_install_upgrade_uninstall_and_reinstall_keep_what_users_made(kube: Kube, tmp_path: Path) -> None:
    kube.kubectl("create", "namespace", "system")
    kube.kubectl("label", "namespace", "system", "pod-security.kubernetes.io/enforce=restricted")
    notes = helm(kube, "install", "fleet", older_chart(tmp_path), "--namespace", "system")
    assert "kubectl get nllb,lora" in notes and "helm uninstall fleet" in notes
    kube.kubectl("wait", "--for=condition=Established", "crd", *[f"{name}.fleet.nllb.io" for name in CRDS])
    kube.kubectl("apply", "-f", str(REPOSITORY / "examples/nllbdeployment.yaml"))
    kube.kubectl("apply", "-f", str(REPOSITORY / "examples/loraadapter.yaml"))
    uid = kube.get("nllb", "tiny")["metadata"]["uid"]
    assert all("Age" not in columns(kube, name) for name in CRDS)

    helm(kube, "upgrade", "fleet", CHART, "--namespace", "system", "--set", "workers=2")
    assert all("Age" in columns(kube, name) for name in CRDS)
    helm(kube, "uninstall", "fleet", "--namespace", "system")

    assert not kube.kubectl("-n", "system", "get", "deployments", "-o", "name")
    assert kube.get("nllb", "tiny")["metadata"]["uid"] == uid
    assert kube.kubectl("get", "lora", "formal", "-o", "name")
    helm(kube, "install", "fleet", CHART, "--namespace", "system")
    assert kube.get("nllb", "tiny")["metadata"]["uid"] == uid
    helm(kube, "uninstall", "fleet", "--namespace", "system")


def test_a_release_of_another_name_takes_the_crds_that_are_there(kube: Kube) -> None:
    kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(REPOSITORY / "crds"))
    kube.kubectl("create", "namespace", "other")
    helm(kube, "install", "mine", CHART, "--namespace", "other", "--take-ownership")
    crd = kube.get("crd", "loraadapters.fleet.nllb.io")
    assert crd["metadata"]["annotations"]["meta.helm.sh/release-name"] == "mine"
    helm(kube, "uninstall", "mine", "--namespace", "other")
    assert kube.get("crd", "loraadapters.fleet.nllb.io")["metadata"]["uid"] == crd["metadata"]["uid"]


def allowed(kube: Kube, verb: str, what: str, namespace: str) -> bool:
    account = "system:serviceaccount:scoped:nllb-fleet"
    done = subprocess.run(
        [kube.folder / "bin" / "kubectl", "auth", "can-i", verb, what, "--as", account, "-n", namespace],
        capture_output=True, text=True, env=kube.env, timeout=60,
    )  # fmt: skip
    return done.stdout.strip() == "yes"


def test_rights_for_some_namespaces_end_at_their_borders(kube: Kube) -> None:
    for name in ("scoped", "team-a", "team-b"):
        kube.kubectl("create", "namespace", name)
    helm(kube, "install", "nllb-fleet", CHART, "--namespace", "scoped", "--set", "namespaces={team-a}",
         "--set", "crds.enabled=false")  # fmt: skip
    assert allowed(kube, "create", "replicasets.apps", "team-a")
    assert not allowed(kube, "create", "replicasets.apps", "team-b")
    assert not allowed(kube, "list", "nllbdeployments.fleet.nllb.io", "scoped")
    assert not any(allowed(kube, "get", "secrets", name) for name in ("scoped", "team-a", "team-b"))
    helm(kube, "upgrade", "nllb-fleet", CHART, "--namespace", "scoped", "--set", "namespaces={team-b}",
         "--set", "crds.enabled=false")  # fmt: skip
    assert allowed(kube, "create", "replicasets.apps", "team-b")
    assert not allowed(kube, "create", "replicasets.apps", "team-a")
    helm(kube, "uninstall", "nllb-fleet", "--namespace", "scoped")


def test_the_restricted_pod_security_standard_admits_the_operators_pod(kube: Kube, tmp_path: Path) -> None:
    kube.kubectl("create", "namespace", "strict")
    kube.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    deployment = next(item for item in rendered(kube) if item["kind"] == "Deployment")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator", "namespace": "strict"}}
    spec = {**deployment["spec"]["template"]["spec"], "serviceAccountName": "default"}
    file = tmp_path / "pod.json"
    file.write_text(json.dumps({**pod, "spec": spec}))
    assert "created" in kube.kubectl("create", "--dry-run=server", "-f", str(file))
