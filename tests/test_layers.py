"""The order of packages in docs/architecture.md holds, and what has no machine in it stays light."""

import ast
import re
import subprocess
import sys

import pytest
from support import ROOT

LIBRARY = ROOT / "cobalt"
ORDER = re.findall(r"^\| `(\w+)/` \|", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE)
FOLDERS = ("cobalt", "verl", "studies", "benchmarks", "scripts", "preproc", "tests")
NOUNS = ("problems", "judge", "episode", "reward", "selection")
MACHINE = {"fastapi", "ray", "torch", "tyro", "vllm"}


def imports(source: str) -> set[str]:
    """The modules that a module imports, dotted; also those imported inside functions."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1, "a relative import that leaves its folder"
    return names


def modules(package: str) -> list[tuple[str, set[str]]]:
    """Each module's path below `cobalt/`, and what it imports."""
    paths = sorted((LIBRARY / package).rglob("*.py"))
    return [(str(path.relative_to(LIBRARY)), imports(path.read_text(encoding="utf-8"))) for path in paths]


def packages(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("cobalt.")}


def test_the_library_has_the_packages_of_the_table_and_one_module_beside_them():
    entries = [path for path in LIBRARY.iterdir() if path.name not in ("__pycache__", "py.typed")]
    assert sorted(path.name for path in entries if path.is_dir()) == sorted(ORDER)
    assert sorted(path.name for path in entries if path.is_file()) == ["__init__.py", "method.py"]
    assert len(ORDER) <= 15


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_those_before_it(package):
    later = set(ORDER[ORDER.index(package) + 1 :]) | {"method"}
    against = {(module, other) for module, names in modules(package) for other in packages(names) & later}
    assert not against


@pytest.mark.parametrize("package", NOUNS)
def test_a_noun_knows_no_machine(package):
    against = {
        (module, name) for module, names in modules(package) for name in {n.split(".")[0] for n in names} & MACHINE
    }
    assert not against


def test_ray_is_imported_where_serve_hosts_and_where_runs_start():
    against = {
        (module, "ray")
        for package in ORDER
        if package not in ("serving", "training")
        for module, names in modules(package)
        if "ray" in {name.split(".")[0] for name in names}
    }
    assert not against


def test_rays_private_modules_are_imported_nowhere():
    for path in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        assert not {name for name in imports(path.read_text(encoding="utf-8")) if name.startswith("ray._")}, path


def test_the_library_imports_neither_what_is_added_to_verl_nor_studies():
    for path in LIBRARY.rglob("*.py"):
        names = imports(path.read_text(encoding="utf-8"))
        assert not {name.split(".")[0] for name in names} & {"cobalt_verl", "studies"}, path


@pytest.mark.parametrize("package", ["stage", *NOUNS])
def test_importing_a_noun_is_light(package):
    names = sorted(
        "cobalt." + ".".join(path.relative_to(LIBRARY).with_suffix("").parts).removesuffix(".__init__")
        for path in (LIBRARY / package).rglob("*.py")
        if path.name != "__main__.py" and path.parent.name != "inside"
    )
    heavy = {"ray", "torch", "vllm", "transformers", "datasets", "matplotlib"}
    code = f"import sys, {', '.join(names)}; print({heavy} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.stdout.strip() == "set()", finished.stderr


def test_what_the_eval_install_is_for_needs_neither_ray_nor_torch():
    modules = (
        *("cobalt.commands.main", "cobalt.commands.judge", "cobalt.rollout.evaluate", "cobalt.report.write"),
        *("cobalt.judge.opening", "cobalt.judge.processes", "cobalt.judge.url_judge"),
        *("cobalt.serving.host", "cobalt.serving.children", "cobalt.serving.judge_app"),
    )
    absent = ("ray", "torch", "vllm", "verl", "transformers", "datasets")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import {', '.join(modules)}"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
