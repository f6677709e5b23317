"""The project as a user sees it from outside: flags, variables, routes, and the stages' commands; no tests.

    python tests/outside.py --write

renews `flags.json`, `environment.json` and `routes.json` of `tests/data/outside`. That is right only where an issue
names the change of the flag, variable or route; the change then stands in CHANGELOG.md, too. Nothing renews the results
and manifests there: the commit that their README names wrote them.

Modules are reached through the commands that users type; the exceptions are the apps.
"""

import contextlib
import io
import json
import logging
import os
import re
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data/outside"

MODULES = ("judge", "report", "report.viewer", "training", "services", "preflight")
"""Those of `cobalt` that `python -m` runs and that stay."""

APPS = ("remote_reward_server.py", "vllm_engine_actor.py")

_NO_SERVICES = {"XDG_RUNTIME_DIR": "/nonexistent"}
"""The environment of a user who runs no `cobalt serve`."""

_DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
_SOURCES = ("cobalt/**/*.py", "verl/**/*.py", "scripts/**/*", "preproc/*.py", "*.py", "tests/*.py", "tests/long/*.py")
_HEADER = re.compile(r" (-.*?|[A-Z{\[][A-Z_.\- {}\[\]]*?)(?:  +(\S.*))?$")  # of a flag, or of a positional argument
_PREFIXES = {"COBALT_JUDGE_": "judge", "COBALT_VLLM_": "engine"}


def seen():
    """The view of a user now, by the stem of its file.

    `flags`: of every command its flags and positional arguments, with aliases, kind and default, as `--help` says them.
    `environment`: the variables that the documents name in full, and the settings of each app, which `PREFIX<NAME>`
    sets. `routes`: of each app its routes as "METHOD path", in order.
    """
    return _in_process_of_its_own("seen")


def read_by_code(settings):
    """The variables that the code, the scripts or the tests read, those of the apps' settings included."""
    made = {f"{prefix}{name.upper()}" for prefix, app in _PREFIXES.items() for name in settings[app]}
    return _names(_SOURCES) | made


def run_commands(commands, **variables):
    """Run commands one after the other in one process.

    Args:
        commands: (folder, words); the words begin with a script, relative to the checkout.
        variables: Of the environment, besides those of this process.

    Returns:
        Of each command the exit code, and what it wrote on the two outputs.
    """
    return [ended[:3] for ended in run_commands_for_imports(commands, **variables)]


def run_commands_for_imports(commands, **variables):
    """`run_commands` with, of each command, the top-level modules that it was the first one to import."""
    listed = json.dumps([[str(folder), list(words)] for folder, words in commands])
    return _in_process_of_its_own("commands", listed, **variables)


def assert_each_is_refused(commands, names, folder=ROOT, **variables):
    """Of commands that run in one process: each ends as a user's mistake, in one line that names these."""
    ended = run_commands([(folder, map(str, words)) for words in commands], **_NO_SERVICES | variables)
    for named, (code, _, said) in zip(names, ended, strict=True):
        assert (code, len(said.splitlines())) == (2, 1), (named, code, said)
        assert all(name in said for name in ([named] if isinstance(named, str) else named)), (named, said)


