"""ModelLogits and ModelStreams of NllbGpuModel: reading rows, and the backend's streams by number."""

import torch

from nllb_engine.errors import InvalidRequest
from nllb_engine.interface import NULL, DevicePtr
from nllb_engine.nllb_gpu_model.base import NllbBase


class NllbStreams(NllbBase):
    """Streams and events of the backend."""

    def create_stream(self) -> int:
        """A new stream's handle."""
        return self.core.gpu.create_stream()

    def create_event(self) -> int:
        """A new event's handle."""
        return self.core.gpu.create_event()

    def record_event(self, event: int, stream: int) -> None:
        """Record `event` behind the work of `stream`; InvalidRequest for an unknown handle."""
        self.core.gpu.record_event(event, stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Make `stream` wait for `event`; InvalidRequest for an unknown handle."""
        self.core.gpu.stream_wait_event(stream, event)

    def synchronize(self, stream: int) -> None:
        """Wait for `stream`; InvalidRequest for an unknown handle."""
        self.core.gpu.synchronize(stream)


class NllbLogits(NllbBase):
    """Rows of the logits buffer, bfloat16 or float32 as the backend computes."""

    def vocab_size(self) -> int:
        """Rows of the embedding, as config.json says."""
        return self.core.config.vocab_size

    def copy_logits_to_host(self, logits_ptr: DevicePtr, dst: bytearray | memoryview) -> None:
        """Copy one row, byte for byte."""
        row = self.core.rows_at(logits_ptr, 1)[0]
        size = dst.nbytes if isinstance(dst, memoryview) else len(dst)
        if size != self.core.row_bytes:
            raise InvalidRequest(f"the destination has {size} bytes, a logits row {self.core.row_bytes}")
        with self.core.work_on(self.core.written_on):
            torch.frombuffer(dst, dtype=torch.uint8).copy_(row.view(torch.uint8))

    def logits_buffer_ptr(self) -> DevicePtr:
        """Row 0 of the decode rows."""
        return self.core.row_ptr(0)

    def argmax_on_device(self, logits_ptr: DevicePtr, stream: int = 0) -> int:
        """Argmax of one row."""
        return self.argmax_batch(logits_ptr, 1, stream)[0]

    def argmax_batch(self, logits_ptr: DevicePtr, n: int, stream: int = 0) -> list[int]:
        """Argmax of `n` rows in one launch; waits for the result."""
        with self.core.work_on(stream):
            best: list[int] = self.core.rows_at(logits_ptr, n).argmax(dim=-1).tolist()
        return best

    def hidden_after_norm(self) -> DevicePtr:
        """`[rows, d_model]` of the last decode step, in the compute dtype."""
        return DevicePtr(self.core.hidden.data_ptr()) if self.core.has_hidden else NULL

    def logits_ptr_is_fp32(self, logits_ptr: DevicePtr) -> bool:
        """True when the backend computes in float32."""
        return self.decode_logits_fp32()

    def decode_logits_fp32(self) -> bool:
        """True when the backend computes in float32."""
        return self.core.gpu.dtype == torch.float32

    def decode_logits_ptr(self) -> DevicePtr:
        """Row 0 of the decode rows."""
        return self.core.row_ptr(0)
