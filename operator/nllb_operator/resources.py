"""The two custom resources as frozen, typed objects: what a user may write, with its rules and defaults.

Knows the shape of `crds/*.yaml` (a contract test keeps both equal) and which values make no sense; errors
name the field and say what to write instead. Must not know how a fleet is made of it, nor what was observed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from nllb_operator.naming import API_VERSION, LORA_ADAPTER, MAX_NAME, NLLB_DEPLOYMENT
from nllb_server.wire import AdapterName, Digest

URI = r"^(pvc://[a-z0-9]([-a-z0-9]*[a-z0-9])?|file://)(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$"
LABEL_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SERVICE_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
LANGUAGE = r"^[a-z]{3}_[A-Z][a-z]{3}$"

Uri = Annotated[str, StringConstraints(max_length=1024, pattern=URI)]
"""`pvc://VOLUME/path` or `file:///path`. Segments start with neither dot nor dash, so none is `..`."""
LabelName = Annotated[str, StringConstraints(max_length=63, pattern=LABEL_NAME)]
ServiceName = Annotated[str, StringConstraints(max_length=MAX_NAME, pattern=SERVICE_NAME)]
"""A name that a Service may have too: the fleet's Service is called like the NllbDeployment."""
Language = Annotated[str, StringConstraints(pattern=LANGUAGE)]
Quantity = str | int


class InvalidResource(ValueError):
    """A resource that cannot be used; the message names each field and what it should be."""


class Part(BaseModel):
    """Base of every part of a spec: frozen, camelCase outside, unknown fields refused (typos are errors)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, strict=True
    )


class Metadata(BaseModel):
    """What the operator reads of `metadata`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1


class ModelSource(Part):
    """The base model: a folder in Hugging Face's layout."""

    uri: Uri


class Volume(Part):
    """A claim that `pvc://` may name; every pod mounts it read-only."""

    name: LabelName
    claim_name: Annotated[str, StringConstraints(min_length=1, max_length=253)]


class Gpu(Part):
    """The accelerators of a pod; `count` 0 asks for none."""

    resource_name: Annotated[
        str,
        StringConstraints(
            max_length=253,
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        ),
    ] = "nvidia.com/gpu"
    count: int = Field(default=1, ge=0, le=16)


class Resources(Part):
    """CPU, memory and ephemeral storage of a pod, in the terms of Kubernetes."""

    requests: Mapping[str, Quantity] = {}
    limits: Mapping[str, Quantity] = {}


class Toleration(Part):
    """A taint of nodes that the pods accept."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class SecretName(Part):
    """A Secret with credentials of an image registry."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]


