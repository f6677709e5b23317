"""The rules that keep the library small to read: sizes, order of packages, and who opens, writes and imports what."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support import ROOT

LIBRARY = ROOT / "cobalt"
ORDER = re.findall(r"^\| `(\w+)/` \|", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE)
FOLDERS = ("cobalt", "verl", "studies", "benchmarks", "scripts", "preproc", "tests")
NOUNS = ("problems", "judge", "episode", "reward", "selection")
MACHINE = {"fastapi", "ray", "torch", "tyro", "vllm"}

LINES, BODY, PARAMETERS = 400, 50, 6
LARGE: set[str] = {
    "judge/inside/zygote.py",  # one program, as it is sent into the sandbox
}
"""Modules, and functions as `module:name`, that are larger than the limits; at most twelve."""

READERS = {"judge/sandbox", "judge/inside", "judge/doctor.py"}
"""Packages in which the nouns open files: the sandbox, and what looks at the machine."""
WRITERS = {
    "stage": "results",
    "judge/sandbox": "sandboxes",
    "judge/inside": "sandboxes",
    "judge/doctor.py": "sandboxes",
    "report/plots.py": "plots",
    "pocket/training.py": "weights",
    "pocket/world.py": "the folder of the weights, which appears whole",
    "training": "checkpoints and logs",
    "serving": "tokens and logs",
}
"""Modules that write files themselves, and which files."""
READING = {"open", "read_text", "read_bytes"}
WRITING = {"write_text", "write_bytes", "rename", "save_pretrained", "savefig", "copyfile", "copytree", "fdopen"}


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes(path, *kinds):
    return [node for node in ast.walk(parsed(path)) if isinstance(node, kinds)]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules(*packages):
    """The library's modules, or those of some packages, by their path below `cobalt/`."""
    folders = [LIBRARY / package for package in packages or ("",)]
    return {path.relative_to(LIBRARY).as_posix(): path for folder in folders for path in sorted(folder.rglob("*.py"))}


# --- sizes and options


def is_large(function):
    """Whether a function has too many lines from its name to its end, without its docstring, or parameters."""
    first = function.body[0]
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) is not None else 0
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    parameters = len(names) - (names[:1] in (["self"], ["cls"]))
    return function.end_lineno - function.lineno + 1 - docstring > BODY or parameters > PARAMETERS


def test_modules_and_functions_are_small():
    large = {name for name, path in modules().items() if len(path.read_text().splitlines()) > LINES}
    for name, path in modules().items():
        large |= {f"{name}:{function.name}" for function in nodes(path, *FUNCTIONS) if is_large(function)}
    assert large == LARGE and len(LARGE) <= 12


