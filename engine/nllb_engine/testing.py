"""A recording proxy around a model: proves what was served through the interface, and nothing beside it.

Knows the interface's method names and how to summarise their values as JSON lines. Must not know the class
behind it: a caller that reaches for anything outside the interface gets an AttributeError.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from nllb_engine.interface.adapter_pool import ModelAdapterPool, ResidentAdapter
from nllb_engine.interface.beam import BeamHandle, ModelBeam
from nllb_engine.interface.limits import ModelLimits
from nllb_engine.interface.model import Model
from nllb_engine.interface.values import PrefillSlice, SequenceState

M = TypeVar("M")

_CAPABILITIES = (Model, ModelBeam, ModelAdapterPool, ModelLimits)
INTERFACE_METHODS = frozenset(
    name for capability in _CAPABILITIES for name in dir(capability) if not name.startswith("_")
)


def record_model(model: M, path: Path) -> M:
    """A stand-in for `model` that appends each call to `path`: {t, method, args, result | error}.

    Tokens and adapters' names are recorded, sources only as their lengths. The stand-in offers the methods of
    the interface only, whatever else the class of `model` has.
    """
    return cast(M, RecordingModel(model, path))


class RecordingModel:
    """See `record_model`. Calls may come from any thread; each becomes one line."""

    def __init__(self, model: object, path: Path) -> None:
        """Append to `path`, which is created when missing."""
        self._model = model
        self._path = path
        self._lock = threading.Lock()
        self._serials: dict[int, int] = {}
        self._kept: list[object] = []  # so that Python never gives the id of a known object to another one

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The recording form of an interface method."""
        if name not in INTERFACE_METHODS:
            raise AttributeError(f"{name} is not a method of the model interface")
        method = getattr(self._model, name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            try:
                result = method(*args, **kwargs)
            except Exception as error:
                self._write(name, args, kwargs, error=type(error).__name__)
                raise
            self._write(name, args, kwargs, result=result)
            return result

        return recorded

    def _write(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any = None, error: str = ""
    ) -> None:
        with self._lock:
            line = {
                "t": time.time(),
                "method": name,
                "args": [self._summary(value) for value in args],
                **(
                    {"kwargs": {key: self._summary(value) for key, value in kwargs.items()}} if kwargs else {}
                ),
                **({"error": error} if error else {"result": self._summary(result)}),
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _summary(self, value: Any) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case Path():
                return str(value)
            case SequenceState():
                return {"seq": self._serial(value), "adapter_slot": value.adapter_slot}
            case PrefillSlice():
                return {"seq": self._serial(value.seq), "source_tokens": len(value.tokens)}
            case BeamHandle():
                ids = [list(one.token_ids) for one in value.hypotheses]
                return {"beam": self._serial(value), "done": value.done, "hypotheses": ids}
            case ResidentAdapter():
                return {"name": value.name, "digest": value.digest, "slot": value.slot}
            case list() | tuple() | set() | frozenset():
                return [self._summary(item) for item in value]
            case _:
                return type(value).__name__

    def _serial(self, value: object) -> int:
        if id(value) not in self._serials:
            self._kept.append(value)
            self._serials[id(value)] = len(self._kept)
        return self._serials[id(value)]


@dataclass
class Recording:
    """What a file of `record_model` says.

    `outputs` are the token ids that left the model, one tuple per finished sequence or beam hypothesis, the
    end token included where there was one. `peer_promotions` are the arguments of each call of
    promote_lora_from_peer that succeeded, `failed_promotions` of each that raised.
    """

    outputs: set[tuple[int, ...]] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    peer_promotions: list[list[Any]] = field(default_factory=list)
    failed_promotions: list[list[Any]] = field(default_factory=list)


def read_recording(path: Path) -> Recording:
    """Replay a recording: which row each argmax belonged to, and so which tokens each sequence was given."""
    recording = Recording()
    tokens: dict[int, list[int]] = {}
    rows: list[int] = []  # sequences of the last forward, in the order of its rows
    pointers: list[int] = []  # where its rows begin; one entry when only the base is known
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        method, args, result = line["method"], line["args"], line.get("result")
        recording.methods.add(method)
        if method == "promote_lora_from_peer":
            (recording.failed_promotions if "error" in line else recording.peer_promotions).append(args)
        if "error" in line:
            continue
        match method:
            case "prefill_batch_chunk":
                rows, pointers = [one["seq"] for one in args[0]], result
            case "decode_batch":
                rows, pointers = [one["seq"] for one in args[1]], [result]
            case "argmax_batch":
                first = pointers.index(args[0])
                for seq, token in zip(rows[first : first + args[1]], result, strict=True):
                    tokens.setdefault(seq, []).append(token)
            case "argmax_on_device":
                tokens.setdefault(rows[pointers.index(args[0])], []).append(result)
            case "free_sequence":
                recording.outputs.add(tuple(tokens.pop(args[0]["seq"], ())))
            case "beam_step":
                recording.outputs.update(tuple(ids) for one in args[0] for ids in one["hypotheses"])
    return recording
