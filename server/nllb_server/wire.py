"""What travels over HTTP, as pydantic models: the public API, the control port and peer content.

Knows field names, types and bounds that hold for every pod; imports the standard library and pydantic only,
because the operator's image shares this module and holds neither torch nor the engine. Must not know how a
request is served or how an adapter is promoted.

Requests of users forbid unknown fields (a typo is an error, not a silent default). Messages between operator
and pods ignore unknown fields, so that two neighbouring versions can talk.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator

PUBLIC_PORT = 8000
CONTROL_PORT = 8001

TRANSLATE_PATH = "/v1/translate"
MODELS_PATH = "/v1/models"
LANGUAGES_PATH = "/v1/languages"
LIVEZ_PATH = "/livez"
READYZ_PATH = "/readyz"
METRICS_PATH = "/metrics"
INVENTORY_PATH = "/control/v1/inventory"
WANTED_PATH = "/control/v1/wanted"
PEER_PATH = "/peer/v1/adapters"

ADAPTER_HEADER = "X-NLLB-Adapter"
REQUEST_ID_HEADER = "X-Request-Id"

SHORT_DIGEST = 12  # hex digits of a digest in headers and logs

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A file of an adapter folder: no separators and no leading dot, so it can never leave its folder."""

AdapterStateName = Literal["Absent", "Fetching", "Stored", "Loaded", "Failed"]
"""Absent: not on disk. Fetching: on its way. Stored: verified on disk. Loaded: in a slot. Failed: `error`."""

FinishReason = Literal["stop", "length"]


class UserMessage(BaseModel):
    """Base of what users send: frozen, strictly typed, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Message(BaseModel):
    """Base of replies and of what pods and the operator exchange: frozen, unknown fields ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class TranslateRequest(UserMessage):
    """Body of `POST /v1/translate`. Absent `source` or `target`: the pod's configured default."""

    text: Annotated[
        Annotated[str, Tag("text")] | Annotated[list[str], Field(min_length=1), Tag("texts")],
        Discriminator(lambda value: "texts" if isinstance(value, list) else "text"),
    ]
    source: str | None = None
    target: str | None = None
    adapter: str | None = None
    num_beams: int = Field(default=1, ge=1)
    max_new_tokens: int | None = Field(default=None, ge=1)
    length_penalty: float = Field(default=1.0, allow_inf_nan=False)
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = Field(default=1, ge=1)
    return_tokens: bool = False

    @model_validator(mode="after")
    def _alternatives_come_from_beams(self) -> Self:
        if self.num_return_sequences > self.num_beams:
            raise ValueError("num_return_sequences must not exceed num_beams")
        return self

    @property
    def texts(self) -> list[str]:
        """The texts as a list, one or many."""
        return [self.text] if isinstance(self.text, str) else self.text


class AdapterRef(Message):
    """The adapter version that answered: its name and the digest of its files."""

    name: str
    digest: Digest

    @property
    def header(self) -> str:
        """Value of `X-NLLB-Adapter`: name and the first digits of the digest."""
        return f"{self.name}@{self.digest[:SHORT_DIGEST]}"


class Alternative(Message):
    """A further hypothesis of a beam search, worse than the one above it."""

    text: str
    score: float | None = None
    token_ids: list[int] | None = None


class Translation(Message):
    """One text, translated. `finish_reason` "length": the output was cut by a limit."""

    text: str
    finish_reason: FinishReason
    score: float | None = None
    alternatives: list[Alternative] = []
    token_ids: list[int] | None = None


class TranslateResponse(Message):
    """Reply of `POST /v1/translate`; `translations` in the order of the texts."""

    model: str
    adapter: AdapterRef | None
    source: str
    target: str
    translations: list[Translation]
    pod: str


class ProblemDetail(Message):
    """What went wrong, in a word for programs (`code`) and a sentence that says what to do (`message`)."""

    code: str
    message: str
    known: list[str] | None = None
    near: list[str] | None = None
    request_id: str | None = None


class Problem(Message):
    """Body of every reply with a status of 400 or more."""

    error: ProblemDetail


