"""Requests to the API server, and what its answers mean: the only module that speaks to it.

Knows paths, verbs, server-side apply and status codes, and gets connection and credentials from
`kubernetes.aio`. Must not know fleets, caches, or which object is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from nllb_operator.backends.base import (
    BackendUnavailable,
    Manifest,
    ObjectForbidden,
    ObjectRef,
    ObjectRejected,
)
from nllb_operator.metrics import OperatorMetrics
from nllb_operator.naming import API_VERSION, FIELD_MANAGER, LORA_ADAPTER, NLLB_DEPLOYMENT

USER_AGENT = FIELD_MANAGER
"""By this name the API server's audit log knows the operator."""
TIMEOUT_SECONDS = 15.0
PAGE = 500
"""Objects per page of a list."""

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class Kind(NamedTuple):
    """A kind of object: its apiVersion and the plural in paths."""

    api_version: str
    plural: str


KINDS: Mapping[str, Kind] = {
    NLLB_DEPLOYMENT: Kind(API_VERSION, "nllbdeployments"),
    LORA_ADAPTER: Kind(API_VERSION, "loraadapters"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "Pod": Kind("v1", "pods"),
    "Service": Kind("v1", "services"),
    "ConfigMap": Kind("v1", "configmaps"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
}
"""Everything that the operator reads or writes, events apart."""


class Refusal(NamedTuple):
    """An answer that is not a success: the status code and the API server's sentence."""

    status: int
    message: str


class ApiServer:
    """A connection to the API server. Close it in the end.

    Calls return the answer, or a Refusal for a 4xx that the caller may expect; they raise BackendUnavailable
    when the API server cannot be reached, is overloaded, or forbids what the operator needs.
    """

    def __init__(self, client: ApiClient, metrics: OperatorMetrics) -> None:
        """`client` has its credentials already; `connect` makes one."""
        self._client = client
        self._metrics = metrics

    @classmethod
    async def connect(cls, metrics: OperatorMetrics) -> ApiServer:
        """Use KUBECONFIG or ~/.kube/config, else the ServiceAccount of the pod that this runs in."""
        configuration = Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        client = ApiClient(configuration)
        client.user_agent = USER_AGENT
        return cls(client, metrics)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """The object, or None if there is none of that name."""
        answer = await self._request("GET", _path(ref.kind, ref.namespace, ref.name))
        if isinstance(answer, Refusal):
            if answer.status == 404:
                return None
            raise refused(ref, answer)
        return answer

    async def list(self, kind: str, namespace: str | None, label_selector: str | None) -> list[Manifest]:
        """Every object of a kind, in one namespace or in all."""
        items: list[Manifest] = []
        token = ""
        while True:
            query = {"limit": str(PAGE)}
            if label_selector is not None:
                query["labelSelector"] = label_selector
            if token:
                query["continue"] = token
            answer = await self._request("GET", _path(kind, namespace), query=query)
            if isinstance(answer, Refusal):
                raise BackendUnavailable(f"cannot list {KINDS[kind].plural}: {answer.message}")
            types = {"apiVersion": KINDS[kind].api_version, "kind": kind}
            items += [{**types, **item} for item in answer.get("items") or ()]
            token = answer["metadata"].get("continue", "")
            if not token:
                return items

    async def apply(self, manifest: Manifest, *, subresource: str | None = None) -> Manifest | Refusal:
        """Server-side apply under our one field manager; our fields win over everybody's."""
        ref = ObjectRef.of(manifest)
        self._metrics.api_writes.labels("apply", ref.kind).inc()
        return await self._request(
            "PATCH",
            _path(ref.kind, ref.namespace, ref.name, subresource),
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=manifest,
            content_type=APPLY,
        )

    async def annotate(self, ref: ObjectRef, annotations: Mapping[str, str]) -> Manifest | Refusal:
        """Set annotations of an object, which may be somebody else's, and nothing but them."""
        self._metrics.api_writes.labels("annotate", ref.kind).inc()
        return await self._request(
            "PATCH",
            _path(ref.kind, ref.namespace, ref.name),
            query={"fieldManager": FIELD_MANAGER},
            body={"metadata": {"uid": ref.uid, "annotations": dict(annotations)}},
            content_type=MERGE,
        )

    async def delete(self, ref: ObjectRef) -> Manifest | Refusal:
        """Delete an object if it has the uid of `ref`; what it owns goes in the background."""
        self._metrics.api_writes.labels("delete", ref.kind).inc()
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if ref.uid is not None:
            options["preconditions"] = {"uid": ref.uid}
        return await self._request("DELETE", _path(ref.kind, ref.namespace, ref.name), body=options)

    async def create_event(self, namespace: str, event: Manifest) -> Manifest | Refusal:
        """Post an event."""
        self._metrics.api_writes.labels("create", "Event").inc()
        return await self._request("POST", f"/api/v1/namespaces/{namespace}/events", body=event)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Manifest | Refusal:
        """The decoded answer or a Refusal."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            parameters = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*parameters, _request_timeout=TIMEOUT_SECONDS)
            content = await response.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise BackendUnavailable(f"{method} {path}: {error or type(error).__name__}") from error
        if response.status < 300:
            decoded: Manifest = json.loads(content)
            return decoded
        message = _message(content)
        if response.status in (401, 429) or response.status >= 500:
            raise BackendUnavailable(f"{method} {path}: HTTP {response.status}, {message}")
        return Refusal(response.status, message)


def refused(ref: ObjectRef, refusal: Refusal) -> Exception:
    """What to raise when the API server refuses a request about an object."""
    if refusal.status == 403:
        return ObjectForbidden(refusal.message)
    if refusal.status == 409:
        return BackendUnavailable(f"{ref.kind} {ref.namespace}/{ref.name}: {refusal.message}")
    return ObjectRejected(f"{ref.kind} {ref.name} is not accepted: {refusal.message}")


def _path(kind: str, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
    api_version, plural = KINDS[kind]
    parts = ["/api" if api_version == "v1" else "/apis", api_version]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (plural, name, subresource) if part is not None]
    return "/".join(parts)


def _message(content: bytes) -> str:
    """The sentence in a Status object."""
    try:
        return str(json.loads(content).get("message") or "no message")
    except (ValueError, AttributeError):
        return "no message"
