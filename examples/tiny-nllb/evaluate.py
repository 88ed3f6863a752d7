"""Measures the committed model and its adapters: `python examples/tiny-nllb/evaluate.py [--count 500]
[--adapters]`.

Prints a table of all directions, the beam figures, the overlap of test and training, and writes them as
JSON. Never trains. Draws again the pools that `results.json` has the orders of, for the
overlap. All directions at 500 texts take minutes on a CPU;
`--count 20` gives a first impression.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from tiny_grammar import ADAPTERS, LANGUAGES  # noqa: E402
from tiny_training import adapter_stage, base_stage  # noqa: E402
from tiny_training.pool import Order, draw_pool  # noqa: E402


def table(exact: dict[str, float]) -> str:
    """Exact matches in percent: a row per source, a column per target, in Markdown."""
    lines = ["| from / to | " + " | ".join(LANGUAGES) + " |", "| --- |" + " ---: |" * len(LANGUAGES)]
    for source in LANGUAGES:
        cells = (f"{exact[f'{source}-{t}']:.1%}".rstrip("%") if t != source else "" for t in LANGUAGES)
        lines.append(f"| {source} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pairs_seen() -> NDArray[np.bool_]:
    """The pairs of content words in the pools that the committed weights saw, as far as they can be drawn
    again: of the runs in `results.json` with an order (bool [words, words]).
    """
    runs = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))["base"]["runs"]
    orders = [
        Order(FOLDER, run["order"]["seed"], run["order"]["texts"], long=run["order"]["long"])
        for run in runs
        if run["order"] is not None
    ]
    workers = max(1, (os.cpu_count() or 2) - 1)
    found: NDArray[np.bool_] = np.logical_or.reduce([draw_pool(o, "cpu", workers).pairs for o in orders])
    return found


def main() -> None:
    """Evaluate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="held-out texts per direction")
    parser.add_argument(
        "--adapters", action="store_true", help="measure the adapters too, on a tenth as many texts"
    )
    parser.add_argument("--out", type=Path, default=Path("build/tiny-nllb/evaluation.json"))
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = base_stage.load_model(FOLDER, device)
    report: dict[str, Any] = {"base": base_stage.check(model, FOLDER, pairs_seen(), arguments.count)}
    print(table(report["base"]["exact"]))
    print(json.dumps({key: value for key, value in report["base"].items() if key != "exact"}, indent=1))
    if arguments.adapters:
        folders, count = FOLDER.parent / "adapters", max(1, arguments.count // 10)
        report["adapters"] = adapter_stage.check(model, FOLDER, folders, list(ADAPTERS), count)
        print(json.dumps(report["adapters"], indent=1))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
