"""What the images are made of: locks, wheel and Dockerfile. Building them takes a builder: `make image`."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
IMAGES = {"operator": "nllb_operator", "server": "nllb_server"}


def locked(name: str) -> dict[str, str]:
    """Package → its block in the lock."""
    text = (ROOT / f"requirements/{name}.txt").read_text()
    blocks = re.findall(r"^([A-Za-z0-9_.-]+)==(.*(?:\n +.*)*)", text, re.MULTILINE)
    return {package.lower(): block for package, block in blocks}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in the wheel that the Dockerfile builds."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(
        build, cwd=ROOT, check=True, capture_output=True, env={**os.environ, "PYTHONSAFEPATH": "1"}
    )
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as content:
        return content.namelist()


def test_the_operators_lock_has_neither_torch_nor_numpy() -> None:
    heavy = {"torch", "numpy", "triton", "safetensors", "sentencepiece", "transformers", "peft"}
    assert not heavy & set(locked("operator")) and {"kopf", "kubernetes", "aiohttp"} <= set(
        locked("operator")
    )
    assert {"numpy", "safetensors", "sentencepiece", "aiohttp"} <= set(locked("server"))
    assert not {"kopf", "kubernetes", "transformers", "pytest"} & set(locked("server"))


@pytest.mark.parametrize("name", ["build", "operator", "server", "torch", "torch-cuda"])
def test_every_library_of_an_image_is_pinned_by_hash_and_by_no_address(name: str) -> None:
    text = (ROOT / f"requirements/{name}.txt").read_text()
    assert locked(name) and all("--hash=sha256:" in block for block in locked(name).values())
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host", text)


def test_the_wheel_has_the_three_packages_and_the_crds_and_nothing_else(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel if ".dist-info/" not in name}
    assert tops == {"nllb_operator", "nllb_engine", "nllb_server"}
    assert {f"nllb_operator/crds/{name}.yaml" for name in ("nllbdeployments", "loraadapters")} <= set(wheel)
    assert all(f"{package}/py.typed" in wheel for package in tops)
    assert not [name for name in wheel if name.endswith(".pyc")]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_one_module_without_shell_and_without_root(image: str) -> None:
    stage = STAGES[image]
    users = re.findall(r"^USER (\d+):(\d+)$", stage, re.MULTILINE)
    assert len(users) == 1 and "0" not in users[0]
    (command,) = re.findall(r"^ENTRYPOINT (.+)$", stage, re.MULTILINE)
    assert json.loads(command) == ["/opt/nllb/bin/python", "-m", IMAGES[image]]
    assert "PYTHONSAFEPATH=1" in stage
    assert not re.search(r"^(RUN|ADD|CMD)", stage, re.MULTILINE), (
        "only copied into, from the stage that builds"
    )


def test_every_stage_stands_on_the_one_base_that_can_be_chosen() -> None:
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE))
    assert bases == {"${BASE_IMAGE}", "build", "scratch"}
    (default,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", default)


def test_the_build_context_is_what_the_dockerfile_copies() -> None:
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    }
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*" and {line[1:] for line in lines if line.startswith("!")} == copied
    assert all((ROOT / path).exists() for path in copied)


def commands(tmp_path: Path, builder: str, **environment: str) -> list[list[str]]:
    """What `image/build.sh` asks a builder of that name to do; nothing is built."""
    program = tmp_path / builder
    program.write_text('#!/bin/sh\nprintf "%s\\t" "$@" >> "$0.log"; echo >> "$0.log"\n')
    program.chmod(0o755)
    names = ("PIP_FIND_LINKS", "BASE_IMAGE", "BUILD_OPTIONS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    env = {**kept, "BUILDER": str(program), **environment}
    subprocess.run([ROOT / "image/build.sh", "7"], env=env, check=True, capture_output=True)
    log = (tmp_path / f"{builder}.log").read_text().splitlines()
    return [line.rstrip("\t").split("\t") for line in log if line.startswith("build\t")]


@pytest.mark.parametrize("builder", ["buildah", "docker"])
def test_both_images_are_built_by_either_builder(tmp_path: Path, builder: str) -> None:
    built = commands(tmp_path, builder)
    assert [command[command.index("--target") + 1] for command in built] == list(IMAGES)
    assert [command[command.index("--tag") + 1] for command in built] == [f"nllb-fleet-{x}:7" for x in IMAGES]
    assert not [word for command in built for word in command if "find-links" in word or "BASE_IMAGE" in word]


def test_a_chosen_base_and_a_folder_of_wheels_reach_the_build(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for command in commands(tmp_path, "docker", PIP_FIND_LINKS=str(folder), BASE_IMAGE="base:1"):
        assert command[command.index("--build-context") + 1] == f"find-links={folder}"
        assert command[command.index("--build-arg") + 1] == "BASE_IMAGE=base:1"
    (tmp_path / "docker.log").unlink()
    for command in commands(tmp_path, "docker", PIP_FIND_LINKS="https://example.org/wheels"):
        assert "--build-context" not in command
