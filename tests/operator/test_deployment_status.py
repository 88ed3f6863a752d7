from collections.abc import Sequence
from typing import Any

from operator_objects import NOW, Objects

from nllb_operator.backends.base import PodView
from nllb_operator.deployment_status import deployment_status, invalid_status
from nllb_operator.manifests import template_hash
from nllb_operator.resources import NllbDeployment
from nllb_operator.wanted import Problem


def status_of(
    deployment: NllbDeployment,
    pods: Sequence[PodView],
    silent: Sequence[PodView] = (),
    problem: Problem | None = None,
) -> dict[str, Any]:
    return deployment_status(deployment, {}, pods, adapters=0, silent=silent, problem=problem, now=NOW)


def verdict(status: dict[str, Any], name: str) -> tuple[str, str]:
    condition = next(item for item in status["conditions"] if item["type"] == name)
    return condition["status"], condition["reason"]


def pods(make: Objects, deployment: NllbDeployment, number: int, **values: Any) -> list[PodView]:
    return [make.pod(template_hash=template_hash(deployment), **values) for _ in range(number)]


def test_ready_means_every_pod_serves_the_current_spec(make: Objects) -> None:
    deployment = make.deployment(replicas=3)
    status = status_of(deployment, pods(make, deployment, 3))

    assert verdict(status, "Ready") == ("True", "AllPodsReady")
    assert verdict(status, "Progressing") == ("False", "Complete")
    assert verdict(status, "Degraded") == ("False", "AsExpected")
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (3, 3, 3)
    assert status["endpoint"] == "http://fleet.default.svc:8000"
    assert status["selector"] == "app.kubernetes.io/component=server,fleet.nllb.io/deployment=fleet"


def test_pods_that_start_are_progress_and_no_fault(make: Objects) -> None:
    deployment = make.deployment(replicas=3)
    starting = pods(make, deployment, 1, ready=False)
    status = status_of(deployment, [*pods(make, deployment, 2), *starting])

    assert verdict(status, "Ready") == ("False", "PodsStarting")
    assert verdict(status, "Progressing") == ("True", "PodsStarting")
    assert verdict(status, "Degraded") == ("False", "AsExpected")


def test_a_rollout_says_how_far_it_is(make: Objects) -> None:
    deployment = make.deployment(replicas=2)
    status = status_of(deployment, [*pods(make, deployment, 1), make.pod(template_hash="old")])

    assert verdict(status, "Progressing") == ("True", "RollingOut")
    assert "1 of 2 pods run the current spec" in status["conditions"][0]["message"]


def test_a_pod_that_finds_no_gpu_is_called_by_that_name(make: Objects) -> None:
    deployment = make.deployment(replicas=2)
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    pending = pods(make, deployment, 2, ready=False, phase="Pending", reason="Unschedulable", message=message)
    status = status_of(deployment, pending)

    assert verdict(status, "Ready") == ("False", "InsufficientGPU")
    assert verdict(status, "Progressing") == ("False", "InsufficientGPU")
    assert verdict(status, "Degraded") == ("True", "InsufficientGPU")
    assert message in status["conditions"][0]["message"]
    assert len(status["exceptions"]) == 2


def test_a_crash_loop_is_degraded_and_tells_the_last_words(make: Objects) -> None:
    deployment = make.deployment()
    crashing = pods(
        make, deployment, 1, ready=False, reason="CrashLoopBackOff", message="exit code 2: no such model"
    )
    status = status_of(deployment, crashing)

    assert verdict(status, "Degraded") == ("True", "CrashLoopBackOff")
    assert "no such model" in status["conditions"][0]["message"]


def test_a_ready_pod_whose_control_port_is_mute_degrades_but_stays_ready(make: Objects) -> None:
    deployment = make.deployment()
    mute = pods(make, deployment, 1)
    status = status_of(deployment, mute, silent=mute)

    assert verdict(status, "Ready") == ("True", "AllPodsReady")
    assert verdict(status, "Degraded") == ("True", "NotAnswering")


def test_zero_replicas_serve_nobody_and_that_is_said(make: Objects) -> None:
    status = status_of(make.deployment(replicas=0), [])

    assert verdict(status, "Ready") == ("False", "ScaledToZero")
    assert verdict(status, "Progressing") == ("False", "Complete")


def test_pods_on_their_way_out_count_no_more(make: Objects) -> None:
    deployment = make.deployment(replicas=1)
    status = status_of(deployment, [*pods(make, deployment, 1), *pods(make, deployment, 2, deleting=True)])

    assert status["replicas"] == 1
    assert verdict(status, "Ready") == ("True", "AllPodsReady")


def test_a_problem_of_the_spec_is_the_reason_of_all_three(make: Objects) -> None:
    problem = Problem("NameConflict", "Service default/fleet exists")
    status = status_of(make.deployment(), [], problem=problem)

    assert verdict(status, "Ready") == ("False", "NameConflict")
    assert verdict(status, "Degraded") == ("True", "NameConflict")


def test_an_unreadable_spec_keeps_the_counts_of_what_still_runs() -> None:
    before = {"replicas": 3, "readyReplicas": 3}
    status = invalid_status(before, Problem("InvalidSpec", "spec.x: unknown"), generation=4, now=NOW)

    assert status["readyReplicas"] == 3 and status["observedGeneration"] == 4
    assert verdict(status, "Ready") == ("False", "InvalidSpec")
