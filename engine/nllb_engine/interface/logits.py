"""Reading a forward's output. Addresses are those that forwards returned, or base + row · row bytes."""

from abc import ABC, abstractmethod

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface.values import DevicePtr


class ModelLogits(ABC):
    """Rows of logits on the device: `vocab_size` elements each, bfloat16 unless `logits_ptr_is_fp32`."""

    @abstractmethod
    def vocab_size(self) -> int:
        """Elements of one logits row. No default in the seed."""

    @abstractmethod
    def copy_logits_to_host(self, logits_ptr: DevicePtr, dst: bytearray | memoryview) -> None:
        """Copy one row into `dst`: vocab_size · 2 bytes for bfloat16, · 4 for float32.

        Waits for the forward that wrote the row. Errors: InvalidRequest for an address that is no row or a
        `dst` of another length. No default in the seed.
        """

    @abstractmethod
    def logits_buffer_ptr(self) -> DevicePtr:
        """Base of the logits buffer, row 0 of the decode rows. No default in the seed."""

    @abstractmethod
    def argmax_on_device(self, logits_ptr: DevicePtr, stream: int = 0) -> int:
        """Argmax of one row, computed on the device; of equal logits the lowest id. No default."""

    @abstractmethod
    def argmax_batch(self, logits_ptr: DevicePtr, n: int, stream: int = 0) -> list[int]:
        """Argmax of each of `n` consecutive rows. Errors: InvalidRequest beyond the buffer. No default."""

    @abstractmethod
    def hidden_after_norm(self) -> DevicePtr:
        """Hidden state of the last decode step after the final norm: rows · d_model elements, NULL before.

        No default in the seed.
        """

    def logits_ptr_is_fp32(self, logits_ptr: DevicePtr) -> bool:
        """Whether the row holds float32 (4 bytes per element). Seed's default: False."""
        return False

    def decode_logits_fp32(self) -> bool:
        """Whether decode writes float32 logits. Seed's default: False."""
        return False

    def decode_logits_ptr(self) -> DevicePtr:
        """The row that the last single decode wrote. The seed's default panics; ours raises."""
        raise UnsupportedByModel("decode_logits_ptr")
