"""The objects that make up a fleet: `desired_objects` turns an NllbDeployment into manifests.

Pure. Knows the pod's contract (ports, paths, variables, probes) and what belongs to the pod's identity. Must
not know what exists, who decides the number of pods, or where objects are kept. The operator's own version
appears nowhere in a pod template, and the hash of a template is taken from the user's spec, so that an
upgrade of the operator restarts no pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nllb_operator import naming
from nllb_operator.backends.base import Manifest
from nllb_operator.resources import NllbDeployment
from nllb_server.wire import CONTROL_PORT, LIVEZ_PATH, PUBLIC_PORT, READYZ_PATH, WantedSet

VOLUMES_DIR = "/volumes"
STATE_DIR = "/var/lib/nllb"
WANTED_DIR = "/etc/nllb"
STOP_MARGIN_SECONDS = 10
"""How much longer than its drain a pod may live: time to close the engine after the last request."""

_NOT_IN_POD = {"replicas": True, "drain_seconds": True, "image_pull_secrets": True}
_ADAPTERS_NOT_IN_POD = {"fanout", "ready_deadline_seconds"}


def template_hash(deployment: NllbDeployment) -> str:
    """Hash of the part of the spec that makes a running pod what it is; defaults count as absent.

    Replicas, drain, fanout and deadlines stay out: they act on pods that start later, or not on pods at all.
    """
    spec = deployment.spec.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        exclude={**_NOT_IN_POD, "adapters": _ADAPTERS_NOT_IN_POD},
    )
    return naming.short_hash({key: value for key, value in spec.items() if value != {}})


def desired_objects(deployment: NllbDeployment, wanted: WantedSet, replicas: int) -> list[Manifest]:
    """Every child of the fleet except ReplicaSets of earlier templates, in the order in which to create them.

    `wanted` goes into the ConfigMap; `replicas` is how many pods of the current template there may be now.
    """
    objects = [
        _service_account(deployment),
        _wanted_config_map(deployment, wanted),
        _peers_service(deployment),
        _service(deployment),
        _replica_set(deployment, replicas),
    ]
    if deployment.spec.replicas >= 2:
        objects.append(_disruption_budget(deployment))
    return objects


def _replica_set(deployment: NllbDeployment, replicas: int) -> Manifest:
    """The ReplicaSet of the current template."""
    template = template_hash(deployment)
    selector = {**naming.pod_selector(deployment.metadata.name), naming.POD_TEMPLATE_LABEL: template}
    manifest = _child(
        deployment,
        "apps/v1",
        "ReplicaSet",
        naming.replica_set_name(deployment.metadata.name, template),
        spec={
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "template": _pod_template(deployment, selector),
        },
        labels={naming.POD_TEMPLATE_LABEL: template},
    )
    # The number changes often and by itself; the mark is for what the pods are made of.
    manifest["metadata"]["annotations"][naming.CONTENT_ANNOTATION] = naming.short_hash(
        manifest["spec"]["template"]
    )
    return manifest


def _child(
    deployment: NllbDeployment,
    api_version: str,
    kind: str,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    **content: Any,
) -> Manifest:
    """An object that belongs to the fleet and vanishes with it."""
    owner = deployment.metadata
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": {**naming.recommended_labels(owner.name, "server"), **(labels or {})},
            "annotations": {naming.CONTENT_ANNOTATION: naming.short_hash(content)},
            "ownerReferences": [
                {
                    "apiVersion": naming.API_VERSION,
                    "kind": naming.NLLB_DEPLOYMENT,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                }
            ],
        },
        **content,
    }


def _service_account(deployment: NllbDeployment) -> Manifest:
    name = naming.pods_account_name(deployment.metadata.name)
    return _child(deployment, "v1", "ServiceAccount", name, automountServiceAccountToken=False)


def _wanted_config_map(deployment: NllbDeployment, wanted: WantedSet) -> Manifest:
    text = wanted.model_dump_json(indent=1, exclude_defaults=True)
    name = naming.wanted_name(deployment.metadata.name)
    return _child(deployment, "v1", "ConfigMap", name, data={naming.WANTED_KEY: text})


def _service(deployment: NllbDeployment) -> Manifest:
    spec = {
        "type": "ClusterIP",
        "selector": naming.pod_selector(deployment.metadata.name),
        "ports": [{"name": "http", "port": PUBLIC_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    return _child(deployment, "v1", "Service", deployment.metadata.name, spec=spec)


def _peers_service(deployment: NllbDeployment) -> Manifest:
    spec = {
        "type": "ClusterIP",
        "clusterIP": "None",
        # A pod serves its peers before it is Ready, and needs them to become so.
        "publishNotReadyAddresses": True,
        "selector": naming.pod_selector(deployment.metadata.name),
        "ports": [{"name": "control", "port": CONTROL_PORT, "targetPort": "control", "protocol": "TCP"}],
    }
    return _child(deployment, "v1", "Service", naming.peers_name(deployment.metadata.name), spec=spec)


def _disruption_budget(deployment: NllbDeployment) -> Manifest:
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": naming.pod_selector(deployment.metadata.name)},
        # A pod that is not Ready serves nobody; it must not hold up the drain of its node.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return _child(deployment, "policy/v1", "PodDisruptionBudget", deployment.metadata.name, spec=spec)


def _pod_template(deployment: NllbDeployment, selector: Mapping[str, str]) -> dict[str, Any]:
    spec = deployment.spec
    labels = {
        **spec.pod_labels,
        **naming.recommended_labels(deployment.metadata.name, "server"),
        **selector,
    }
    metadata: dict[str, Any] = {"labels": labels}
    if spec.pod_annotations:
        metadata["annotations"] = dict(spec.pod_annotations)
    pod: dict[str, Any] = {
        "serviceAccountName": naming.pods_account_name(deployment.metadata.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.drain_seconds + STOP_MARGIN_SECONDS,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(deployment)],
        "volumes": _volumes(deployment),
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in spec.image_pull_secrets]
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        pod["tolerations"] = [
            toleration.model_dump(by_alias=True, exclude_none=True) for toleration in spec.tolerations
        ]
    return {"metadata": metadata, "spec": pod}


def _container(deployment: NllbDeployment) -> dict[str, Any]:
    mounts = [
        {"name": "wanted", "mountPath": WANTED_DIR, "readOnly": True},
        {"name": "state", "mountPath": STATE_DIR},
        {"name": "tmp", "mountPath": "/tmp"},
        *(
            {"name": f"claim-{volume.name}", "mountPath": f"{VOLUMES_DIR}/{volume.name}", "readOnly": True}
            for volume in deployment.spec.volumes
        ),
    ]
    return {
        "name": "server",
        "image": deployment.spec.image,
        "env": _environment(deployment),
        "ports": [
            {"name": "http", "containerPort": PUBLIC_PORT, "protocol": "TCP"},
            {"name": "control", "containerPort": CONTROL_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(deployment),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
        # Why the server gave up is its last line; the operator tells it in the fleet's conditions.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # Importing torch takes a while and the server listens only then; liveness starts to count after it.
        "startupProbe": _probe(LIVEZ_PATH, periodSeconds=1, timeoutSeconds=2, failureThreshold=300),
        "livenessProbe": _probe(LIVEZ_PATH, periodSeconds=10, timeoutSeconds=5, failureThreshold=3),
        "readinessProbe": _probe(READYZ_PATH, periodSeconds=1, timeoutSeconds=2, failureThreshold=2),
    }


def _probe(path: str, **numbers: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}, **numbers}


def _resources(deployment: NllbDeployment) -> dict[str, Any]:
    spec = deployment.spec
    requests, limits = dict(spec.resources.requests), dict(spec.resources.limits)
    if spec.gpu.count > 0:
        # Kubernetes wants both equal for extended resources.
        requests[spec.gpu.resource_name] = limits[spec.gpu.resource_name] = str(spec.gpu.count)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _volumes(deployment: NllbDeployment) -> list[dict[str, Any]]:
    wanted = {"name": naming.wanted_name(deployment.metadata.name)}
    return [
        {"name": "wanted", "configMap": wanted},
        {"name": "state", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        *(
            {
                "name": f"claim-{volume.name}",
                "persistentVolumeClaim": {"claimName": volume.claim_name, "readOnly": True},
            }
            for volume in deployment.spec.volumes
        ),
    ]


def _environment(deployment: NllbDeployment) -> list[dict[str, Any]]:
    """The variables that `nllb_server.settings` reads; an absent one leaves the server's default."""
    spec, engine = deployment.spec, deployment.spec.engine
    values: dict[str, Any] = {
        "HOME": STATE_DIR,
        "NLLB_FLEET": deployment.metadata.name,
        "NLLB_MODEL_URI": spec.model.uri,
        "NLLB_VOLUMES_DIR": VOLUMES_DIR,
        "NLLB_WANTED_FILE": f"{WANTED_DIR}/{naming.WANTED_KEY}",
        "NLLB_ADAPTERS_DIR": f"{STATE_DIR}/adapters",
        "NLLB_CACHE_DIR": f"{STATE_DIR}/cache",
        "NLLB_DEVICE": engine.device,
        "NLLB_DTYPE": engine.dtype,
        "NLLB_DEFAULT_SOURCE": engine.default_source,
        "NLLB_DEFAULT_TARGET": engine.default_target,
        "NLLB_MAX_SEQ_LEN": engine.max_seq_len,
        "NLLB_MAX_BATCH": engine.max_batch,
        "NLLB_MAX_BEAMS": engine.max_beams,
        "NLLB_CPU_THREADS": engine.cpu_threads,
        "NLLB_ADAPTER_SLOTS": spec.adapters.slots,
        "NLLB_ADAPTER_MAX_RANK": spec.adapters.max_rank,
        "NLLB_READY_DEADLINE_SECONDS": spec.adapters.ready_deadline_seconds,
        "NLLB_DRAIN_SECONDS": spec.drain_seconds,
    }
    fields = {"NLLB_POD_NAME": "metadata.name", "NLLB_POD_UID": "metadata.uid"}
    return [
        *({"name": key, "value": str(value)} for key, value in values.items() if value is not None),
        *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
    ]