def test_an_option_is_declared_and_described_once():
    owners = {}
    for module, path in modules().items():
        for owner in nodes(path, ast.ClassDef):
            for field, text in zip(owner.body, owner.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    described = (field.target.id, " ".join(text.value.value.split()))
                    owners.setdefault(described, []).append(f"{module}:{owner.name}")
    assert {name: classes for (name, _), classes in owners.items() if len(classes) > 1} == {}


NAMES = {
    "mend", "place", "places", "found", "given", "told", "there", "kept", "sofar", "door", "floor", "room", "stranger",
    "reaction", "instead",
}  # fmt: skip
"""Words that say nothing of what they name, without underscores."""
DEFINING = (*FUNCTIONS, ast.ClassDef, ast.arg, ast.Name, ast.Attribute)


@pytest.mark.parametrize("folder", ["cobalt", "verl", "studies", "benchmarks", "tests"])
def test_names_say_what_they_hold_and_docstrings_begin_with_a_noun_or_a_verb(folder):
    paths = [*(ROOT / folder).rglob("*.py")]
    new = [one for path in paths for one in nodes(path, *DEFINING) if not isinstance(getattr(one, "ctx", 0), ast.Load)]
    names = {getattr(one, key).lower() for one in new for key in ("name", "arg", "id", "attr") if hasattr(one, key)}
    words = {word for name in names for word in re.sub("^test_.*|in_place|sigma_floor|(?<=so)_", "", name).split("_")}
    assert len(words) > 100 and not words & NAMES
    texts = [one.value.value for path in paths for one in nodes(path, ast.Expr) if isinstance(one.value, ast.Constant)]
    first = {text.split()[0] for text in texts if isinstance(text, str)}
    assert first and not first & {"How", "What", "When", "Where", "Which", "Who", "Whose", "Why"}


# --- files


def calls(path):
    """Names of what a module calls; `open` with a mode that writes counts as `write_text`."""
    names = set()
    for node in nodes(path, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        modes = [a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
        names.add(name)
        if name == "open" and any(re.fullmatch("[rbt]*[wax+][wbt+]*", str(mode)) for mode in modes):
            names.add("write_text")
    return names


@pytest.mark.parametrize(
    ("named", "packages", "allowed"), [(READING, NOUNS, READERS), (WRITING, (), WRITERS)], ids=["reading", "writing"]
)
def test_nouns_open_no_file_and_results_are_written_by_the_floor_alone(named, packages, allowed):
    opening = {module for module, path in modules(*packages).items() if calls(path) & named}
    assert not {module for module in opening if not any(f"{module}/".startswith(f"{part}/") for part in allowed)}


# --- imports


def imports(path):
    """The modules that a module imports, dotted; also those imported inside functions."""
    names = {alias.name for node in nodes(path, ast.Import) for alias in node.names}
    for node in nodes(path, ast.ImportFrom):
        assert node.level <= 1, "a relative import that leaves its folder"
        names |= {f"{node.module}.{alias.name}" for alias in node.names if not node.level}
    return names


def importing(roots, packages):
    """The modules of some packages that import one of some top-level packages."""
    return {
        name for name, path in modules(*packages).items() if {one.partition(".")[0] for one in imports(path)} & roots
    }


def test_the_library_has_the_packages_of_the_table_and_one_module_beside_them():
    entries = {path.name for path in LIBRARY.iterdir()} - {"__pycache__", "py.typed"}
    assert entries == {*ORDER, "__init__.py", "method.py"} and len(ORDER) <= 15


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_those_before_it(package):
    later = {*ORDER[ORDER.index(package) + 1 :], "method"}
    names = {(module, one) for module, path in modules(package).items() for one in imports(path)}
    assert not {(module, one) for module, one in names if one.startswith("cobalt.") and one.split(".")[1] in later}


def test_a_noun_knows_no_machine_and_ray_is_imported_where_serve_hosts_and_where_runs_start():
    assert not importing(MACHINE, NOUNS)
    assert not importing({"ray"}, set(ORDER) - {"serving", "training"})
    for path in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        assert not {name for name in imports(path) if name.startswith("ray._")}, path


def test_the_library_imports_neither_what_is_added_to_verl_nor_studies():
    assert not importing({"cobalt_verl", "studies"}, ())


HEAVY = {"ray", "torch", "vllm", "verl", "transformers", "datasets"}
LIGHT = [
    f"cobalt.{name.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
    for name, path in modules("stage", *NOUNS).items()
    if path.name != "__main__.py" and path.parent.name != "inside"
]
EVAL_INSTALL = [
    *("cobalt.commands.main", "cobalt.commands.judge", "cobalt.rollout.evaluate", "cobalt.report.write"),
    *("cobalt.judge.opening", "cobalt.judge.processes", "cobalt.judge.url_judge"),
    *("cobalt.serving.host", "cobalt.serving.services", "cobalt.serving.judge_app"),
]


@pytest.mark.parametrize(
    ("names", "absent"), [(LIGHT, {*HEAVY, "matplotlib"}), (EVAL_INSTALL, HEAVY)], ids=["nouns", "eval install"]
)
def test_the_nouns_and_what_the_eval_install_is_for_import_nothing_heavy(names, absent):
    code = f"import sys, {', '.join(names)}; print({absent} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.stdout.strip() == "set()", finished.stderr


DEPENDENCIES = {"verl", "vllm", "torch", "ray", "transformers", "transfer_queue"}
EXTENDED = {"torch.autograd.Function"}  # classes that their library has for subclasses


def patches(path):
    """The classes of dependencies that a module subclasses, and their names that it replaces, without their modules."""
    origins = {}
    for node in nodes(path, ast.Import, ast.ImportFrom):
        for name in node.names:
            module = node.module if isinstance(node, ast.ImportFrom) else name.name
            origins[(name.asname or name.name).partition(".")[0]] = (module or "").partition(".")[0]
    extended = [base for node in nodes(path, ast.ClassDef) for base in node.bases]
    targets = [target for node in ast.walk(parsed(path)) for target in getattr(node, "targets", [])]
    for name in map(ast.unparse, [*extended, *(target for target in targets if isinstance(target, ast.Attribute))]):
        if origins.get(name.partition(".")[0]) in DEPENDENCIES and name not in EXTENDED:
            yield next(part for part in reversed(name.split(".")) if not part.startswith("__"))


def test_each_patch_and_subclass_of_a_dependency_says_what_it_is_for():
    rows = [line.split(" | ") for line in (ROOT / "verl/README.md").read_text(encoding="utf-8").splitlines()]
    reasons = [row for row in rows if len(row) == 4 and len(row[2].split()) > 3]
    for path in [*(ROOT / "verl/cobalt_verl").rglob("*.py"), *LIBRARY.rglob("*.py")]:
        file = Path(path.relative_to(ROOT).as_posix().removeprefix("verl/cobalt_verl/"))
        own = [" ".join(row) for row in reasons if f"`{file}" in row[0] or f"`{file.parent}/`" in row[0]]
        assert not {name for name in patches(path) if name not in " ".join(own)}, file
