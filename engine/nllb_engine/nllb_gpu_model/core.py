"""ModelCore: what the capabilities of NllbGpuModel share: weights, caches, logits rows, and the two forwards.

Knows slots, rows and addresses. Must not know requests or sequences: it is told which slot stands at which
row. Everything here runs in the worker thread.
"""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from nllb_engine.backend import GpuBackend
from nllb_engine.checkpoint import WeightReader
from nllb_engine.config import PROMPT_ROWS, ModelConfig, NllbLang, cache_rows
from nllb_engine.errors import CheckpointError, InvalidRequest, TokenizerError
from nllb_engine.interface import DevicePtr, Limits, WeightStore
from nllb_engine.kv_cache import (
    CrossBatch,
    CrossKv,
    SelfKvCache,
    SlotPool,
    gather_sources,
    padding_mask,
    split_sources,
)
from nllb_engine.layers import RowAdapters
from nllb_engine.model import TIED_NAMES, NllbModel


class ModelCore:
    """The loaded model on its device.

    Logits live in one buffer of 2 · max_batch rows: decode rows first, prefill rows behind them. A row is
    valid until the next forward of its kind.
    """

    def __init__(
        self,
        config: ModelConfig,
        store: WeightStore,
        gpu: GpuBackend,
        lang: NllbLang,
        max_seq_len: int,
        max_batch: int,
    ) -> None:
        """Load the weights and allocate all memory that lives as long as the model."""
        _require_bf16(store)
        if lang.language_ids and max(lang.language_ids) >= config.vocab_size:
            raise TokenizerError(f"language id {max(lang.language_ids)} is outside the model's vocabulary of "
                                 f"{config.vocab_size}; tokenizer and weights are of different models")
        self.config, self.gpu, self.lang = config, gpu, lang
        self.max_batch = max(1, max_batch)
        self.network = NllbModel(config, WeightReader(store, gpu.device, gpu.dtype))
        self.slots = SlotPool(self.max_batch)
        self.self_kv = SelfKvCache(
            config.decoder.layers, self.max_batch, cache_rows(max_seq_len), config.decoder.heads,
            config.decoder_head_dim, gpu.device, gpu.dtype,
        )  # fmt: skip
        shape = (2 * self.max_batch, config.vocab_size)
        self.logits = torch.empty(shape, device=gpu.device, dtype=gpu.dtype)
        self.hidden = torch.empty((self.max_batch, config.d_model), device=gpu.device, dtype=gpu.dtype)
        self.has_hidden = False
        self.closed = False
        self.written_on = 0
        self._gathered: list[tuple[list[CrossKv], CrossBatch]] = []

    @property
    def limits(self) -> Limits:
        """Bounds of a request; the network has no position beyond max_position_embeddings."""
        positions = self.config.max_position_embeddings
        return Limits(
            max_batch=self.max_batch,
            max_source_tokens=positions - 2,
            max_rows=min(self.self_kv.rows, positions),
            eos_token_id=self.config.eos_token_id,
        )

    @contextmanager
    def forward_on(self, stream: int) -> Iterator[None]:
        """A forward on `stream`, which writes logits; InvalidRequest after teardown."""
        with self.work_on(stream):
            self.written_on = stream
            yield

    @contextmanager
    def work_on(self, stream: int) -> Iterator[None]:
        """Work on `stream` that writes no logits; InvalidRequest after teardown."""
        if self.closed:
            raise InvalidRequest("the model was torn down; build a new one")
        with torch.inference_mode(), self.gpu.on_stream(stream):
            yield

    def prefill(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[int],
        slots: Sequence[int],
        adapters: Sequence[int],
        first_row: int,
    ) -> list[CrossKv]:
        """Encode whole sources in one padded batch and run the decoder's prompt.

        Source i (with language and end token) goes to slots[i] and its logits to row `first_row` + i.
        """
        device = self.gpu.device
        lengths = [len(source) for source in sources]
        longest, pad = max(lengths), self.config.pad_token_id
        padded = [[*source, *[pad] * (longest - len(source))] for source in sources]
        ids = torch.tensor(padded, device=device)
        mask = padding_mask(lengths, device, self.gpu.dtype)
        rows = RowAdapters.of(adapters, device)
        kv = self.network.cross_kv(self.network.encode(ids, mask, rows), rows)
        start = self.config.decoder_start_token_id
        prompts = torch.tensor([[start, target] for target in targets], device=device)
        own = self.self_kv.begin(slots, [0] * len(slots), PROMPT_ROWS)
        hidden = self.network.decode(prompts, own, CrossBatch(kv, mask), rows)
        self.network.logits(hidden, self.logits[first_row : first_row + len(sources)])
        return split_sources(kv, lengths)

    def decode(
        self,
        ids: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        crosses: Sequence[CrossKv],
        adapters: Sequence[int],
    ) -> Tensor:
        """One token ids[i] (int64, on the device) at row starts[i] of slots[i]; returns `[n, vocab]`.

        Rows that share a source must follow one another.
        """
        n = len(slots)
        own = self.self_kv.begin(slots, starts, 1)
        rows = RowAdapters.of(adapters, self.gpu.device)
        hidden = self.network.decode(ids[:, None], own, self._gather(crosses), rows)
        self.hidden[:n] = hidden
        self.has_hidden = True
        return self.network.logits(hidden, self.logits[:n])

    def _gather(self, crosses: Sequence[CrossKv]) -> CrossBatch:
        """The padded sources of these rows, kept while the rows stay the same, step after step.

        Two batches are kept, because a step has one forward for greedy rows and one for beams.
        """
        for index, (key, batch) in enumerate(self._gathered):
            if len(key) == len(crosses) and all(map(operator.is_, key, crosses)):
                self._gathered.insert(0, self._gathered.pop(index))
                return batch
        batch = gather_sources(crosses)
        self._gathered = [(list(crosses), batch), *self._gathered[:1]]
        return batch

    def drop_source(self, cross: CrossKv | None) -> None:
        """A source has ended: give its share of the padded batches back too."""
        self._gathered = [one for one in self._gathered if all(cross is not kept for kept in one[0])]

    def row_ptr(self, row: int) -> DevicePtr:
        """Address of logits row `row`."""
        return DevicePtr(self.logits.data_ptr() + row * self.row_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one logits row."""
        return self.config.vocab_size * self.logits.element_size()

    def rows_at(self, ptr: DevicePtr, n: int) -> Tensor:
        """The `n` logits rows from address `ptr` on; InvalidRequest when they are not in the buffer."""
        row, rest = divmod(ptr - self.logits.data_ptr(), self.row_bytes)
        if self.closed or rest or n < 1 or row < 0 or row + n > self.logits.shape[0]:
            raise InvalidRequest(f"{n} logits rows from address {ptr:#x} do not lie in the logits buffer; "
                                 "use the address that a forward returned")
        return self.logits[row : row + n]

    def close(self) -> None:
        """Release weights, caches and buffers."""
        self.closed = True
        self.has_hidden = False
        self._gathered = []
        self.self_kv.release()
        self.logits = self.hidden = torch.empty(0)
        del self.network
        self.gpu.close()


def _require_bf16(store: WeightStore) -> None:
    names = frozenset(store.names())
    saved = next((name for name in TIED_NAMES if name in names), None)
    if saved is None:
        raise CheckpointError(f"the checkpoint has no embedding; one of {', '.join(TIED_NAMES)} is needed")
    if store.dtype(saved) != torch.bfloat16:
        raise CheckpointError(
            f"{saved} is {store.dtype(saved)}, not bfloat16; open a copy made by "
            "nllb_engine.convert.bf16_checkpoint, as the server does at its start"
        )
