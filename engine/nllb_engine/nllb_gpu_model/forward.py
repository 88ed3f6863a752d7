"""ModelForward of NllbGpuModel: batched prefill and decode over sequences. Beams are in beams.py."""

from collections.abc import Sequence

import torch

from nllb_engine.config import PROMPT_ROWS
from nllb_engine.errors import CacheFull, InvalidRequest
from nllb_engine.interface import NULL, DevicePtr, PrefillSlice, SequenceState
from nllb_engine.kv_cache import CrossKv
from nllb_engine.nllb_gpu_model import requests
from nllb_engine.nllb_gpu_model.base import NllbBase


class NllbForward(NllbBase):
    """Every forward is one batch: rows may differ in length, languages and adapter."""

    def prefill(self, tokens: Sequence[int], seq: SequenceState, stream: int = 0) -> DevicePtr:
        """The whole source at once; the row is the sequence's own, so another prefill leaves it alone."""
        row = self.core.max_batch + seq.slot_idx % self.core.max_batch
        return self._prefill([PrefillSlice.whole(list(tokens), seq)], stream, row)[0]

    def prefill_chunk(
        self,
        tokens: Sequence[int],
        seq: SequenceState,
        chunk_start: int,
        chunk_len: int,
        is_last_chunk: bool,
        stream: int = 0,
    ) -> DevicePtr:
        """Chunks before the last only mark progress, because an encoder needs the whole source."""
        row = self.core.max_batch + seq.slot_idx % self.core.max_batch
        chunk = PrefillSlice(list(tokens), seq, chunk_start, chunk_len, is_last_chunk)
        return self._prefill([chunk], stream, row)[0]

    def prefill_batch_chunk(self, streams: Sequence[PrefillSlice], stream: int = 0) -> list[DevicePtr]:
        """All last chunks in one padded batch; their rows follow one another."""
        return self._prefill(streams, stream, self.core.max_batch)

    def prefill_batch_chunk_rows(
        self, streams: Sequence[PrefillSlice], stream: int = 0, row_base: int = 0
    ) -> list[DevicePtr]:
        """`prefill_batch_chunk` into the rows behind `row_base` decode rows."""
        return self._prefill(streams, stream, row_base)

    def decode(self, token: int, seq: SequenceState, stream: int = 0) -> DevicePtr:
        """A batch of one."""
        return self.decode_batch([token], [seq], stream)

    def decode_batch(
        self, tokens: Sequence[int], seqs: Sequence[SequenceState], stream: int = 0
    ) -> DevicePtr:
        """One forward over all rows; nothing changes when it is refused."""
        if len(tokens) != len(seqs):
            raise InvalidRequest(f"{len(tokens)} tokens for {len(seqs)} sequences; give one each")
        self._check_rows(seqs)
        requests.decoder_tokens(tokens, self.core.config.vocab_size)
        with self.core.forward_on(stream):
            self._decode(torch.tensor(tokens, device=self.core.gpu.device), seqs)
        for token, seq in zip(tokens, seqs, strict=True):
            seq.tokens.append(token)
            seq.seq_len += 1
        return self.core.row_ptr(0)

    def kv_block_size(self) -> int | None:
        """Rows of one block."""
        return self.core.self_kv.rows

    def _check_rows(self, seqs: Sequence[SequenceState]) -> None:
        requests.row_count(len(seqs), self.core.max_batch)
        if len({seq.slot_idx for seq in seqs}) < len(seqs):
            raise InvalidRequest("a sequence stands twice in the batch")
        for seq in seqs:
            if not self.core.slots.owns(seq.slot_idx, seq) or seq.slot_idx not in self._sources:
                raise InvalidRequest(f"the sequence of slot {seq.slot_idx} was not prefilled, or was freed")
            if seq.seq_len >= self.core.limits.max_rows:
                raise CacheFull(f"a sequence has filled its {self.core.limits.max_rows} rows; "
                                "end it with finish reason length")

    def _decode(self, ids: torch.Tensor, seqs: Sequence[SequenceState]) -> None:
        self.core.decode(
            ids,
            [seq.slot_idx for seq in seqs],
            [seq.seq_len for seq in seqs],
            [self._sources[seq.slot_idx] for seq in seqs],
            [seq.acquired_adapter_slot for seq in seqs],
        )

    def _prefill(self, streams: Sequence[PrefillSlice], stream: int, first_row: int) -> list[DevicePtr]:
        requests.row_count(len(streams), self.core.max_batch)
        if not 0 <= first_row <= self.core.logits.shape[0] - len(streams):
            raise InvalidRequest(f"row base {first_row} leaves no room for {len(streams)} rows of logits")
        last = [one for one in streams if self._check_chunk(one)]
        config, lang, limits = self.core.config, self.core.lang, self.core.limits
        sources = [
            requests.encoder_input(one.tokens, one.seq.src_lang_id, config, lang, limits) for one in last
        ]
        targets = [requests.target_language(one.seq.tgt_lang_id, config, lang) for one in last]
        for one in streams:
            self._chunks[one.seq.slot_idx] = 0 if one.is_last_chunk else one.chunk_start + one.chunk_len
        if not last:
            return [NULL] * len(streams)
        self._acquire_adapters([one.seq for one in last])
        with self.core.forward_on(stream):
            crosses = self.core.prefill(
                sources,
                targets,
                [one.seq.slot_idx for one in last],
                [one.seq.acquired_adapter_slot for one in last],
                first_row,
            )
        for one, target, cross in zip(last, targets, crosses, strict=True):
            self._begin(one.seq, target, cross)
        rows = iter(range(first_row, first_row + len(last)))
        return [self.core.row_ptr(next(rows)) if one.is_last_chunk else NULL for one in streams]

    def _begin(self, seq: SequenceState, target: int, cross: CrossKv) -> None:
        self.core.drop_source(self._sources.get(seq.slot_idx))
        self._sources[seq.slot_idx] = cross
        seq.tokens = [self.core.config.decoder_start_token_id, target]
        seq.seq_len = seq.prompt_len = PROMPT_ROWS

    def _acquire_adapters(self, seqs: Sequence[SequenceState]) -> None:
        for seq in seqs:
            if seq.acquired_adapter_slot < 0:
                seq.acquired_adapter_slot = self._acquire_adapter(seq.adapter_slot)
            slot = seq.acquired_adapter_slot
            seq.adapter_id = self.adapter_id_for(slot) if slot >= 0 else 0

    def _check_chunk(self, one: PrefillSlice) -> bool:
        """Whether the slice completes its source; InvalidRequest when it does not follow the one before."""
        if not self.core.slots.owns(one.seq.slot_idx, one.seq):
            raise InvalidRequest(f"the sequence of slot {one.seq.slot_idx} was freed; allocate a new one")
        expected, end = self._chunks.get(one.seq.slot_idx, 0), one.chunk_start + one.chunk_len
        if one.chunk_start not in (0, expected) or one.chunk_len < 0 or end > len(one.tokens):
            raise InvalidRequest(f"the chunk {one.chunk_start}..{end} does not follow {expected} "
                                 f"in a source of {len(one.tokens)} tokens")
        if one.is_last_chunk and end != len(one.tokens):
            raise InvalidRequest(f"the last chunk ends at {end} of {len(one.tokens)} tokens; send the rest")
        return one.is_last_chunk
