"""The rules that keep the library small to read: sizes, options declared once, and who opens and writes files."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT
from test_layers import NOUNS

LIBRARY = ROOT / "cobalt"
LINES, BODY, PARAMETERS = 400, 50, 6
LARGE: set[str] = {
    "judge/inside/zygote.py",  # one program, as it is sent into the sandbox
}
"""Modules, and functions as `module:name`, that are larger than the limits; at most twelve."""

READERS = {"judge/sandbox", "judge/inside", "judge/doctor.py"}
"""Where the nouns open files: the sandbox, and what looks at the machine."""
WRITERS = {
    "judge/sandbox": "sandboxes",
    "judge/inside": "sandboxes",
    "judge/doctor.py": "sandboxes",
    "report/plots.py": "plots",
    "pocket/training.py": "weights",
    "pocket/world.py": "the folder of the weights, which appears whole",
    "training": "checkpoints and logs",
    "serving": "tokens and logs",
}
"""What writes files itself, and which."""
READING = {"open", "read_text", "read_bytes"}
WRITING = {"write_text", "write_bytes", "rename", "save_pretrained", "savefig", "copyfile", "copytree", "fdopen"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(LIBRARY.rglob("*.py")):
        yield path.relative_to(LIBRARY).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from its name to its end, without its docstring."""
    assert function.end_lineno is not None
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = first.end_lineno - first.lineno + 1 if documented and first.end_lineno is not None else 0
    return function.end_lineno - function.lineno + 1 - docstring


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def large() -> set[str]:
    entries = set()
    for module, tree in modules():
        if len((LIBRARY / module).read_text(encoding="utf-8").splitlines()) > LINES:
            entries.add(module)
        entries |= {
            f"{module}:{function.name}"
            for function in functions(tree)
            if lines(function) > BODY or parameters(function) > PARAMETERS
        }
    return entries


def test_modules_and_functions_are_small():
    assert large() == LARGE
    assert len(LARGE) <= 12


def documented_fields(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Class, name and docstring of every field that is described, as those of settings are."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                assert isinstance(text.value, ast.Constant)
                yield node.name, field.target.id, " ".join(str(text.value.value).split())


def test_an_option_is_declared_and_described_once():
    owners: dict[tuple[str, str], list[str]] = {}
    for module, tree in modules():
        for owner, name, text in documented_fields(tree):
            owners.setdefault((name, text), []).append(f"{module}:{owner}")
    assert {name: classes for (name, _), classes in owners.items() if len(classes) > 1} == {}


def calls(tree: ast.Module) -> set[str]:
    """Names of what a module calls; `open` with a mode that writes counts as `write_text`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            modes = [a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
            names.add(name)
            if name == "open" and any(re.fullmatch("[rbt]*[wax+][wbt+]*", str(mode)) for mode in modes):
                names.add("write_text")
    return names


def within(module: str, places: set[str]) -> bool:
    return any(module == place or Path(place) in Path(module).parents for place in places)


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_opens_no_file(noun):
    against = {module for module, tree in modules() if within(module, {noun}) and calls(tree) & READING}
    assert {module for module in against if not within(module, READERS)} == set()


def test_results_are_written_by_the_floor_alone():
    against = {module for module, tree in modules() if calls(tree) & WRITING and not within(module, {"stage"})}
    assert {module for module in against if not within(module, set(WRITERS))} == set()


DEPENDENCIES = {"verl", "vllm", "torch", "ray", "transformers", "transfer_queue"}
EXTENDED = {"torch.autograd.Function"}  # classes that their library has for subclasses


def patches(tree: ast.Module) -> Iterator[str]:
    """The classes of dependencies that a module subclasses, and their names that it replaces, without their modules."""
    origins = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in node.names:
                module = node.module if isinstance(node, ast.ImportFrom) else name.name
                origins[(name.asname or name.name).partition(".")[0]] = (module or "").partition(".")[0]
    for node in ast.walk(tree):
        extended = node.bases if isinstance(node, ast.ClassDef) else []
        replaced = [part for part in getattr(node, "targets", []) if isinstance(part, ast.Attribute)]
        for name in map(ast.unparse, [*extended, *replaced]):
            if origins.get(name.partition(".")[0]) in DEPENDENCIES and name not in EXTENDED:
                yield next(part for part in reversed(name.split(".")) if not part.startswith("__"))


def test_each_patch_and_subclass_of_a_dependency_says_what_it_is_for():
    rows = [line.split(" | ") for line in (ROOT / "verl/README.md").read_text(encoding="utf-8").splitlines()]
    reasons = [row for row in rows if len(row) == 4 and len(row[2].split()) > 3]
    silent = set()
    for path in [*(ROOT / "verl/cobalt_verl").rglob("*.py"), *LIBRARY.rglob("*.py")]:
        file = path.relative_to(ROOT).as_posix().removeprefix("verl/cobalt_verl/")
        named = " ".join(
            " ".join(row) for row in reasons if f"`{file}" in row[0] or f"`{Path(file).parent}/`" in row[0]
        )
        for name in patches(ast.parse(path.read_text(encoding="utf-8"))):
            silent |= set() if name in named else {f"{file}: {name}"}
    assert not silent
