from typing import Any

import pytest

from nllb_operator.backends.kubernetes.pod_view import pod_view
from nllb_operator.naming import DELETION_COST_ANNOTATION, POD_TEMPLATE_LABEL


def pod(status: dict[str, Any], **meta: Any) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": 8000}, {"name": "control", "containerPort": 8001}]
    defaults = {"name": "p", "namespace": "default", "uid": "u", "labels": {POD_TEMPLATE_LABEL: "abc"}}
    return {
        "metadata": {**defaults, "creationTimestamp": "2026-01-01T00:00:00Z", **meta},
        "spec": {"containers": [{"name": "server", "ports": ports}]},
        "status": status,
    }


def test_a_pod_that_serves() -> None:
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
    view = pod_view(pod({"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions}))

    assert view.ready and view.alive and view.reason is None
    assert (view.control_addr, view.public_addr) == ("10.0.0.1:8001", "10.0.0.1:8000")
    assert (view.template_hash, view.deletion_cost) == ("abc", None)
    assert view.created is not None and view.created.year == 2026


def test_an_ipv6_address_is_bracketed() -> None:
    assert pod_view(pod({"phase": "Running", "podIP": "fd00::1"})).control_addr == "[fd00::1]:8001"


def test_a_pod_just_made_has_nothing_wrong() -> None:
    view = pod_view(pod({}))

    assert (view.phase, view.ready, view.reason, view.control_addr) == ("Pending", False, None, None)


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "0/3 nodes are available"}]},
            "Unschedulable", "0/3 nodes",
        ),
        (
            {"phase": "Pending", "containerStatuses": [
                {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
            "ImagePullBackOff", "no such image",
        ),
        (
            {"phase": "Running", "containerStatuses": [
                {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}},
                 "lastState": {"terminated": {
                     "exitCode": 2, "reason": "Error",
                     "message": "listening\n2026-01-01 01:02:03,4 ERROR a.b: no model\n"}}}]},
            "CrashLoopBackOff", "ended with code 2: no model",
        ),
        (
            {"phase": "Running", "containerStatuses": [
                {"state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no GPU"}}}]},
            "CrashLoopBackOff", "ended with code 1: no GPU",
        ),
        (
            {"phase": "Running", "containerStatuses": [
                {"state": {"running": {}}, "ready": False,
                 "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            "CrashLoopBackOff", "ended with code 137 (OOMKilled)",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}, "Evicted", "disk pressure"),
    ],
)  # fmt: skip
def test_why_a_pod_does_not_run(status: dict[str, Any], reason: str, words: str) -> None:
    view = pod_view(pod(status))

    assert view.reason == reason
    assert view.message is not None and words in view.message


def test_a_container_that_serves_again_or_ended_as_asked_is_nothing_wrong() -> None:
    failed = {"terminated": {"exitCode": 1, "reason": "Error"}}
    again = [{"state": {"running": {}}, "ready": True, "lastState": failed}]
    asked = [{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}, "ready": False}]

    assert pod_view(pod({"phase": "Running", "containerStatuses": again})).reason is None
    assert pod_view(pod({"phase": "Running", "containerStatuses": asked})).reason is None


def test_a_container_that_is_being_made_is_nothing_wrong() -> None:
    waiting = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]

    assert pod_view(pod({"phase": "Pending", "containerStatuses": waiting})).reason is None


def test_a_pod_on_its_way_out_or_evicted_is_not_alive() -> None:
    assert not pod_view(pod({"phase": "Running"}, deletionTimestamp="2026-01-01T00:00:00Z")).alive
    assert not pod_view(pod({"phase": "Failed"})).alive


def test_a_deletion_cost_that_is_no_number_is_none() -> None:
    assert pod_view(pod({}, annotations={DELETION_COST_ANNOTATION: "-100"})).deletion_cost == -100
    assert pod_view(pod({}, annotations={DELETION_COST_ANNOTATION: "cheap"})).deletion_cost is None
