"""One control plane, one operator and one set of process nodes for all tests of this folder."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_cluster import (
    REPOSITORY,
    SUPPORT,
    Kube,
    OperatorProcess,
    Program,
    needed_cluster_tool,
)
from kube_fleet import KubeFleet
from random_adapters import write_random_adapter


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs an API server."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A control plane with our CRDs. Skipped where there are no binaries, a failure in CI."""
    needed_cluster_tool()
    with Kube.running(tmp_path_factory.mktemp("kube")) as kube:
        kube.kubectl("apply", "-f", str(REPOSITORY / "crds"))
        kube.kubectl("wait", "--for=condition=Established", "-f", str(REPOSITORY / "crds"), "--timeout=30s")
        yield kube


@pytest.fixture(scope="session")
def operator(kube: Kube) -> Iterator[OperatorProcess]:
    """The operator, in all namespaces."""
    process = OperatorProcess.beside(kube)
    with process.running():
        yield process


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the claim `models` holds: the tiny model, `formal` (v1), `formal-v2`, the random `one`, `two`."""
    folder = tmp_path_factory.mktemp("models")
    base = REPOSITORY / "examples" / "tiny-nllb"
    (folder / "tiny-nllb").symlink_to(base)
    for trained, name in (("formal-v1", "formal"), ("formal-v2", "formal-v2")):
        shutil.copytree(REPOSITORY / "examples" / "adapters" / trained, folder / "adapters" / name)
    for seed, name in enumerate(("one", "two")):
        write_random_adapter(folder / "adapters" / name, base, seed)
    return folder


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each pod's model writes down its calls."""
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="session")
def nodes(kube: Kube, models: Path, recordings: Path) -> Iterator[Program]:
    """Two nodes with four GPUs each, whose pods are processes with a recording proxy around the model."""
    program = Program(
        [
            sys.executable, str(SUPPORT / "process_node.py"),
            "--folder", str(kube.folder / "pods"), "--nodes", "2", "--gpus", "4",
            "--claim", f"models={models}",
            "--env", "NLLB_DRAIN_LAG_SECONDS=0.2", "--env", f"RECORDING_DIR={recordings}",
            "--", sys.executable, str(SUPPORT / "recording_server.py"),
        ],
        kube.folder / "nodes.log",
        kube.env,
    )  # fmt: skip
    with program.running():
        yield program


def new_namespace(kube: Kube) -> str:
    name = f"test-{uuid.uuid4().hex[:8]}"
    kube.kubectl("create", "namespace", name)
    return name


@pytest.fixture
def fleet(kube: Kube) -> Iterator[KubeFleet]:
    """A namespace of its own, with nothing in it yet."""
    namespace = new_namespace(kube)
    yield KubeFleet(kube, namespace)
    kube.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="module")
def served(kube: Kube, operator: OperatorProcess, nodes: Program) -> Iterator[KubeFleet]:
    """Two pods that serve, with the adapter `formal` on both."""
    namespace = new_namespace(kube)
    kube.claim(namespace, "models")
    fleet = KubeFleet(kube, namespace)
    fleet.apply(fleet.deployment(replicas=2), fleet.adapter("formal"))
    fleet.wait("nllb/fleet", "lora/formal")
    yield fleet
    kube.kubectl("delete", "namespace", namespace, "--wait=false")