def run_script(*words, **variables):
    """Run a script, or a module after `-m`, in a process of its own, which finds no `cobalt serve` of the user's."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT, env=os.environ | _NO_SERVICES | variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def arguments_of(words):
    """The arguments of a command, as its own parser reads them; nothing runs."""
    from cobalt.stage import cli

    read = []

    def parse(kind, _, command_line=None, **__):
        read.append(cli.parse_arguments(kind, command_line))

    with mock.patch.object(cli, "run_script", parse):
        _start(words)
    [arguments] = read
    return arguments


def _names(patterns):
    files = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    texts = (path.read_text(encoding="utf-8", errors="ignore") for path in files if path != Path(__file__).resolve())
    return {name for text in texts for name in re.findall(r"\bCOBALT_[A-Z0-9_]+", text)}


def _in_process_of_its_own(what, *arguments, **more):
    """Value that the function `_<what>` returns in a new process, with a terminal in which flags are one column."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COBALT_")}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "verl"), str(ROOT / "tests")])
    finished = subprocess.run(
        [sys.executable, __file__, what, *arguments], cwd=ROOT,
        env=variables | {"COLUMNS": "110", "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "RAY_ADDRESS": ""} | more,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if finished.returncode:
        raise AssertionError(finished.stderr[-3000:])
    return json.loads(finished.stdout.splitlines()[-1])


def _start(words):
    """Run a command in this process: a script, a module after `-m`, or `cobalt`."""
    module = words[0] == "-m"
    # As Python does: a script's folder is in the path, and `-m` among the arguments while the module is looked for.
    script = [str((ROOT / words[0]).parent)] if words[0].endswith(".py") else []
    with mock.patch.multiple(sys, argv=["-m", *words[2:]] if module else [*words], path=[*script, *sys.path]):
        if module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif script:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        else:
            from cobalt.commands.main import main  # what the project's file names as the program `cobalt`

            main(words[1:])


def _run(words):
    """Run a command in this process: its exit code, and what it wrote on each of the two outputs."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _start(words)
        except SystemExit as end:
            code = end.code or 0
        except Exception:  # noqa: BLE001 - a defect of one command is not to hide what the others did
            traceback.print_exc()
            code = "traceback"
        finally:
            logging.getLogger().handlers.clear()  # the next command has its own outputs
    return code, *(stream.buffer.getvalue().decode() for stream in (out, err))


def _commands(listed):
    """Run the commands."""
    results = []
    for folder, words in json.loads(listed):
        os.chdir(folder)
        before = {*sys.modules}
        results.append((*_run(words), sorted({name.partition(".")[0] for name in {*sys.modules} - before})))
    return results


def _commands_with_help():
    overview = _run(["cobalt", "--help"])[1]
    names = re.findall(r"^  ([a-z]+(?: [a-z_]+)?)  +[A-Z]", overview, re.MULTILINE)
    for name in names:
        yield f"cobalt {name}", ["cobalt", *name.split()]
    for name in ("sample", "repair"):  # a proprietary model has other flags
        yield f"cobalt {name} --model_name MODEL", ["cobalt", name, "--model_name", "MODEL"]
    for script in sorted([*ROOT.glob("*.py"), *ROOT.glob("preproc/*.py")]):
        name = str(script.relative_to(ROOT))
        if name not in APPS and name != "preproc/start.py":
            yield name, [name]
    for module in MODULES:
        yield f"python -m cobalt.{module}", ["-m", f"cobalt.{module}"]


def _flags():
    read = {}
    queue = list(_commands_with_help())
    while queue:
        name, words = queue.pop(0)
        code, text, said = _run([*words, "--help"])
        if code:
            raise AssertionError(f"{name} --help ended with {code}: {said}")
        read[name] = _flags_of(text)
        for command in re.findall(r"^│\s+• (\S+)", text, re.MULTILINE):
            queue.append((f"{name} {command}", [*words, command]))
    return read


def _flags_of(text):
    """The flags in a help text: {"-i PATH, --input_file PATH": "required", ...}."""
    read, current, described = {}, None, ""
    for line in text.splitlines():
        inside = line.removeprefix("│").removesuffix("│").rstrip()
        if line.startswith(("╭", "╰")) or (header := _HEADER.match(inside)):
            if current:
                read[current] = _default(described)
            current, described = (None, "") if line.startswith(("╭", "╰")) else (header[1], header[2] or "")
        elif current:
            described += " " + inside.strip()
    read.pop("-h, --help", None)
    return read


def _default(described):
    end = re.search(r"\((required|default: .*|repeatable.*|fixed.*)\)\s*$", described)
    return end[1] if end else ""


def _seen():
    from cobalt.serving.engine_app import engine_api
    from cobalt.serving.judge_app import judge_api
    from cobalt.serving.settings import EngineServiceSettings, ServiceSettings

    settings = {"judge": sorted(ServiceSettings.model_fields), "engine": sorted(EngineServiceSettings.model_fields)}
    apps = {"judge": judge_api(None), "engine": engine_api(None)}  # their routes ask for a service when they are called
    return {
        "flags": _flags(),
        "environment": {
            "documented": sorted(name for name in _names(_DOCUMENTS) if not name.endswith("_")),
            "settings": settings,
        },
        "routes": {
            name: [f"{method} {route.path}" for route in api.routes for method in sorted(route.methods)]
            for name, api in apps.items()
        },
    }


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        for stem, content in seen().items():
            (DATA / f"{stem}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    else:
        result = globals()[f"_{sys.argv[1]}"](*sys.argv[2:])
        sys.stdout.write("\n" + json.dumps(result) + "\n")
