#!/bin/sh
# Creates the environment VENV with the interpreter PYTHON from the hash locks beside this file.
# usage: requirements/setup.sh PYTHON VENV
set -eu
python=$1 venv=$2
here=$(dirname "$0")
cd "$here/.."

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "nllb-fleet needs Python 3.11 or newer; '$python' is older or missing." >&2
    echo "Install one and name it: make setup PYTHON=python3.11" >&2
    exit 1
}
[ -x "$venv/bin/pip" ] || "$python" -m venv --clear "$venv" || {
    echo "Python's venv module is missing; on Debian or Ubuntu: apt-get install python3-venv" >&2
    exit 1
}
pip="$venv/bin/python -m pip install --progress-bar on --no-deps"
echo "== 1/3 libraries ($(grep -c '^[a-zA-Z]' requirements/dev.txt), hash-pinned; a minute or two)"
$pip --require-hashes -r requirements/dev.txt
echo "== 2/3 torch"
# A build in a folder of PIP_FIND_LINKS first: by itself pip prefers the published one, whose index tells its hash.
$pip --quiet --no-index --require-hashes -r requirements/torch.txt 2>/dev/null ||
    $pip --require-hashes -r requirements/torch.txt
# The CUDA build of torch needs NVIDIA's libraries beside it, the CPU build does not: its metadata tells.
if "$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(not any("nvidia" in r or "cuda" in r for r in m.requires("torch") or []))'; then
    $pip --require-hashes -r requirements/torch-cuda.txt
fi
echo "== 3/3 nllb-fleet itself"
$pip --quiet --no-build-isolation -e .
