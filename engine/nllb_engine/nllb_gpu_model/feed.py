"""ModelDeviceFeed of NllbGpuModel: token ids that never leave the device between two steps."""

from collections.abc import Sequence

import torch

from nllb_engine.errors import CacheFull, InvalidRequest
from nllb_engine.interface import (
    NO_TOKEN,
    DevicePtr,
    FeedSource,
    HostPtr,
    HostToken,
    PreviousRow,
    RowMask,
    SequenceState,
)
from nllb_engine.lora.promotion import AdapterPromoter
from nllb_engine.nllb_gpu_model import requests
from nllb_engine.nllb_gpu_model.core import ModelCore
from nllb_engine.nllb_gpu_model.forward import NllbForward


class NllbDeviceFeed(NllbForward):
    """One feed cell per row holds the last argmax. Nothing here waits, apart from `event_synchronize`."""

    def __init__(self, core: ModelCore, adapters: AdapterPromoter) -> None:
        """Cells of 0 until the first argmax."""
        super().__init__(core, adapters)
        self._cells = torch.zeros(core.max_batch, dtype=torch.int64, device=core.gpu.device)

    def supports_device_token_feed(self) -> bool:
        """True."""
        return True

    def decode_batch_fed(
        self, sources: Sequence[FeedSource], seqs: Sequence[SequenceState], stream: int = 0
    ) -> DevicePtr:
        """`decode_batch` on ids of the feed cells; the caller commits tokens and lengths."""
        if len(sources) != len(seqs):
            raise InvalidRequest(f"{len(sources)} feed sources for {len(seqs)} sequences; give one each")
        self._check_rows(seqs)
        from_rows = [one.from_row if isinstance(one, PreviousRow) else -1 for one in sources]
        if max(from_rows) >= self.core.max_batch or min(from_rows) < -1:
            raise InvalidRequest(f"a feed source names a row outside 0..{self.core.max_batch - 1}")
        given = [one.token if isinstance(one, HostToken) else 0 for one in sources]
        requests.decoder_tokens(given, self.core.config.vocab_size)
        with self.core.forward_on(stream):
            rows, tokens = torch.tensor([from_rows, given], device=self.core.gpu.device)
            self._decode(torch.where(rows >= 0, self._cells[rows.clamp(min=0)], tokens), seqs)
        return self.core.row_ptr(0)

    def argmax_batch_to_feed(
        self, logits: DevicePtr, masks: Sequence[RowMask], dst: HostPtr, event: int, stream: int = 0
    ) -> None:
        """Masked argmax into the cells and, as uint32, into `dst`."""
        n = len(masks)
        requests.row_count(n, self.core.max_batch)
        cells = [(row, token) for row, mask in enumerate(masks) for token in mask if token != NO_TOKEN]
        requests.decoder_tokens([token for _, token in cells], self.core.config.vocab_size)
        host = self.core.gpu.pinned(dst, 4 * n).view(torch.int32)
        with self.core.work_on(stream):
            scores = self.core.rows_at(logits, n)
            if cells:
                rows, tokens = torch.tensor(cells, device=scores.device).unbind(1)
                scores = scores.index_put((rows, tokens), scores.new_tensor(float("-inf")))
            self._cells[:n] = scores.argmax(dim=-1)
            host.copy_(self._cells[:n].int(), non_blocking=True)
            self.core.gpu.record_event(event, stream)

    def reserve_decode_block(self, seq: SequenceState) -> int:
        """0: a slot has all its rows from the start; CacheFull when they are used up."""
        if seq.seq_len >= self.core.limits.max_rows:
            raise CacheFull(f"a sequence has filled its {self.core.limits.max_rows} rows; "
                            "end it with finish reason length")
        return 0

    def release_decode_blocks(self, seq: SequenceState, blocks: int) -> None:
        """Nothing to return; InvalidRequest when blocks are claimed that were never given."""
        if blocks:
            raise InvalidRequest(f"{blocks} blocks were not given out by reserve_decode_block")

    def event_query(self, event: int) -> bool:
        """Whether the work before `event` has completed."""
        return self.core.gpu.event_query(event)

    def event_synchronize(self, event: int) -> None:
        """Wait for the work before `event`."""
        self.core.gpu.event_synchronize(event)

    def destroy_event(self, event: int) -> None:
        """Forget `event`."""
        self.core.gpu.destroy_event(event)

    def copy_d2h_async(self, src: DevicePtr, dst: memoryview, stream: int = 0) -> None:
        """Copy from the logits buffer; InvalidRequest for other addresses or beyond its end."""
        logits = self.core.logits.view(-1).view(torch.uint8)
        begin = src - self.core.logits.data_ptr()
        if not 0 <= begin <= logits.numel() - dst.nbytes:
            raise InvalidRequest(f"{dst.nbytes} bytes at address {src:#x} do not lie in the logits buffer")
        with self.core.work_on(stream):
            host = torch.frombuffer(dst, dtype=torch.uint8)
            host.copy_(logits[begin : begin + dst.nbytes], non_blocking=True)

    def alloc_host_pinned(self, size: int) -> HostPtr:
        """Zeroed memory that the device writes asynchronously."""
        return self.core.gpu.alloc_pinned(size)

    def free_host_pinned(self, ptr: HostPtr, size: int) -> None:
        """Give it back; InvalidRequest for an unknown address."""
        self.core.gpu.free_pinned(ptr)
