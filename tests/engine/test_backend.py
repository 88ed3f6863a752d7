"""Devices by setting; handles of the CPU backend. The CUDA backend runs where there is a GPU."""

import pytest
import torch

from nllb_engine.backend import CpuBackend, CudaBackend, DeviceError, open_backend
from nllb_engine.errors import InvalidRequest


@pytest.mark.parametrize(
    ("dtype", "chosen"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_the_cpu_computes_in_the_asked_dtype(dtype, chosen):
    assert open_backend("cpu", dtype).dtype == chosen


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_no_gpu_is_an_error_and_never_the_cpu(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="choose device cpu"):
        open_backend(device)


def test_handles_live_from_creation_to_destruction():
    backend = CpuBackend()
    event = backend.create_event()
    assert backend.event_query(event)
    backend.record_event(event, backend.create_stream())
    backend.destroy_event(event)
    for call in (backend.event_query, backend.event_synchronize, backend.destroy_event):
        with pytest.raises(InvalidRequest, match=f"event {event}"):
            call(event)
    with pytest.raises(InvalidRequest, match="stream 77"):
        backend.on_stream(77)
    backend.bind_to_thread()


def test_pinned_memory_is_found_by_any_address_inside_it():
    backend = CpuBackend()
    ptr = backend.alloc_pinned(16)
    backend.pinned(ptr + 4, 8).fill_(7)
    assert backend.pinned(ptr, 16).tolist() == [0] * 4 + [7] * 8 + [0] * 4
    with pytest.raises(InvalidRequest):
        backend.pinned(ptr + 9, 8)
    backend.free_pinned(ptr)
    with pytest.raises(InvalidRequest):
        backend.free_pinned(ptr)


def test_closing_forgets_everything():
    backend = CpuBackend()
    ptr, stream = backend.alloc_pinned(4), backend.create_stream()
    backend.close()
    with pytest.raises(InvalidRequest):
        backend.pinned(ptr, 4)
    with pytest.raises(InvalidRequest):
        backend.synchronize(stream)
    backend.synchronize(0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_events_complete_after_the_work_before_them():
    backend = CudaBackend()
    stream, event = backend.create_stream(), backend.create_event()
    ptr = backend.alloc_pinned(4)
    with backend.on_stream(stream):
        backend.pinned(ptr, 4).view(torch.int32).copy_(torch.ones(1, device="cuda").int(), non_blocking=True)
    backend.record_event(event, stream)
    backend.event_synchronize(event)
    assert backend.event_query(event)
    assert backend.pinned(ptr, 4).view(torch.int32).item() == 1