class Engine(Part):
    """How the engine runs. An absent number: the server's default."""

    device: Literal["auto", "cuda", "cpu"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    default_source: Language | None = None
    default_target: Language | None = None
    max_seq_len: int | None = Field(default=None, ge=512, le=2048)
    max_batch: int | None = Field(default=None, ge=1, le=4096)
    max_beams: int | None = Field(default=None, ge=1, le=64)
    cpu_threads: int | None = Field(default=None, ge=1, le=1024)


class Adapters(Part):
    """Room for adapters in each pod, and how they spread."""

    slots: int = Field(default=8, ge=1, le=1024)
    max_rank: int = Field(default=64, ge=1, le=512)
    fanout: int = Field(default=2, ge=1, le=64)
    ready_deadline_seconds: int = Field(default=120, ge=0, le=3600)


class NllbDeploymentSpec(Part):
    """What an NllbDeployment asks for."""

    model: ModelSource
    volumes: list[Volume] = []
    image: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^\S+$")]
    image_pull_secrets: list[SecretName] = []
    replicas: int = Field(default=1, ge=0, le=10_000)
    gpu: Gpu = Gpu()
    resources: Resources = Resources()
    node_selector: Mapping[str, str] = {}
    tolerations: list[Toleration] = []
    pod_labels: Mapping[str, str] = {}
    pod_annotations: Mapping[str, str] = {}
    engine: Engine = Engine()
    adapters: Adapters = Adapters()
    drain_seconds: int = Field(default=60, ge=10, le=3600)

    @model_validator(mode="after")
    def _the_device_exists(self) -> Self:
        if self.gpu.count == 0 and self.engine.device != "cpu":
            raise ValueError(
                "gpu.count is 0, so engine.device must be cpu (a fleet never falls back to the CPU silently)"
            )
        return self

    @model_validator(mode="after")
    def _volumes_are_named_once_and_known(self) -> Self:
        names = [volume.name for volume in self.volumes]
        if len(names) != len(set(names)):
            raise ValueError("volumes must have different names")
        volume = volume_of(self.model.uri)
        if volume is not None and volume not in names:
            raise ValueError(f"model.uri names the volume {volume!r}, which is not in volumes")
        return self

    @model_validator(mode="after")
    def _own_labels_stay_own(self) -> Self:
        for key in self.pod_labels:
            if key.startswith("app.kubernetes.io/") or "fleet.nllb.io/" in key:
                raise ValueError(f"podLabels: {key} is set by the operator; choose another key")
        return self


class NllbDeployment(BaseModel):
    """A fleet of pods that translate with one base model."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    metadata: Metadata
    spec: NllbDeploymentSpec

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> NllbDeployment:
        """Parse an object of the API server or a YAML file; InvalidResource names every bad field."""
        return _parse(cls, body, NLLB_DEPLOYMENT)

    @model_validator(mode="after")
    def _the_service_can_have_its_name(self) -> Self:
        name = self.metadata.name
        if not re.fullmatch(SERVICE_NAME, name) or len(name) > MAX_NAME:
            raise ValueError(
                f"metadata.name {name!r} cannot be the name of a Service: use at most {MAX_NAME} lower-case"
                " letters, digits and dashes, starting with a letter"
            )
        return self


class DeploymentRef(Part):
    """The NllbDeployment, in the same namespace, in which an adapter is to be resident."""

    name: ServiceName


class AdapterOrigin(Part):
    """Where an adapter's files come from. `sha256`: the digest of the folder, if the user fixes it."""

    uri: Uri
    sha256: Digest | None = None


class LoraAdapterSpec(Part):
    """What a LoraAdapter asks for. `replicas` None: every pod."""

    deployment_ref: DeploymentRef
    source: AdapterOrigin
    served_name: AdapterName | None = None
    replicas: int | None = Field(default=None, ge=1, le=10_000)
    pinned: bool = False
    active: bool = False


class LoraAdapter(BaseModel):
    """A LoRA adapter that is to be resident in a fleet."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    metadata: Metadata
    spec: LoraAdapterSpec

    @property
    def served_name(self) -> str:
        """The name by which requests ask for it."""
        return self.spec.served_name or self.metadata.name

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> LoraAdapter:
        """Parse an object of the API server or a YAML file; InvalidResource names every bad field."""
        return _parse(cls, body, LORA_ADAPTER)


def volume_of(uri: str) -> str | None:
    """The volume that a `pvc://VOLUME/path` names; None for other schemes."""
    match = re.match(r"pvc://([^/]+)/", uri)
    return match.group(1) if match else None


_FORMS = {
    URI: "write pvc://VOLUME/path/to/folder (a volume of the NllbDeployment) or file:///path/to/folder",
    LABEL_NAME: "use lower-case letters, digits and dashes",
    SERVICE_NAME: "use lower-case letters, digits and dashes, starting with a letter",
    LANGUAGE: "write a language code such as eng_Latn",
    r"^[0-9a-f]{64}$": "write the 64 lower-case hex digits of a SHA-256",
}

R = TypeVar("R", bound=BaseModel)


def _parse(cls: type[R], body: Mapping[str, Any], kind: str) -> R:
    if body.get("apiVersion") != API_VERSION or body.get("kind") != kind:
        found = f"{body.get('kind')} of {body.get('apiVersion')}"
        raise InvalidResource(f"expected a {kind} of {API_VERSION}, found a {found}")
    try:
        return cls.model_validate(body)
    except ValidationError as error:
        raise InvalidResource("; ".join(_sentence(detail) for detail in error.errors())) from error


def _sentence(detail: Any) -> str:
    """One line for one bad field: its path as in YAML, and what pydantic says without its prefix."""
    path = ".".join(str(part) for part in detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = "unknown field"
    elif detail["type"] == "missing":
        message = "is required"
    elif detail["type"] == "string_pattern_mismatch":
        message = f"{detail['input']!r} is not allowed; {_FORMS.get(detail['ctx']['pattern'], message)}"
    return f"{path}: {message}" if path else message
