"""Makes the tiny model and its adapters: `python examples/tiny-nllb/train.py {vocabulary,base,adapters}`.

Seeded; `base` goes on from its last checkpoint when started again. Runs on CUDA if there is one, else on
the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from tiny_training import adapter_stage, base_stage, vocabulary  # noqa: E402


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("vocabulary", "base", "adapters"))
    parser.add_argument(
        "--model", type=Path, default=FOLDER, help="folder of the tokenizer files and the base model"
    )
    parser.add_argument("--out", type=Path, help="where the results go (default: into the repository)")
    parser.add_argument("--work", type=Path, default=Path("build/tiny-nllb"), help="where checkpoints go")
    parser.add_argument("--steps", type=int, help="steps of the base, or of each adapter")
    parser.add_argument("--seconds", type=float, help="end the schedule after this time at the latest")
    parser.add_argument("--texts", type=int, help="size of the pool of training texts")
    parser.add_argument("--tokens", type=int, help="tokens per batch")
    parser.add_argument("--long", type=float, default=0.35, help="share of long training texts")
    parser.add_argument("--go-on", action="store_true", help="train the weights in --model or --out further")
    parser.add_argument("--only", nargs="*", help="adapters to train (default: all)")
    parser.add_argument(
        "--check", type=int, default=500, help="held-out texts per direction in the check afterwards; 0: none"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Run one stage and say how long it took."""
    arguments, started = _arguments(), time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workers = max(1, (os.cpu_count() or 2) - 1)
    torch.manual_seed(arguments.seed)
    if arguments.stage == "vocabulary":
        vocabulary.train_pieces(FOLDER / "sentencepiece.bpe.model", seed=arguments.seed)
        report: dict[str, object] = {"ids": vocabulary.write_tokenizer(FOLDER)}
    elif arguments.stage == "base":
        report = base_stage.run(arguments, device, workers)
    else:
        report = adapter_stage.run(arguments, device, workers)
    report["seconds"] = round(time.monotonic() - started)
    report["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(json.dumps(report, indent=1, ensure_ascii=False))
    if arguments.stage != "vocabulary":
        out = (arguments.out or FOLDER) / f"training-{arguments.stage}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
