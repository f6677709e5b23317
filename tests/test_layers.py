"""The layers of docs/architecture.md hold: no import from above, no circle, and the lower two layers are light."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from support import ROOT

TABLE = re.findall(
    r"^\| (\d) \| (.*) \|$", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE
)
LAYERS = {
    package: int(layer)
    for layer, cell in TABLE
    for package in re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", cell))  # what stands in brackets explains
}
PACKAGES = sorted(
    {path.stem for path in (ROOT / "cobalt").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    - {"__init__"}
)


def imports(source: str, own: str) -> set[str]:
    """The names that a module of package `own` imports, dotted; also those imported inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level < 2, f"an import in {own} by a path that leaves its folder"
            if node.level == 0:
                found.add(node.module)
            if node.module == "cobalt":
                found |= {f"cobalt.{alias.name}" for alias in node.names}
    return found


def sources(package: str) -> list[str]:
    here = ROOT / "cobalt" / package
    paths = sorted(here.rglob("*.py")) if here.is_dir() else [here.with_suffix(".py")]
    return [path.read_text(encoding="utf-8") for path in paths]


def packages_imported_by(package: str) -> set[str]:
    names = {name for source in sources(package) for name in imports(source, package)}
    return {name.split(".")[1] for name in names if name.startswith("cobalt.")} - {package}


def test_the_table_names_every_package_once_and_nothing_else():
    named = [name for _, cell in TABLE for name in re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", cell))]
    assert sorted(named) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_from_its_own_layer_and_those_below(package):
    above = {other for other in packages_imported_by(package) if LAYERS[other] > LAYERS[package]}
    assert not above


def test_no_package_imports_itself_by_way_of_others():
    graph = {package: packages_imported_by(package) for package in PACKAGES}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_the_library_imports_neither_what_is_added_to_verl_nor_studies():
    for package in PACKAGES:
        for source in sources(package):
            outside = ("cobalt_verl", "studies")
            assert not [name for name in imports(source, package) if name.split(".")[0] in outside], package


def test_an_import_from_above_would_be_seen():
    source = "def f():\n    from cobalt.training import launch\n    import cobalt.report.runs"
    assert imports(source, "errors") == {"cobalt.training", "cobalt.report.runs"}


def test_importing_the_two_lower_layers_is_light():
    lower = [f"cobalt.{package}" for package, layer in LAYERS.items() if layer < 2]
    heavy = {"ray", "torch", "vllm", "transformers", "datasets", "matplotlib"}
    code = f"import sys, {', '.join(lower)}; print({heavy} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.stdout.strip() == "set()", finished.stderr
