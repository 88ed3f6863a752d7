"""Runs the engine's model and transformers' side by side, for tests of either."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tiny_configs import TinyConfig, reference, save
from transformers import M2M100ForConditionalGeneration

from nllb_engine.backend import CpuBackend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.interface import BeamReq, PrefillSlice, WeightStore
from nllb_engine.lora.store import AdapterStore
from nllb_engine.nllb_gpu_model import NllbGpuModel

EOS = 2


@dataclass(frozen=True)
class Pair:
    """One checkpoint loaded by both."""

    config: TinyConfig
    ours: NllbGpuModel
    theirs: M2M100ForConditionalGeneration


def load_pair(config: TinyConfig, folder: Path, max_batch: int = 16) -> Pair:
    """Make the checkpoint and load it twice, both computing in float32."""
    theirs = reference(config)
    save(theirs, config, folder)
    return Pair(config, load(folder, config, max_batch), theirs)


def load(
    folder: Path, config: TinyConfig, max_batch: int = 16, dtype: torch.dtype = torch.float32
) -> NllbGpuModel:
    """Our model of a folder that `save` wrote."""
    lang = NllbLang(language_ids=frozenset(config.languages))
    return build(folder, lang, max_batch=max_batch, dtype=dtype)


def build(
    folder: Path,
    lang: NllbLang,
    *,
    config: ModelConfig | None = None,
    store: WeightStore | None = None,
    max_seq_len: int = 512,
    max_batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> NllbGpuModel:
    """The constructor, with what a test changes; adapters are kept beside the checkpoint."""
    return NllbGpuModel.new(
        config or ModelConfig.from_folder(folder),
        store or open_checkpoint(folder),
        CpuBackend(dtype),
        lang,
        max_seq_len,
        max_batch,
        max_loras=1,
        adapter_store=AdapterStore(folder / "adapters"),
    )


def greedy(
    model: NllbGpuModel, sources: Sequence[Sequence[int]], src: int, tgt: int, max_new: int
) -> list[list[int]]:
    """Decode all sources in one batch; ids after the target language, the end token included."""
    seqs = []
    for _ in sources:
        seq = model.alloc_sequence()
        seq.src_lang_id, seq.tgt_lang_id = src, tgt
        seqs.append(seq)
    slices = [PrefillSlice.whole(list(source), seq) for source, seq in zip(sources, seqs, strict=True)]
    rows = model.prefill_batch_chunk(slices)
    outputs = [[token] for token in model.argmax_batch(rows[0], len(rows))]
    live = list(range(len(seqs)))
    while live := [i for i in live if outputs[i][-1] != EOS and len(outputs[i]) < max_new]:
        base = model.decode_batch([outputs[i][-1] for i in live], [seqs[i] for i in live])
        for i, token in zip(live, model.argmax_batch(base, len(live)), strict=True):
            outputs[i].append(token)
    for seq in seqs:
        model.free_sequence(seq)
    return outputs


def beams(model: NllbGpuModel, reqs: Sequence[BeamReq]) -> list[list[tuple[list[int], float]]]:
    """Run all searches together; per request its (ids without end token, score), best first."""
    handles = model.beam_begin(reqs)
    while not all(handle.done for handle in handles):
        model.beam_step(handles)
    found = [[(list(one.token_ids), one.score) for one in handle.hypotheses] for handle in handles]
    for handle in handles:
        model.beam_end(handle)
    return found


def their_greedy(
    model: M2M100ForConditionalGeneration, source: Sequence[int], src: int, tgt: int, max_new: int
) -> list[int]:
    """As `greedy`, for one source."""
    ids = torch.tensor([[src, *source, EOS]])
    out: list[int] = model.generate(
        ids, attention_mask=torch.ones_like(ids), forced_bos_token_id=tgt, max_new_tokens=max_new + 1,
        do_sample=False, num_beams=1,
    )[0].tolist()  # fmt: skip
    return out[2:]


def their_beams(
    model: M2M100ForConditionalGeneration, source: Sequence[int], req: BeamReq
) -> list[tuple[list[int], float]]:
    """As `beams`, for one source."""
    ids = torch.tensor([[req.src_lang_id, *source, EOS]])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), forced_bos_token_id=req.tgt_lang_id,
        max_new_tokens=req.max_new + 1, do_sample=False, num_beams=req.num_beams,
        length_penalty=req.length_penalty, early_stopping=req.early_stopping,
        num_return_sequences=req.num_beams, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    found = []
    for beam, row in enumerate(out.sequences.tolist()):
        length = int((out.beam_indices[beam] >= 0).sum())
        tokens = row[2 : 1 + length]
        found.append((tokens[:-1] if tokens[-1:] == [EOS] else tokens, float(out.sequences_scores[beam])))
    return found
