"""Model: the union of the seed's twelve capabilities, 128 methods; it adds nothing of its own."""

from nllb_engine.interface.adapters import ModelAdapters
from nllb_engine.interface.circuit import ModelCircuit
from nllb_engine.interface.device_feed import ModelDeviceFeed
from nllb_engine.interface.draft import ModelDraft
from nllb_engine.interface.ep import ModelEp
from nllb_engine.interface.forward import ModelForward
from nllb_engine.interface.lifecycle import ModelLifecycle
from nllb_engine.interface.logits import ModelLogits
from nllb_engine.interface.ssm_state import ModelSsmState
from nllb_engine.interface.streams import ModelStreams
from nllb_engine.interface.verify import ModelVerify
from nllb_engine.interface.vision import ModelVision


class Model(
    ModelAdapters,
    ModelCircuit,
    ModelDeviceFeed,
    ModelDraft,
    ModelEp,
    ModelForward,
    ModelLifecycle,
    ModelLogits,
    ModelSsmState,
    ModelStreams,
    ModelVerify,
    ModelVision,
):
    """The whole scheduler-facing interface of a model. Forward and lifecycle calls come from one thread."""
