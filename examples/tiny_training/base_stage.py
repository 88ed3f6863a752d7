"""Trains the base model, rounds it to bf16, writes the NLLB folder and checks it on held-out texts.

Knows NLLB's configuration fields. Must not know adapters.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tiny_grammar import LANGUAGES, ambiguous, hard, held_out, held_out_long
from transformers import GenerationConfig, M2M100Config, M2M100ForConditionalGeneration
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

from .fitting import Checkpoint, Plan, fit
from .pool import Order, draw_pool, pieces
from .scoring import Job, Translator, accuracy, beam_report, directions, overlap, permitted_pairs

SPECIAL: dict[str, Any] = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def language_ids(tokenizer: Path) -> dict[str, int]:
    """Every NLLB language's token id, as the pieces' number fixes it."""
    first = pieces(tokenizer).get_piece_size() + 1
    return {code: first + place for place, code in enumerate(FAIRSEQ_LANGUAGE_CODES)}


def configuration(tokenizer: Path) -> Any:
    """The tiny model's shape: 3 + 3 layers of width 256, 4 heads of 64."""
    fields: Any = M2M100Config
    return fields(
        vocab_size=pieces(tokenizer).get_piece_size() + 2 + len(FAIRSEQ_LANGUAGE_CODES),
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        dropout=0.0,
        attention_dropout=0.0,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        scale_embedding=True,
        max_position_embeddings=1024,
        tokenizer_class="NllbTokenizer",
        **SPECIAL,
    )


def load_model(folder: Path, device: str) -> Any:
    """The folder's M2M100ForConditionalGeneration in float32."""
    loader: Any = M2M100ForConditionalGeneration
    return loader.from_pretrained(folder, dtype=torch.float32).to(device).eval()


def write_model(model: Any, folder: Path) -> None:
    """Round to bf16 in place and write config.json, generation_config.json, model.safetensors."""
    model.to(torch.bfloat16)
    defaults: Any = GenerationConfig
    model.generation_config = defaults(max_length=200, **SPECIAL)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)


def check(model: Any, tokenizer: Path, pairs: NDArray[np.bool_], count: int) -> dict[str, Any]:
    """Exact matches of all directions on `count` held-out texts each, beams, and the overlap with the pairs
    of content words of training (bool [words, words]) and with all that any training may hold.
    """
    translator = Translator(
        model, tokenizer, language_ids(tokenizer), 4096 if model.device.type == "cuda" else 64
    )
    few = max(1, count // 10)
    long = {language: held_out_long(language, "evaluation", few) for language in LANGUAGES}
    texts = {
        language: held_out(language, "evaluation", count - few) + long[language] for language in LANGUAGES
    }
    jobs = [Job(sentence, target) for source, target in directions() for sentence in texts[source]]
    report: dict[str, Any] = {"texts_per_direction": count}
    sentences = [sentence for chosen in texts.values() for sentence in chosen]
    for name, found in (("", pairs), ("_by_rule", permitted_pairs())):
        report[f"overlap{name}"] = overlap(sentences, found)
        report[f"training_pairs{name}"] = int(found.sum()) // 2
    print({key: value for key, value in report.items() if "overlap" in key or "pairs" in key}, flush=True)
    exact = accuracy(translator, jobs)
    report["exact"] = {f"{source}-{target}": round(share, 4) for (source, target), share in exact.items()}
    report["worst"], report["mean"] = min(exact.values()), sum(exact.values()) / len(exact)
    jobs = [Job(sentence, target) for source, target in directions() for sentence in long[source]]
    shares = accuracy(translator, jobs).values()
    report["long"] = {"texts_per_direction": few, "worst": min(shares), "mean": sum(shares) / len(shares)}
    print(report["worst"], report["mean"], report["long"], flush=True)
    report["beam"] = beam_report(
        translator,
        [
            Job(sentence, target)
            for source, target in directions()
            for sentence in hard(source, 0, few // 5 + 1)
        ],
        [
            Job(sentence, target)
            for source, target in directions()
            for sentence in ambiguous(source, 0, few // 5 + 1)
        ],
    )
    return report


def run(arguments: argparse.Namespace, device: str, workers: int) -> dict[str, Any]:
    """The stage `base`; returns its report."""
    torch.backends.cuda.matmul.allow_tf32 = True
    order = Order(arguments.model, f"base {arguments.seed}", arguments.texts or 600_000, long=arguments.long)
    pool = draw_pool(order, device, workers)
    print("pool:", {width: len(part) for width, part in pool.parts.items()}, flush=True)
    ids = language_ids(arguments.model)
    languages = torch.tensor([ids[code] for code in LANGUAGES], device=device)
    if arguments.go_on:
        model: Any = load_model(arguments.model, device)
    else:
        model = M2M100ForConditionalGeneration(configuration(arguments.model))
        model.to(device)
    arguments.work.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        arguments.steps or 20_000,
        arguments.seconds or 540.0,
        arguments.tokens or 65_536,
        6e-4 if arguments.go_on else 2e-3,
        arguments.seed,
    )
    checkpoint = Checkpoint(arguments.work / "base.pt", plan, order, model)
    steps = fit(model, pool, languages, plan, checkpoint)
    out = arguments.out or arguments.model
    write_model(model, out)
    loaded = load_model(out, device)
    return {"steps": steps, "parameters": sum(p.numel() for p in loaded.parameters())} | check(
        loaded, arguments.model, pool.pairs, arguments.check
    )
