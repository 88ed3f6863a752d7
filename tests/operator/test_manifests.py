import json
from typing import Any

import pytest
from operator_objects import Objects

from nllb_operator import naming
from nllb_operator.backends.base import Manifest
from nllb_operator.manifests import desired_objects, template_hash
from nllb_operator.resources import NllbDeployment
from nllb_server.settings import ServerSettings
from nllb_server.wire import WantedSet

NOTHING = WantedSet(fleet="fleet", revision=0)


def children(deployment: NllbDeployment, replicas: int = 1) -> dict[tuple[str, str], Manifest]:
    objects = desired_objects(deployment, NOTHING, replicas)
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def pod_spec(deployment: NllbDeployment) -> Any:
    (replica_set,) = (item for key, item in children(deployment).items() if key[0] == "ReplicaSet")
    return replica_set["spec"]["template"]["spec"]


def container(deployment: NllbDeployment) -> Any:
    return pod_spec(deployment)["containers"][0]


def test_a_fleet_of_two_has_every_child(make: Objects) -> None:
    deployment = make.deployment(replicas=2)

    assert {kind for kind, _ in children(deployment)} == {
        "ServiceAccount", "ConfigMap", "Service", "ReplicaSet", "PodDisruptionBudget",
    }  # fmt: skip
    assert ("Service", "fleet") in children(deployment)
    assert ("Service", "fleet-peers") in children(deployment)


def test_one_pod_alone_has_no_budget_that_would_block_the_drain_of_its_node(make: Objects) -> None:
    assert "PodDisruptionBudget" not in {kind for kind, _ in children(make.deployment(replicas=1))}


def test_every_child_goes_with_its_owner_and_blocks_nothing(make: Objects) -> None:
    for child in children(make.deployment(replicas=2)).values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("NllbDeployment", "fleet", "fleet-uid")
        assert owner["controller"] is True
        assert "blockOwnerDeletion" not in owner
        assert "finalizers" not in child["metadata"]


def test_a_pod_asks_for_its_gpus_as_request_and_limit(make: Objects) -> None:
    gpu = {"resourceName": "nvidia.com/mig-1g.10gb", "count": 2}
    resources = container(make.deployment(gpu=gpu, resources={"requests": {"cpu": "2"}}))["resources"]

    assert resources["requests"] == {"cpu": "2", "nvidia.com/mig-1g.10gb": "2"}
    assert resources["limits"] == {"nvidia.com/mig-1g.10gb": "2"}


def test_a_fleet_on_cpus_asks_for_no_gpu(make: Objects) -> None:
    deployment = make.deployment(gpu={"count": 0}, engine={"device": "cpu"})

    assert container(deployment)["resources"] == {}


def test_pods_are_restricted(make: Objects) -> None:
    spec = pod_spec(make.deployment())
    security = spec["containers"][0]["securityContext"]

    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True


def test_claims_are_mounted_read_only_where_pvc_uris_find_them(make: Objects) -> None:
    deployment = make.deployment(
        volumes=[{"name": "models", "claimName": "claim-a"}, {"name": "more", "claimName": "claim-b"}]
    )
    mounts = {mount["mountPath"]: mount for mount in container(deployment)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod_spec(deployment)["volumes"]}

    assert mounts["/volumes/more"]["readOnly"] is True
    claim = volumes[mounts["/volumes/more"]["name"]]["persistentVolumeClaim"]
    assert claim == {"claimName": "claim-b", "readOnly": True}


