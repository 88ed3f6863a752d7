"""Rules of the repository that no linter knows: where packages lie, how long files are, what is imported."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("operator/nllb_operator", "engine/nllb_engine", "server/nllb_server")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TRACKED = subprocess.run(
    ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split("\0")[:-1]
PYTHON = [ROOT / name for name in TRACKED if name.endswith(".py") and (ROOT / name).is_file()]


@pytest.mark.parametrize("folder", ["operator", "engine", "server", "tests", "tests/operator"])
def test_no_source_root_and_no_test_folder_is_a_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_init_holds_a_docstring_only(package: str) -> None:
    body = ast.parse((ROOT / package / "__init__.py").read_text()).body
    assert len(body) == 1 and isinstance(body[0], ast.Expr)


def test_files_and_functions_stay_short() -> None:
    assert len(PYTHON) > 100
    long_files = [str(path) for path in PYTHON if len(path.read_text().splitlines()) > 300]
    long_functions = [
        f"{path}:{node.lineno} {node.name}"
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= 60
        and "kernels" not in path.parts
    ]
    assert not long_files and not long_functions


def test_every_module_says_what_it_knows() -> None:
    silent = [str(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def test_the_operator_loads_neither_torch_nor_the_engine() -> None:
    heavy = "{'torch', 'nllb_engine', 'numpy'}"
    code = f"import sys, nllb_operator.handlers; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_operator_layers_name_every_module() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "operator layers")
    named = {part.strip() for layer in layers for part in layer.split("|")}
    root = ROOT / "operator/nllb_operator"
    modules = {f"nllb_operator.{path.stem}" for path in root.glob("*.py")} | {
        f"nllb_operator.{path.name}" for path in root.iterdir() if (path / "__init__.py").exists()
    }
    modules |= {f"nllb_operator.backends.{path.stem}" for path in (root / "backends").iterdir()}
    outside = {"nllb_operator.__init__", "nllb_operator.__main__", "nllb_operator.backends"}
    outside |= {"nllb_operator.backends.__init__", "nllb_operator.backends.__pycache__"}
    assert modules - outside == named


def test_the_architecture_page_names_every_module() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    names = {path.stem if path.stem != "__init__" else path.parent.name for path in SOURCES} - {"__main__"}
    missing = sorted(name for name in names if not re.search(rf"\b{re.escape(name)}\b", page))
    assert not missing, f"ARCHITECTURE.md does not name {missing}"


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0].lower() == "unreleased" or headings[0] == "[Unreleased]"


def test_the_readme_names_both_commands_and_every_make_target_has_help() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert "make demo" in readme and "make test" in readme
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    explained = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    assert targets == explained


def test_no_text_names_a_registry_host_or_a_path_of_one_machine() -> None:
    words = ["/wo" + "rk/", "pypi" + ".org", "pythonhosted" + ".org", "deb.deb" + "ian.org"]
    found = []
    for name in TRACKED:
        path = ROOT / name
        if not path.is_file() or path.suffix in {".safetensors", ".model"}:
            continue
        text = path.read_text(errors="ignore")
        found += [f"{name}: {word}" for word in words if word in text]
    assert not found
