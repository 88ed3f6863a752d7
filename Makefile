# `make` prints what there is. Every target sets up .venv by itself, from hash-pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCKS := requirements/dev.txt requirements/torch.txt requirements/torch-cuda.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONSAFEPATH := 1
export HF_HUB_OFFLINE := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-kube test check fix e2e image bench lock clean

help:  ## Print the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(READY)  ## Create .venv from the locks (every other target does it when needed)

$(READY): $(LOCKS) pyproject.toml requirements/setup.sh
	@requirements/setup.sh $(PYTHON) $(VENV)
	@touch $@

demo: $(READY)  ## A local fleet translates, swaps an adapter and scales out: no cluster, no GPU, no root
	@PYTHONPATH=examples $(BIN)/python -m demo local

demo-kube: $(READY)  ## The same by kubectl on a real API server (programs from KUBE_ASSETS, else ../shared/kube)
	@PYTHONPATH=examples $(BIN)/python -m demo kubernetes

test: check  ## Every check and every test that needs no GPU (what CI runs)
	$(BIN)/python -m pytest

check: $(READY)  ## ruff, mypy --strict, import layers
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(READY)  ## Let ruff mend what it can
	$(BIN)/ruff check --fix

e2e: $(READY)  ## Only the tests against a real API server
	$(BIN)/python -m pytest tests/kube

image:  ## The images nllb-fleet-operator and nllb-fleet-server (buildah or docker; BASE_IMAGE=… for another base)
	@image/build.sh

bench: $(READY)  ## Same ids and steps per second on this machine (with a CUDA device: on it too)
	@PYTHONPATH=examples:benchmarks $(BIN)/python benchmarks/gpu_check.py $(if $(wildcard /dev/nvidia0),,--cpu)

lock: $(READY)  ## Write the hash locks anew from pyproject.toml
	$(BIN)/pip install --quiet uv==0.13.9
	$(BIN)/python requirements/lock.py

clean:  ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
