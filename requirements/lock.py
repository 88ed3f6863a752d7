"""Writes the hash locks beside this file from pyproject.toml. Needs `uv`; run by `make lock`.

Files for `pip install --no-deps --require-hashes`:
build.txt (the wheel's backend), operator.txt and server.txt (the images), dev.txt (everything for tests
and checks), all without torch;
torch.txt (torch alone: hashes of the published builds and of every CPU build found in the folders of
PIP_FIND_LINKS); torch-cuda.txt (what only the published CUDA build of torch needs).
Torch stands apart because its CPU build and its CUDA build have one version and different dependencies:
pip checks the same lock either way, and torch-cuda.txt is installed only beside a build that asks for it.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TORCH = "2.13.0"
EXTRAS = {"build": "build", "operator": "operator", "server": "server", "dev": "dev"}


def compiled(extra: str) -> list[str]:
    """The lock of one extra as blocks, a requirement with its hashes each."""
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--extra", extra, "--universal",
        "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet",
        "--no-emit-package", "nllb-fleet", "--constraints", "-",
    ]  # fmt: skip
    done = subprocess.run(
        command, input=f"torch=={TORCH}\n", text=True, capture_output=True, check=True, cwd=HERE.parent
    )
    return re.split(r"\n(?=[A-Za-z0-9])", done.stdout.strip())


def name(block: str) -> str:
    """The package of a block."""
    found = re.match(r"[A-Za-z0-9_.-]+", block)
    if found is None:
        raise SystemExit(f"not a requirement: {block[:80]}")
    return found.group(0).lower()


def only_cuda(block: str) -> bool:
    """Whether only torch's CUDA build needs the package."""
    return name(block).startswith(("nvidia-", "cuda-")) or name(block) == "triton"


def local_hashes() -> list[str]:
    """SHA-256 of the CPU builds of torch on this machine."""
    folders = [Path(part) for part in os.environ.get("PIP_FIND_LINKS", "").split() if Path(part).is_dir()]
    wheels = [wheel for folder in folders for wheel in folder.glob(f"torch-{TORCH}+cpu-*.whl")]
    return [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]


def main() -> None:
    """Write all locks."""
    note = "# Written by requirements/lock.py; do not edit.\n"
    for file, extra in EXTRAS.items():
        blocks = compiled(extra)
        rest = [block for block in blocks if name(block) != "torch" and not only_cuda(block)]
        (HERE / f"{file}.txt").write_text(note + "\n".join(rest) + "\n")
        print(f"{file}.txt: {len(rest)} packages")
    torch = [block for block in blocks if name(block) == "torch"]
    known = (HERE / "torch.txt").read_text() if (HERE / "torch.txt").exists() else ""
    more = set(local_hashes()) or set(re.findall(r"sha256:(\w+)", known))
    more = {digest for digest in more if digest not in torch[0]}
    extra_hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(more))
    (HERE / "torch.txt").write_text(note + "\n".join(torch) + extra_hashes + "\n")
    cuda = [block for block in blocks if only_cuda(block)]
    (HERE / "torch-cuda.txt").write_text(note + "\n".join(cuda) + "\n")
    print(f"torch.txt: {len(more)} CPU build(s) beside the published ones")
    print(f"torch-cuda.txt: {len(cuda)} packages")


if __name__ == "__main__":
    main()
