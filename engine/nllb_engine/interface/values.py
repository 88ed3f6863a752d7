"""The values that cross the model interface: addresses, requests, rows, results.

Knows no tensor library: a device address is an integer. Must not hold behaviour beyond what a value says
about itself.
"""

from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol, TypeAlias

from nllb_engine.errors import EngineError

DevicePtr = NewType("DevicePtr", int)
"""An address in the memory of the model's device."""
HostPtr = NewType("HostPtr", int)
"""An address in host memory."""
NULL = DevicePtr(0)

USIZE_MAX = 2**64 - 1
"""`usize::MAX` of the seed: no slot, no limit."""
NO_SLOT = USIZE_MAX
NO_TOKEN = 2**32 - 1
"""`u32::MAX` of the seed: no token."""

EarlyStopping: TypeAlias = bool | Literal["never"]
RowMask: TypeAlias = tuple[int, int]
"""Two token ids that a row's device argmax must not pick; NO_TOKEN masks nothing."""


@dataclass
class SequenceState:
    """One sequence across prefill and decode.

    `tokens` holds the decoder's ids: start, target language, then what was decoded. `seq_len` is the number
    of cache rows written. A language id of 0 means the deployment's default; `adapter_slot` -1 means the
    active adapter, or the base model where none is active. The sequence owns slot `slot_idx` until it is
    freed.
    """

    slot_idx: int
    tokens: list[int] = field(default_factory=list)
    seq_len: int = 0
    prompt_len: int = 0
    src_lang_id: int = 0
    tgt_lang_id: int = 0
    adapter_slot: int = -1
    acquired_adapter_slot: int = -1
    adapter_id: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    session_hash: int = 0
    collect_prompt_logprobs: bool = False
    reused_prefix_tokens: int = 0
    block_table: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class BeamReq:
    """One beam-search request.

    `prompt_tokens` are plain source pieces; the model adds the language and the end token. `max_new` counts
    the tokens after the target language, the end token included (transformers' `max_new_tokens` minus one,
    because that counts the language too).
    """

    prompt_tokens: tuple[int, ...]
    src_lang_id: int = 0
    tgt_lang_id: int = 0
    adapter_slot: int = -1
    num_beams: int = 4
    max_new: int = 200
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


@dataclass
class PrefillSlice:
    """One stream's chunk of a batched prefill: `tokens` is the whole prompt, the chunk a range of it."""

    tokens: list[int]
    seq: SequenceState
    chunk_start: int
    chunk_len: int
    is_last_chunk: bool

    @classmethod
    def whole(cls, tokens: list[int], seq: SequenceState) -> "PrefillSlice":
        """The whole prompt as its first and last chunk."""
        return cls(tokens, seq, 0, len(tokens), True)


@dataclass(frozen=True)
class MixedForwardResult:
    """Logits of a mixed forward: base of the decode rows, the prefill's row (NULL before its last chunk)."""

    decode_logits: DevicePtr
    prefill_logits: DevicePtr


@dataclass(frozen=True)
class MixedBatchResult:
    """Logits of a batched mixed forward: base of the decode rows, and one entry per prefill stream."""

    decode_logits: DevicePtr
    prefill_logits: list[DevicePtr]


@dataclass(frozen=True)
class PreviousRow:
    """A fed row reads the previous step's argmax of row `from_row`, on the device."""

    from_row: int


@dataclass(frozen=True)
class HostToken:
    """A fed row takes `token` from the host."""

    token: int


FeedSource: TypeAlias = PreviousRow | HostToken


@dataclass(frozen=True)
class PrefixReclaim:
    """What a reclaim left: free blocks the prefill needs, and free blocks reached (fewer: nothing left)."""

    target: int
    free: int


@dataclass(frozen=True)
class PromptTokenLogprob:
    """One scored position: the target's natural log-probability and the best alternatives, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class VerifyBatchedOpts:
    """Options of a batched verify; `write_on_accept` delays state writes until rows are accepted."""

    write_on_accept: bool = False


@dataclass(frozen=True)
class Legacy:
    """Decode by the hand-written forward."""


@dataclass(frozen=True)
class Circuit:
    """Decode by a compiled plan: its digest, the fusions it may use, and the config.json it was made for."""

    plan_digest: str
    fusions: frozenset[str]
    config_text: str


ForwardSelect: TypeAlias = Legacy | Circuit


@dataclass(frozen=True)
class ForwardDisclosure:
    """The forward that decode runs now: `legacy`, `circuit` or `circuit-reference`, and its plan."""

    forward: Literal["legacy", "circuit", "circuit-reference"] = "legacy"
    plan_digest: str | None = None
    launches_per_step: int | None = None


@dataclass(frozen=True)
class PeftAdapterConfig:
    """The fields of PEFT's adapter_config.json that change what an adapter computes, under PEFT's names.

    A string in `target_modules` is a regular expression for whole module paths, or "all-linear"; a tuple
    holds path endings. The patterns are (regular expression, value) pairs in file order; the first fit wins.
    """

    r: int
    lora_alpha: float
    use_rslora: bool = False
    target_modules: tuple[str, ...] | str = ()
    exclude_modules: tuple[str, ...] | str = ()
    layers_to_transform: tuple[int, ...] = ()
    layers_pattern: tuple[str, ...] = ()
    rank_pattern: tuple[tuple[str, int], ...] = ()
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    use_dora: bool = False
    lora_bias: bool = False

    @property
    def scaling(self) -> float:
        """Factor on B·A·x of a module that no pattern names: alpha/r, or alpha/sqrt(r) with rsLoRA."""
        return self.lora_alpha / (self.r**0.5 if self.use_rslora else self.r)


@dataclass(frozen=True)
class SamplingParams:
    """How a decoder-only model samples; NLLB decodes greedily or by beams and reads `max_tokens` only."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class GenerateResult:
    """Tokens of one finished generation and why it ended."""

    tokens: list[int]
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class ModelDims:
    """Sizes that a weight-swapping host needs: layers, widths in elements, vocabulary rows."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int


@dataclass(frozen=True)
class VisionItem:
    """One image: row-major RGB bytes, height and width in pixels."""

    pixels: bytes
    height: int
    width: int


@dataclass
class ChunkedPrefillPageMetadata:
    """Device copy of one sequence's block table, kept between chunks so that only news is uploaded."""

    block_table: DevicePtr = NULL
    uploaded_blocks: int = 0


class EpCommandFailed(EngineError):
    """A worker command was received and then failed; the worker goes on, the head answers the client."""


class Writer(Protocol):
    """A sink of bytes, as a binary file opened for writing."""

    def write(self, data: bytes, /) -> int:
        """Take `data` whole; return its length."""
        ...


class Reader(Protocol):
    """A source of bytes, as a binary file opened for reading."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; empty at the end."""
        ...
