"""Prefill, decode and mixed forwards, beam search to completion, and questions about the model's shape."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface.streams import ModelStreams
from nllb_engine.interface.values import (
    BeamReq,
    DevicePtr,
    MixedBatchResult,
    MixedForwardResult,
    PrefillSlice,
    SequenceState,
)


class ModelForward(ModelStreams, ABC):
    """Forward passes. All calls come from one worker thread; `stream` 0 is the default stream.

    For an encoder-decoder "the prompt" is the source: plain pieces, to which the model adds the sequence's
    source language and the end token.
    """

    @abstractmethod
    def decode_batch(
        self, tokens: Sequence[int], seqs: Sequence[SequenceState], stream: int = 0
    ) -> DevicePtr:
        """One step: append tokens[i] to seqs[i], write its KV row, and compute its next logits.

        Returns the base of `[n, vocab]`; row i belongs to seqs[i], whose KV is found by slot_idx. Rows may
        differ in length, languages and adapter. Errors, which change no sequence: InvalidRequest when n is 0,
        differs from len(tokens) or exceeds max_batch, or a token is outside the vocabulary; CacheFull when a
        sequence has no row left. No default in the seed.
        """

    @abstractmethod
    def prefill(self, tokens: Sequence[int], seq: SequenceState, stream: int = 0) -> DevicePtr:
        """Run the whole prompt; returns its last position's logits row (here: the first translated token).

        Sets seq.tokens to start and target language. Errors: InvalidRequest (empty, ids out of range, too
        many positions, unknown language id). No default in the seed.
        """

    @abstractmethod
    def prefill_chunk(
        self,
        tokens: Sequence[int],
        seq: SequenceState,
        chunk_start: int,
        chunk_len: int,
        is_last_chunk: bool,
        stream: int = 0,
    ) -> DevicePtr:
        """Run `chunk_len` prompt tokens from `chunk_start`; only the last chunk gives logits, others NULL.

        An encoder sees the whole source at once: earlier chunks are kept and run with the last one. Errors:
        InvalidRequest when chunks do not follow one another or do not end with the prompt. No default.
        """

    @abstractmethod
    def decode(self, token: int, seq: SequenceState, stream: int = 0) -> DevicePtr:
        """`decode_batch` of one sequence; returns its logits row. No default in the seed."""

    def supports_beam(self) -> bool:
        """Whether `generate_beam_batch` works. Seed's default: False."""
        return False

    def generate_beam_batch(self, reqs: Sequence[BeamReq]) -> list[list[int]]:
        """Run each beam search to its end; returns each best hypothesis.

        As in the seed a list starts with the target language and ends with the end token, even when it was
        cut by length. Errors: InvalidRequest, CacheFull. Seed's default: an error.
        """
        raise UnsupportedByModel("generate_beam_batch")

    def mixed_forward(
        self,
        decode_tokens: Sequence[int],
        decode_seqs: Sequence[SequenceState],
        prefill_tokens: Sequence[int],
        prefill_seq: SequenceState,
        prefill_chunk_start: int,
        prefill_chunk_len: int,
        prefill_is_last: bool,
        stream: int = 0,
    ) -> MixedForwardResult:
        """One decode step for `decode_seqs` and one prefill chunk.

        Seed's default: `decode_batch` when there are decode tokens (else NULL), then `prefill_chunk`.
        """
        decoded = self.decode_batch(decode_tokens, decode_seqs, stream) if decode_tokens else DevicePtr(0)
        prefilled = self.prefill_chunk(prefill_tokens, prefill_seq, prefill_chunk_start, prefill_chunk_len,
                                       prefill_is_last, stream)
        return MixedForwardResult(decoded, prefilled)

    def prefill_batch_chunk(self, streams: Sequence[PrefillSlice], stream: int = 0) -> list[DevicePtr]:
        """One chunk for each of `streams`; returns per stream its logits row, or NULL before its last chunk.

        Seed's default: `prefill_chunk` per stream.
        """
        return [
            self.prefill_chunk(one.tokens, one.seq, one.chunk_start, one.chunk_len, one.is_last_chunk, stream)
            for one in streams
        ]

    def prefill_batch_chunk_rows(
        self, streams: Sequence[PrefillSlice], stream: int = 0, row_base: int = 0
    ) -> list[DevicePtr]:
        """`prefill_batch_chunk` with stream i's logits in row `row_base` + i of the decode rows' buffer.

        Seed's default: `prefill_batch_chunk`, the row base ignored.
        """
        return self.prefill_batch_chunk(streams, stream)

    def mixed_forward_batch(
        self,
        decode_tokens: Sequence[int],
        decode_seqs: Sequence[SequenceState],
        prefill_streams: Sequence[PrefillSlice],
        stream: int = 0,
    ) -> MixedBatchResult:
        """One decode step for `decode_seqs` and one chunk for each of `prefill_streams`.

        Seed's default: `decode_batch`, a synchronise of the default stream, then `prefill_batch_chunk_rows`
        behind the decode rows.
        """
        decoded = self.decode_batch(decode_tokens, decode_seqs, stream) if decode_tokens else DevicePtr(0)
        self.synchronize(self.default_stream())
        prefilled = self.prefill_batch_chunk_rows(prefill_streams, stream, len(decode_tokens))
        return MixedBatchResult(decoded, prefilled)

    def normalize_ssm_states(self, seq: SequenceState, stream: int = 0) -> None:
        """Normalise the recurrent state between chunks. Seed's default: nothing."""
        return None

    def prefill_twophase(
        self, tokens: Sequence[int], seq: SequenceState, chunk_size: int, stream: int = 0
    ) -> DevicePtr:
        """Prefill in one call, cut at `chunk_size` where a model does. Seed's default: one chunk over all."""
        return self.prefill_chunk(tokens, seq, 0, len(tokens), True, stream)

    def is_mla(self) -> bool:
        """Whether a chunked prefill must be one chunk (latent attention). Seed's default: False."""
        return False

    def hc_mult(self) -> int:
        """Number of hyper-connection streams. Seed's default: 0, none."""
        return 0

    def kv_block_size(self) -> int | None:
        """Tokens per paged KV block, None without paging. Seed's default: None."""
        return None

    def prefill_tail_split(self, tokens: Sequence[int]) -> int | None:
        """Token at which a prefill is cut for a state snapshot, None for no cut. Seed's default: None."""
        return None
