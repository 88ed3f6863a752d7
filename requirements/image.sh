#!/bin/sh
# Makes the environment FOLDER of an image with what PART (operator or server) needs: locks, then the wheel in /wheel.
# usage: requirements/image.sh FOLDER PART        (in the Dockerfile, with pip in /tools)
set -eu
folder=$1 part=$2
python=$folder/bin/python
pip="/tools/bin/pip --python $python install --quiet --no-deps --no-compile"
python3 -m venv --without-pip "$folder"
echo "== libraries (hash-pinned)"
$pip --require-hashes -r "requirements/$part.txt"
if [ "$part" = server ]; then
    echo "== torch"
    # A build in /find-links first, as in setup.sh; NVIDIA's libraries only beside a build that asks for them.
    $pip --no-index --find-links /find-links --require-hashes -r requirements/torch.txt 2>/dev/null ||
        $pip --require-hashes -r requirements/torch.txt
    if "$python" -c 'import importlib.metadata as m, sys; sys.exit(not any("nvidia" in r or "cuda" in r for r in m.requires("torch") or []))'; then
        $pip --require-hashes -r requirements/torch-cuda.txt
    fi
fi
echo "== nllb-fleet itself"
$pip --no-index /wheel/*.whl
cd "$folder"
rm -rf lib/python3*/site-packages/torch/include lib/python3*/site-packages/torch/test    # for building against torch
# Bytecode of just what a start loads: a pod's file system is read-only, so it could not keep its own.
case $part in
operator) loaded=nllb_operator.handlers ;;
server) loaded=nllb_server.process,nllb_engine.nllb_gpu_model ;;
esac
PYTHONDONTWRITEBYTECODE='' PYTHONSAFEPATH=1 "$python" -c "import $loaded"