class ModelCard(Message):
    """An entry of `GET /v1/models`: the base model, or an adapter with its `parent` and `digest`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "nllb-fleet"
    root: str
    parent: str | None = None
    digest: str | None = None


class ModelList(Message):
    """Reply of `GET /v1/models`, in OpenAI's shape."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class LanguageList(Message):
    """Reply of `GET /v1/languages`: the codes this model knows, and the pod's defaults."""

    languages: list[str]
    default_source: str | None = None
    default_target: str | None = None


class Readiness(Message):
    """Reply of `/readyz`: `missing` are required adapters that are awaited, or given up at the deadline."""

    ready: bool
    reason: Literal["Ready", "LoadingModel", "AwaitingAdapters", "Draining"]
    missing: list[str] = []


class Source(Message):
    """Where to fetch from. `peer` has an `addr`: host:port of a control port. `wait`: a seed is fetching."""

    kind: Literal["origin", "peer", "wait"]
    addr: str | None = None

    @model_validator(mode="after")
    def _a_peer_has_an_address(self) -> Self:
        if (self.kind == "peer") != (self.addr is not None):
            raise ValueError("exactly sources of kind peer have an addr")
        return self


class WantedAdapter(Message):
    """An adapter that is to be resident. `digest` None: the first verified fetch from the origin fixes it.

    `required`: it has been Ready in this fleet at this digest, so a new pod waits for it before it is ready.
    `sources` are tried in order; none means "do not fetch".
    """

    name: AdapterName
    uid: str
    generation: int = Field(ge=0)
    digest: Digest | None = None
    uri: str
    required: bool = False
    pinned: bool = False
    active: bool = False
    sources: list[Source] = []

    @model_validator(mode="after")
    def _unknown_content_comes_from_the_origin(self) -> Self:
        if self.digest is None and any(source.kind == "peer" for source in self.sources):
            raise ValueError(f"adapter {self.name}: without a digest only the origin may be a source")
        return self


class WantedSet(Message):
    """`PUT /control/v1/wanted`: all that a pod is to hold. `revision` grows; others hold `elsewhere`."""

    fleet: str
    revision: int = Field(ge=0)
    adapters: list[WantedAdapter] = []
    elsewhere: list[str] = []

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [adapter.name for adapter in self.adapters]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"names wanted twice: {', '.join(doubles)}")
        if sum(adapter.active for adapter in self.adapters) > 1:
            raise ValueError("more than one adapter is active")
        return self


class AdapterProblem(Message):
    """Why an adapter is not there. `fault` content: stop spreading it; pod: try another pod."""

    reason: str
    message: str
    fault: Literal["content", "pod"]


class InventoryAdapter(Message):
    """The state of one wanted adapter on one pod.

    `source`: how its files came here (`disk`: they were in the store). `seconds`: fetch, check and load.
    `uid`, `generation`: of the WantedAdapter the entry is about, never newer than what `digest` answers.
    `error`: of the last attempt at it; it stays while the attempt is repeated, until one succeeds.
    """

    name: str
    uid: str = ""
    digest: str | None = None
    state: AdapterStateName
    slot: int | None = None
    generation: int = 0
    refs: int = 0
    bytes: int = 0
    rank: int | None = None
    source: Literal["origin", "peer", "disk"] | None = None
    source_addr: str | None = None
    seconds: float | None = None
    error: AdapterProblem | None = None


class ModelInfo(Message):
    """The base model of a pod. `loaded` False: still on its way."""

    uri: str
    loaded: bool
    device: str | None = None
    dtype: str | None = None


class Inventory(Message):
    """What a pod holds. `boot_id`: new with each start. `revision`: of the last accepted set, -1 for none."""

    boot_id: str
    pod: str
    pod_uid: str
    fleet: str
    revision: int
    model: ModelInfo
    ready: bool
    draining: bool
    adapters: list[InventoryAdapter] = []
    stored: list[str] = []
    promote_calls: int = 0


class PeerFile(Message):
    """One file of an adapter: its size in bytes and the SHA-256 of its content."""

    name: FileName
    size: int = Field(ge=0)
    sha256: Digest


class PeerManifest(Message):
    """Reply of `GET /peer/v1/adapters/{digest}`: the files that make up the adapter."""

    digest: Digest
    files: list[PeerFile]
