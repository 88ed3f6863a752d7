"""GpuBackend: the device a model runs on, its streams, events and pinned memory, for CUDA and for the CPU.

Handles and addresses are integers, 0 being the default stream. Must not know the model.
"""

import contextlib
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal, Protocol

import torch
from torch import Tensor

from nllb_engine.errors import EngineError, InvalidRequest
from nllb_engine.interface import HostPtr


class DeviceError(EngineError):
    """The device that was asked for cannot be used."""


class GpuBackend(Protocol):
    """What a model needs of its device. Work on one stream runs in order."""

    device: torch.device
    dtype: torch.dtype
    """The dtype of weights and activations."""

    def bind_to_thread(self) -> None:
        """Make the device current in the calling thread."""
        ...

    def on_stream(self, stream: int) -> AbstractContextManager[None]:
        """Queue the work of the `with` block on `stream`."""
        ...

    def create_stream(self) -> int:
        """A new stream."""
        ...

    def create_event(self) -> int:
        """A new event; it counts as completed until it is recorded."""
        ...

    def destroy_event(self, event: int) -> None:
        """Forget an event."""
        ...

    def record_event(self, event: int, stream: int) -> None:
        """Record `event` behind the work queued on `stream`."""
        ...

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Let `stream` wait for `event`, without blocking the host."""
        ...

    def event_query(self, event: int) -> bool:
        """Whether the work before `event` has completed."""
        ...

    def event_synchronize(self, event: int) -> None:
        """Block until the work before `event` has completed."""
        ...

    def synchronize(self, stream: int) -> None:
        """Block until the work of `stream` has completed."""
        ...

    def alloc_pinned(self, size: int) -> HostPtr:
        """`size` zeroed bytes of host memory that the device can write asynchronously."""
        ...

    def pinned(self, ptr: HostPtr, size: int) -> Tensor:
        """`size` bytes at `ptr`, inside one allocation, as uint8 `[size]`."""
        ...

    def free_pinned(self, ptr: HostPtr) -> None:
        """Give back memory of `alloc_pinned`."""
        ...

    def close(self) -> None:
        """Forget all handles and give cached device memory back to the driver."""
        ...


class _PinnedMemory:
    """Pinned allocations by their address."""

    def __init__(self, pin: bool) -> None:
        self._pin = pin
        self._blocks: dict[int, Tensor] = {}

    def alloc_pinned(self, size: int) -> HostPtr:
        if size < 1:
            raise InvalidRequest(f"cannot allocate {size} bytes of pinned memory; ask for at least 1")
        block = torch.zeros(size, dtype=torch.uint8, pin_memory=self._pin)
        self._blocks[block.data_ptr()] = block
        return HostPtr(block.data_ptr())

    def pinned(self, ptr: HostPtr, size: int) -> Tensor:
        for base, block in self._blocks.items():
            if base <= ptr and ptr + size <= base + block.numel():
                return block[ptr - base : ptr - base + size]
        raise InvalidRequest(f"{size} bytes at {ptr:#x} do not lie in memory of alloc_host_pinned")

    def free_pinned(self, ptr: HostPtr) -> None:
        if self._blocks.pop(ptr, None) is None:
            raise InvalidRequest(f"address {ptr:#x} was not given out by alloc_host_pinned, or freed before")

    def clear(self) -> None:
        self._blocks.clear()


class CpuBackend(_PinnedMemory):
    """The CPU: work runs at once, in the caller's thread, so every event is complete when it is recorded."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        """Compute in `dtype`, float32 or bfloat16."""
        super().__init__(pin=False)
        self.device = torch.device("cpu")
        self.dtype = dtype
        self._handles = itertools.count(1)
        self._streams = {0}
        self._events: set[int] = set()

    def bind_to_thread(self) -> None:
        """Nothing: the CPU is current everywhere."""

    def on_stream(self, stream: int) -> AbstractContextManager[None]:
        """Check the handle; the work runs at once."""
        self.synchronize(stream)
        return contextlib.nullcontext()

    def create_stream(self) -> int:
        """A handle without anything behind it."""
        stream = next(self._handles)
        self._streams.add(stream)
        return stream

    def create_event(self) -> int:
        """A handle without anything behind it."""
        event = next(self._handles)
        self._events.add(event)
        return event

    def destroy_event(self, event: int) -> None:
        """Forget the handle."""
        self.event_synchronize(event)
        self._events.remove(event)

    def record_event(self, event: int, stream: int) -> None:
        """Check the handles."""
        self.synchronize(stream)
        self.event_synchronize(event)

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Check the handles."""
        self.record_event(event, stream)

    def event_query(self, event: int) -> bool:
        """Always complete."""
        self.event_synchronize(event)
        return True

    def event_synchronize(self, event: int) -> None:
        """Check the handle; there is nothing to wait for."""
        if event not in self._events:
            raise _unknown("event", event)

    def synchronize(self, stream: int) -> None:
        """Check the handle; there is nothing to wait for."""
        if stream not in self._streams:
            raise _unknown("stream", stream)

    def close(self) -> None:
        """Forget all handles."""
        self.clear()
        self._events.clear()
        self._streams = {0}


class CudaBackend(_PinnedMemory):
    """One CUDA device."""

    def __init__(self, index: int = 0, dtype: torch.dtype = torch.bfloat16) -> None:
        """Use device `index`; DeviceError when torch sees no such device."""
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise DeviceError(f"no CUDA device {index} is visible; "
                              "run on a node with a GPU, or choose device cpu")
        super().__init__(pin=True)
        self.device = torch.device("cuda", index)
        self.dtype = dtype
        self._handles = itertools.count(1)
        self._streams: dict[int, torch.cuda.Stream] = {0: torch.cuda.default_stream(self.device)}
        self._events: dict[int, torch.cuda.Event] = {}

    def bind_to_thread(self) -> None:
        """Make the CUDA context current in this thread."""
        torch.cuda.set_device(self.device)

    @contextlib.contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """Queue the block's work on `stream`."""
        with torch.cuda.stream(self._stream(stream)):
            yield

    def create_stream(self) -> int:
        """A new stream beside the default one."""
        handle = next(self._handles)
        self._streams[handle] = torch.cuda.Stream(self.device)
        return handle

    def create_event(self) -> int:
        """A new event without timing."""
        handle = next(self._handles)
        self._events[handle] = torch.cuda.Event()
        return handle

    def destroy_event(self, event: int) -> None:
        """Forget the event; the driver frees it once its work is done."""
        self._event(event)
        del self._events[event]

    def record_event(self, event: int, stream: int) -> None:
        """Record behind what is queued."""
        self._event(event).record(self._stream(stream))

    def stream_wait_event(self, stream: int, event: int) -> None:
        """A wait on the device."""
        self._stream(stream).wait_event(self._event(event))

    def event_query(self, event: int) -> bool:
        """Never blocks."""
        return bool(self._event(event).query())

    def event_synchronize(self, event: int) -> None:
        """Blocks the host."""
        self._event(event).synchronize()

    def synchronize(self, stream: int) -> None:
        """Blocks the host."""
        self._stream(stream).synchronize()

    def close(self) -> None:
        """Wait for the device, forget all handles, return cached memory."""
        torch.cuda.synchronize(self.device)
        self.clear()
        self._events.clear()
        self._streams = {0: self._streams[0]}
        torch.cuda.empty_cache()

    def _stream(self, stream: int) -> torch.cuda.Stream:
        if stream not in self._streams:
            raise _unknown("stream", stream)
        return self._streams[stream]

    def _event(self, event: int) -> torch.cuda.Event:
        if event not in self._events:
            raise _unknown("event", event)
        return self._events[event]


def open_backend(
    device: Literal["auto", "cuda", "cpu"], dtype: Literal["auto", "float32", "bfloat16"] = "auto"
) -> GpuBackend:
    """The backend for a setting. `auto` means a GPU: DeviceError without one, never the CPU in its place.

    Dtype `auto` is bfloat16 on CUDA and float32 on the CPU.
    """
    chosen = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(dtype)
    if device == "cpu":
        return CpuBackend(chosen or torch.float32)
    return CudaBackend(0, chosen or torch.bfloat16)


def _unknown(kind: str, handle: int) -> InvalidRequest:
    return InvalidRequest(f"{kind} {handle} does not exist; create it first, or it was destroyed")
