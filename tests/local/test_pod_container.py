"""What a Pod manifest means for a process of this machine."""

from pathlib import Path
from typing import Any

import pytest

from nllb_operator import pod_container
from nllb_operator.pod_container import Mount, PodNotRunnable, localised

MOUNTS = [Mount("/volumes/models", claim="models"), Mount("/etc/nllb", config_map="wanted"), Mount("/tmp")]
ROOTFS = Path("/pods/a/rootfs")


def pod(**container: Any) -> dict[str, Any]:
    server = {"name": "server", "ports": [{"name": "http", "containerPort": 8000}], **container}
    return {
        "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        "spec": {
            "containers": [server],
            "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
        },
    }


@pytest.mark.parametrize(
    ("value", "here"),
    [
        ("/volumes", "/pods/a/rootfs/volumes"),
        ("/volumes/models", "/pods/a/rootfs/volumes/models"),
        ("/volumes/models/x/y.json", "/pods/a/rootfs/volumes/models/x/y.json"),
        ("/etc/nllb/wanted.json", "/pods/a/rootfs/etc/nllb/wanted.json"),
        ("/volumes/modelsx", "/volumes/modelsx"),
        ("/usr/bin/python", "/usr/bin/python"),
        ("/", "/"),
        ("pvc://models/tiny", "pvc://models/tiny"),
        ("file:///tmp/model", "file:///tmp/model"),
        ("volumes/models", "volumes/models"),
        ("", ""),
    ],
)
def test_only_paths_of_mounts_become_paths_of_this_machine(value: str, here: str) -> None:
    assert localised(value, MOUNTS, ROOTFS) == here


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, "UnsupportedVolume"),
        ({"volumeMounts": [{"name": "none", "mountPath": "/v"}]}, "UnknownVolume"),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}, "UnsupportedEnvironment"),
    ],
)
def test_what_a_process_cannot_have_is_refused_with_a_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PodNotRunnable) as refusal:
        pod_container.environment_of(pod(**change), "127.1.2.3", ROOTFS)
    assert refusal.value.reason == reason


@pytest.mark.parametrize(
    ("probe", "reason"),
    [({"exec": {"command": ["true"]}}, "UnsupportedProbe"), ({"httpGet": {"port": "nope"}}, "UnknownPort")],
)
def test_a_probe_that_cannot_be_run_is_refused_with_a_reason(probe: dict[str, Any], reason: str) -> None:
    with pytest.raises(PodNotRunnable) as refusal:
        pod_container.probe_of(pod(readinessProbe=probe), "readinessProbe")
    assert refusal.value.reason == reason


def test_a_probe_has_the_defaults_of_kubernetes() -> None:
    probe = pod_container.probe_of(pod(livenessProbe={"httpGet": {"port": "http"}}), "livenessProbe")
    assert probe is not None
    assert (probe.path, probe.port, probe.period, probe.timeout) == ("/", 8000, 10, 1)
    assert (probe.initial_delay, probe.success_threshold, probe.failure_threshold) == (0, 1, 3)


def test_a_command_replaces_the_entrypoint_and_args_follow_either() -> None:
    assert pod_container.argv_of(pod(), {}, ROOTFS, ["serve"]) == ["serve"]
    assert pod_container.argv_of(pod(args=["-x"]), {}, ROOTFS, ["serve"]) == ["serve", "-x"]
    manifest = pod(command=["other"], args=["$(NAME)", "$(NONE)", "$$(NAME)"])
    assert pod_container.argv_of(manifest, {"NAME": "a"}, ROOTFS, ["serve"]) == [
        "other",
        "a",
        "$(NONE)",
        "$(NAME)",
    ]


def test_an_interpreter_below_a_mount_of_the_pod_is_still_this_machines() -> None:
    manifest = pod(volumeMounts=[{"name": "t", "mountPath": "/tmp"}], args=["/tmp/x"])
    manifest["spec"]["volumes"] = [{"name": "t", "emptyDir": {}}]
    entrypoint = ["/tmp/clone/.venv/bin/python", "-m", "nllb_server"]
    assert pod_container.argv_of(manifest, {}, ROOTFS, entrypoint) == [*entrypoint, f"{ROOTFS}/tmp/x"]


def test_a_pod_of_several_containers_is_refused() -> None:
    manifest = pod()
    manifest["spec"]["containers"] *= 2
    with pytest.raises(PodNotRunnable, match="exactly one container"):
        pod_container.container_of(manifest)