def test_the_server_understands_every_variable_that_a_pod_gets(make: Objects) -> None:
    engine = {
        "device": "cpu", "dtype": "float32", "defaultSource": "eng_Latn", "defaultTarget": "deu_Latn",
        "maxSeqLen": 640, "maxBatch": 3, "maxBeams": 2, "cpuThreads": 1,
    }  # fmt: skip
    adapters = {"slots": 3, "maxRank": 16, "readyDeadlineSeconds": 7}
    variables = container(make.deployment(engine=engine, adapters=adapters, drainSeconds=33))["env"]
    env = {item["name"]: item.get("value", "from-the-pod") for item in variables}

    settings = ServerSettings.from_env(env)

    assert (settings.fleet, settings.model_uri) == ("fleet", "pvc://models/tiny-nllb")
    assert (settings.device, settings.dtype, settings.max_beams) == ("cpu", "float32", 2)
    assert (settings.max_batch, settings.max_seq_len, settings.cpu_threads) == (3, 640, 1)
    assert (settings.default_source, settings.default_target) == ("eng_Latn", "deu_Latn")
    assert (settings.adapter_slots, settings.adapter_max_rank) == (3, 16)
    assert (settings.ready_deadline_seconds, settings.drain_seconds) == (7, 33)
    assert (settings.pod_name, settings.pod_uid) == ("from-the-pod", "from-the-pod")
    known = {f"NLLB_{name.upper()}" for name in ServerSettings.__dataclass_fields__}
    assert {name for name in env if name.startswith("NLLB_")} <= known


def test_the_grace_period_is_longer_than_the_drain(make: Objects) -> None:
    assert pod_spec(make.deployment(drainSeconds=40))["terminationGracePeriodSeconds"] == 50


@pytest.mark.parametrize(
    "change",
    [
        {"image": "server:2"},
        {"model": {"uri": "pvc://models/other"}},
        {"engine": {"maxBatch": 7}},
        {"gpu": {"count": 2}},
        {"adapters": {"slots": 3}},
        {"nodeSelector": {"zone": "b"}},
        {"podAnnotations": {"restarted": "today"}},
    ],
)
def test_what_makes_a_pod_another_pod_changes_its_template(make: Objects, change: dict[str, Any]) -> None:
    assert template_hash(make.deployment(**change)) != template_hash(make.deployment())


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 5},
        {"drainSeconds": 33},
        {"adapters": {"fanout": 4, "readyDeadlineSeconds": 9}},
        {"imagePullSecrets": [{"name": "registry"}]},
        {"gpu": {"count": 1, "resourceName": "nvidia.com/gpu"}},
    ],
)
def test_what_does_not_change_the_pod_rolls_nothing(make: Objects, change: dict[str, Any]) -> None:
    assert template_hash(make.deployment(**change)) == template_hash(make.deployment())


def test_a_change_of_the_drain_reaches_pods_that_start_later(make: Objects) -> None:
    name = naming.replica_set_name("fleet", template_hash(make.deployment()))
    before = children(make.deployment())[("ReplicaSet", name)]
    after = children(make.deployment(drainSeconds=33))[("ReplicaSet", name)]

    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]
    assert after["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 43


def test_scaling_alone_leaves_the_mark_of_the_content(make: Objects) -> None:
    one, two = children(make.deployment(), 1), children(make.deployment(), 2)
    (key,) = (key for key in one if key[0] == "ReplicaSet")

    assert one[key]["metadata"] == two[key]["metadata"]
    assert (one[key]["spec"]["replicas"], two[key]["spec"]["replicas"]) == (1, 2)


def test_the_selector_finds_the_pods(make: Objects) -> None:
    deployment = make.deployment(podLabels={"team": "mt"})
    objects = children(deployment)
    (replica_set,) = (item for key, item in objects.items() if key[0] == "ReplicaSet")
    labels = replica_set["spec"]["template"]["metadata"]["labels"]

    assert labels["team"] == "mt"
    assert replica_set["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert objects[("Service", "fleet")]["spec"]["selector"].items() <= labels.items()


def test_the_wanted_set_travels_as_the_server_reads_it(make: Objects) -> None:
    view = make.view("polite")
    wanted = WantedSet(fleet="fleet", revision=0, adapters=[view.entry(view.wanted, [])])

    objects = desired_objects(make.deployment(), wanted, 1)
    (config_map,) = (item for item in objects if item["kind"] == "ConfigMap")

    text = config_map["data"][naming.WANTED_KEY]
    assert WantedSet.model_validate_json(text) == wanted
    assert json.loads(text)["adapters"][0]["name"] == "polite"
