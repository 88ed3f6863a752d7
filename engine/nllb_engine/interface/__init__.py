"""The model interface: every name a caller of a model needs. Imports no tensor library."""

from nllb_engine.config import DEFAULT_CACHE_ROWS, MAX_CACHE_ROWS, ModelConfig, NllbLang
from nllb_engine.interface.adapter_pool import ModelAdapterPool, ResidentAdapter
from nllb_engine.interface.adapters import ModelAdapters
from nllb_engine.interface.batching import (
    DECODE_BATCH_LADDER,
    bf16_to_f32,
    extract_bf16,
    logprob_of,
    padded_batch_n,
)
from nllb_engine.interface.beam import BeamHandle, Hypothesis, ModelBeam
from nllb_engine.interface.circuit import ModelCircuit
from nllb_engine.interface.device_feed import ModelDeviceFeed
from nllb_engine.interface.draft import ModelDraft
from nllb_engine.interface.ep import ModelEp
from nllb_engine.interface.forward import ModelForward
from nllb_engine.interface.lifecycle import ModelLifecycle
from nllb_engine.interface.limits import Limits, ModelLimits
from nllb_engine.interface.logits import ModelLogits
from nllb_engine.interface.model import Model
from nllb_engine.interface.ssm_state import ModelSsmState
from nllb_engine.interface.streams import ModelStreams
from nllb_engine.interface.values import (
    NO_SLOT,
    NO_TOKEN,
    NULL,
    USIZE_MAX,
    BeamReq,
    ChunkedPrefillPageMetadata,
    Circuit,
    DevicePtr,
    EarlyStopping,
    EpCommandFailed,
    FeedSource,
    ForwardDisclosure,
    ForwardSelect,
    GenerateResult,
    HostPtr,
    HostToken,
    Legacy,
    MixedBatchResult,
    MixedForwardResult,
    ModelDims,
    PeftAdapterConfig,
    PrefillSlice,
    PrefixReclaim,
    PreviousRow,
    PromptTokenLogprob,
    Reader,
    RowMask,
    SamplingParams,
    SequenceState,
    VerifyBatchedOpts,
    VisionItem,
    Writer,
)
from nllb_engine.interface.verify import ModelVerify
from nllb_engine.interface.vision import ModelVision
from nllb_engine.interface.weights import WeightStore

__all__ = [
    "DECODE_BATCH_LADDER",
    "DEFAULT_CACHE_ROWS",
    "MAX_CACHE_ROWS",
    "NO_SLOT",
    "NO_TOKEN",
    "NULL",
    "USIZE_MAX",
    "BeamHandle",
    "BeamReq",
    "ChunkedPrefillPageMetadata",
    "Circuit",
    "DevicePtr",
    "EarlyStopping",
    "EpCommandFailed",
    "FeedSource",
    "ForwardDisclosure",
    "ForwardSelect",
    "GenerateResult",
    "HostPtr",
    "HostToken",
    "Hypothesis",
    "Legacy",
    "Limits",
    "MixedBatchResult",
    "MixedForwardResult",
    "Model",
    "ModelAdapterPool",
    "ModelAdapters",
    "ModelBeam",
    "ModelCircuit",
    "ModelConfig",
    "ModelDeviceFeed",
    "ModelDims",
    "ModelDraft",
    "ModelEp",
    "ModelForward",
    "ModelLifecycle",
    "ModelLimits",
    "ModelLogits",
    "ModelSsmState",
    "ModelStreams",
    "ModelVerify",
    "ModelVision",
    "NllbLang",
    "PeftAdapterConfig",
    "PrefillSlice",
    "PrefixReclaim",
    "PreviousRow",
    "PromptTokenLogprob",
    "Reader",
    "ResidentAdapter",
    "RowMask",
    "SamplingParams",
    "SequenceState",
    "VerifyBatchedOpts",
    "VisionItem",
    "WeightStore",
    "Writer",
    "bf16_to_f32",
    "extract_bf16",
    "logprob_of",
    "padded_batch_n",
]
