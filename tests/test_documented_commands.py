"""The commands in the documentation: each program exists, and knows every flag and setting that is given to it."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "verl" / "README.md"])
STARTS = re.compile(r"(python (-m )?\w|bash scripts/|scripts/|serve run )")
PASSED_ON = {"scripts/multi_turn.sh": ("run_single_turn_vllm.py", "run_multi_turn_vllm.py")}
"""Scripts that pass their flags on, and the programs that know them."""


def commands(page: Path) -> list[str]:
    """The commands of a page's shell blocks and tables, one line each."""
    text = page.read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [code for row in re.findall(r"^\|.*$", text, re.MULTILINE) for code in re.findall(r"`([^`]+)`", row)]
    return [line for line in lines if STARTS.match(line)]


DOCUMENTED = sorted({(page.name, command) for page in PAGES for command in commands(page)})


@cache
def help_text(program: tuple[str, ...]) -> str:
    if program[-1] in PASSED_ON:
        return "".join(help_text((sys.executable, script)) for script in PASSED_ON[program[-1]])
    finished = subprocess.run([*program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return finished.stdout


def parts(command: str) -> list[tuple[tuple[str, ...], list[str]]]:
    """The programs that a command runs, each with its arguments; the part after `--` is a command of its own."""
    words = [word for word in shlex.split(command, comments=True) if not word.startswith("[")]
    words = [word.rstrip("]") for word in words]
    if "--" in words:
        place = words.index("--")
        return parts(shlex.join(words[:place])) + parts(shlex.join(words[place + 1 :]))
    if words[0] == "python":
        length = 2 if words[1] == "-m" else 1
        return [((sys.executable, *words[1 : 1 + length]), words[1 + length :])]
    if words[0] == "bash":
        words = words[1:]
    return [(("bash", words[0]), words[1:])]


def test_the_documentation_has_commands():
    assert len(DOCUMENTED) > 50
    assert {"README.md", "reproduce.md", "training.md"} <= {page for page, _ in DOCUMENTED}


@pytest.mark.parametrize(("page", "command"), [item for item in DOCUMENTED if not item[1].startswith("serve")])
def test_a_documented_command_has_only_flags_that_its_program_knows(page, command):
    for program, arguments in parts(command):
        flags = [word.partition("=")[0] for word in arguments if re.match(r"--?[a-zA-Z]", word)]
        known = help_text(program)
        for flag in flags:
            assert re.search(rf"(?<![\w-]){re.escape(flag.replace('_', '-'))}(?![\w-])", known.replace("_", "-")), flag


@pytest.mark.parametrize(("page", "command"), [item for item in DOCUMENTED if item[1].startswith("serve")])
def test_a_documented_service_has_only_settings_that_its_app_knows(page, command):
    from cobalt.engine.vllm_settings import VllmSettings
    from cobalt.judge.service_settings import ServiceSettings

    words = shlex.split(command)
    known = {"remote_reward_server:app": ServiceSettings, "vllm_engine_actor:app": VllmSettings}[words[2]].model_fields
    given = [word.partition("=")[0] for word in words[3:] if "=" in word]
    assert set(given) <= set(known)
