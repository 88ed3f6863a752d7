"""The device token feed: the next step's ids stay on the device and the host runs one step ahead.

Knows addresses and events as integers only.
"""

from collections.abc import Sequence

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface.values import DevicePtr, FeedSource, HostPtr, RowMask, SequenceState


class ModelDeviceFeed:
    """Fed decode steps, masked argmax into feed cells, and the pinned memory and events they need."""

    def supports_device_token_feed(self) -> bool:
        """Whether fed steps and `argmax_batch_to_feed` work. Seed's default: False."""
        return False

    def decode_batch_fed(
        self, sources: Sequence[FeedSource], seqs: Sequence[SequenceState], stream: int = 0
    ) -> DevicePtr:
        """`decode_batch` with each row's id read on the device from `sources[i]`.

        Position seq.seq_len is written, but neither is the token pushed nor seq_len advanced: the caller does
        both when the step is committed. Seed's default: an error.
        """
        raise UnsupportedByModel("decode_batch_fed")

    def argmax_batch_to_feed(
        self, logits: DevicePtr, masks: Sequence[RowMask], dst: HostPtr, event: int, stream: int = 0
    ) -> None:
        """Argmax of len(masks) rows, never picking a row's masked ids; writes the feed cells.

        Copies the ids to the pinned `dst` (4 bytes each) on `stream` and records `event`; never waits, and
        `dst` is valid once `event` has completed. Seed's default: an error.
        """
        raise UnsupportedByModel("argmax_batch_to_feed")

    def reserve_decode_block(self, seq: SequenceState) -> int:
        """Allocate the block for position seq.seq_len if it is missing; returns blocks added, 0 or 1.

        Errors: CacheFull. Seed's default: an error.
        """
        raise UnsupportedByModel("reserve_decode_block")

    def release_decode_blocks(self, seq: SequenceState, blocks: int) -> None:
        """Return the last `blocks` blocks, added for a step that was discarded. Seed's default: an error."""
        raise UnsupportedByModel("release_decode_blocks")

    def fed_step_settled(self) -> None:
        """A fed step has completed: the graph it replayed may be evicted. Seed's default: nothing."""
        return None

    def event_query(self, event: int) -> bool:
        """Whether the work before `event` has completed; never blocks. Seed's default: True."""
        return True

    def event_synchronize(self, event: int) -> None:
        """Block the host until the work before `event` has completed. Seed's default: nothing."""
        return None

    def destroy_event(self, event: int) -> None:
        """Forget `event`. Seed's default: nothing."""
        return None

    def copy_d2h_async(self, src: DevicePtr, dst: memoryview, stream: int = 0) -> None:
        """Copy len(dst) bytes to the host on `stream`; leave `dst` alone until it is synchronised.

        Seed's default: an error.
        """
        raise UnsupportedByModel("copy_d2h_async")

    def alloc_host_pinned(self, size: int) -> HostPtr:
        """`size` zeroed bytes of page-locked host memory. Seed's default: an error."""
        raise UnsupportedByModel("alloc_host_pinned")

    def free_host_pinned(self, ptr: HostPtr, size: int) -> None:
        """Give back memory of `alloc_host_pinned`. Seed's default: an error."""
        raise UnsupportedByModel("free_host_pinned")
