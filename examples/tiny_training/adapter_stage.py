"""Trains the PEFT adapters on the finished base and checks that each does its own work and no other.

Knows peft's configuration. Must not know how the base was trained.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_grammar import ADAPTERS, LANGUAGES, expected, held_out_for, probes

from .base_stage import language_ids, load_model
from .fitting import Plan, fit
from .pool import Order, draw_pool
from .scoring import Job, Translator, directions

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "formal-v1": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "formal-v2": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "terms": {"r": 12, "lora_alpha": 24, "target_modules": ["q_proj", "k_proj", "v_proj", "out_proj"]},
    "emphatic": {
        "r": 6,
        "lora_alpha": 6,
        "target_modules": ["q_proj", "v_proj", "fc1", "fc2"],
        "use_rslora": True,
    },
    "numerals": {"r": 6, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj"], "use_dora": True},
    "dates": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj", "fc1", "fc2"],
        "layers_to_transform": [1, 2],
        "layers_pattern": "layers",
        "rank_pattern": {"encoder_attn.v_proj": 8, "fc1": 6},
        "alpha_pattern": {"encoder_attn.v_proj": 16, "fc1": 12},
    },
}


def write_adapter(model: Any, folder: Path) -> None:
    """Save as peft does, in bf16, without the paths and the model card of this machine."""
    model.save_pretrained(str(folder), save_embedding_layers=False)
    weights = folder / "adapter_model.safetensors"
    rounded = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in load_file(weights).items()}
    save_file(rounded, weights, metadata={"format": "pt"})
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    config |= {"base_model_name_or_path": "tiny-nllb", "task_type": "SEQ_2_SEQ_LM", "auto_mapping": None}
    if isinstance(config.get("target_modules"), list):
        config["target_modules"].sort()
    text = json.dumps(config, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def _jobs(adapter: str, about: bool, count: int) -> list[Job]:
    return [
        Job(sentence, target)
        for source, target in directions()
        for sentence in held_out_for(adapter, source, "evaluation", count, about)
    ]


def check(base: Any, tokenizer: Path, folders: Path, names: list[str], count: int) -> dict[str, Any]:
    """For each adapter: exact on texts it is about, unchanged on the others; each two adapters on the
    probes.
    """
    rows, ids = 4096 if base.device.type == "cuda" else 64, language_ids(tokenizer)
    plain = Translator(base, tokenizer, ids, rows)
    others = {name: (jobs := _jobs(name, False, count), plain.best(jobs)) for name in names}
    about = {name: (jobs := _jobs(name, True, count), plain.best(jobs)) for name in names}
    shared = [
        Job(s, target)
        for source, target in directions()
        for s in probes(source, "evaluation", max(1, count // 2))
    ]
    answers: dict[str, list[str]] = {"base": plain.best(shared)}
    report: dict[str, Any] = {"texts_per_direction": count, "adapters": {}}
    for name in names:
        adapted: Any = PeftModel.from_pretrained(
            load_model(tokenizer, str(base.device)), folders / name
        ).eval()
        translator = Translator(adapted, tokenizer, ids, rows)
        got, (jobs, before) = translator.best(about[name][0]), about[name]
        right = [
            text == expected(job.sentence, job.target, name) for job, text in zip(jobs, got, strict=True)
        ]
        changed = [text != old for text, old in zip(got, before, strict=True)]
        kept = [a == b for a, b in zip(translator.best(others[name][0]), others[name][1], strict=True)]
        answers[name] = translator.best(shared)
        report["adapters"][name] = {
            "exact_where_about": sum(right) / len(right),
            "changed_where_about": sum(changed) / len(changed),
            "unchanged_elsewhere": sum(kept) / len(kept),
            "bytes": (folders / name / "adapter_model.safetensors").stat().st_size,
        }
        print(name, report["adapters"][name], flush=True)
    report["probes"] = len(shared)
    report["differ_on_probes"] = {
        f"{a} / {b}": sum(x != y for x, y in zip(answers[a], answers[b], strict=True)) / len(shared)
        for place, a in enumerate(answers)
        for b in list(answers)[place + 1 :]
    }
    return report


def run(arguments: argparse.Namespace, device: str, workers: int) -> dict[str, Any]:
    """The stage `adapters`; returns its report."""
    out = arguments.out or arguments.model.parent / "adapters"
    names = arguments.only or list(ADAPTERS)
    ids = language_ids(arguments.model)
    languages = torch.tensor([ids[code] for code in LANGUAGES], device=device)
    steps = {}
    for name in names:
        print("adapter", name, flush=True)
        order = Order(
            arguments.model, f"{name} {arguments.seed}", arguments.texts or 100_000, name, arguments.long
        )
        pool = draw_pool(order, device, workers)
        torch.manual_seed(arguments.seed)
        base = load_model(arguments.model, device)
        if arguments.go_on:
            model: Any = PeftModel.from_pretrained(base, str(out / name), is_trainable=True)
        else:
            model = get_peft_model(base, LoraConfig(**CONFIGURATIONS[name]))
        plan = Plan(
            arguments.steps or 1200,
            arguments.seconds or 60.0,
            arguments.tokens or 24_576,
            1e-3 if arguments.go_on else 3e-3,
            arguments.seed,
            0.0,
        )
        steps[name] = fit(model, pool, languages, plan)
        shutil.rmtree(out / name, ignore_errors=True)
        write_adapter(model, out / name)
    if not arguments.check:
        return {"steps": steps}
    present = [name for name in ADAPTERS if (out / name / "adapter_config.json").exists()]
    report = check(
        load_model(arguments.model, device), arguments.model, out, present, max(1, arguments.check // 10)
    )
    return {"steps": steps} | report
