#!/bin/sh
# Fills the environment FOLDER of an image with what PART (operator or server) needs: locks, then the wheel in /wheel.
# usage: requirements/image.sh FOLDER PART        (in the Dockerfile)
set -eu
folder=$1 part=$2
python3 -m venv "$folder"
pip="$folder/bin/pip install --no-deps --no-compile"
$pip --require-hashes -r "requirements/$part.txt"
if [ "$part" = server ]; then
    { [ -d /find-links ] && $pip --no-index --find-links /find-links --require-hashes -r requirements/torch.txt; } ||
        $pip --require-hashes -r requirements/torch.txt
    if "$folder/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(not any("nvidia" in r or "cuda" in r for r in m.requires("torch") or []))'; then
        $pip --require-hashes -r requirements/torch-cuda.txt
    fi
fi
$pip --no-index /wheel/*.whl
rm -rf "$folder"/lib/python3*/site-packages/pip "$folder"/bin/pip*
find "$folder" -name tests -type d -path '*/kubernetes/*' -prune -exec rm -rf {} +
