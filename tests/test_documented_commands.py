"""The documentation: its commands, code blocks, file names and links, on every page there is, and the site built of it.

Each command's program exists and knows the flags and settings that are given to it; the arguments of this project's
Python scripts are parsed by the scripts' own parsers. Each code block compiles. The code of `docs/extending.md` is run
by `test_extending.py`.
"""

import ast
import importlib
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from outside import arguments_of
from support import ROOT

from cobalt.commands.registry import COMMANDS
from cobalt.judge import LocalJudge
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.reward import RewardSettings, compute_reward, program_to_judge
from cobalt.serving.settings import EngineServiceSettings, ServiceSettings

PAGES = sorted(
    [page for folder in (".", "verl", "tests", "benchmarks") for page in (ROOT / folder).glob("*.md")]
    + [*(ROOT / "docs").rglob("*.md")]
)
PASSED_ON = {"scripts/multi_turn.sh": ("run_single_turn_vllm.py", "run_multi_turn_vllm.py")}
"""Scripts that pass their flags on, and the programs that know them."""
OTHERS = {"cat", "cd", "curl", "docker", "export", "git", "head", "inspect", "kubectl", "lm_eval", "mkdir", "mkdocs"}
OTHERS |= {"rm", "source", "tail", "vf-eval", "for", "done"}
"""Programs of other projects, and words of the shell, whose arguments are not checked here."""
APPS = {"remote_reward_server:app": ServiceSettings, "vllm_engine_actor:app": EngineServiceSettings}
NUMBERED = re.compile(r"^\w+=\S+$")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a language, without their indentation in a list."""
    return [
        re.sub(rf"(?m)^{indent}", "", block)
        for indent, block in re.findall(rf"^( *)```{language}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]


def statements(block: str) -> list[str]:
    """The statements of a shell block, one line each."""
    commands, pending = [], ""
    for line in block.replace("\\\n", " ").splitlines():
        pending = f"{pending}\n{line}" if pending else line.strip()
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation that ends on a later line
            continue
        if words:
            commands.append(pending)
        pending = ""
    assert not pending, pending
    return commands


def in_tables(page: Path) -> list[str]:
    """The commands in the tables of a page, which may hold placeholders."""
    rows = re.findall(r"^\|.*$", page.read_text(), re.MULTILINE)
    starts = re.compile(r"(python (-m )?\w|bash scripts/|scripts/|serve run |cobalt \w)")
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row) if starts.match(code)]


IN_BLOCKS = sorted(
    {(name(page), statement) for page in PAGES for block in blocks(page, "bash") for statement in statements(block)}
)
DOCUMENTED = sorted({*IN_BLOCKS, *((name(page), command) for page in PAGES for command in in_tables(page))})


def parts(command: str) -> list[list[str]]:
    """The programs that a command runs, each with its arguments; the part after `--` is a command of its own."""
    words = shlex.split(command, comments=True)
    if words[0] not in OTHERS:
        words = [word.removeprefix("[").removesuffix("]") for word in words]  # what may be left out
    while words and NUMBERED.match(words[0]):
        words = words[1:]
    if not words:
        return []
    if "--" in words and words[0] not in OTHERS:
        separator = words.index("--")
        return [words[:separator], *parts(shlex.join(words[separator + 1 :]))]
    return [words]


@cache
def help_text(*program: str) -> str:
    passed_on = "".join(help_text(sys.executable, script) for script in PASSED_ON.get(program[-1], ()))
    finished = subprocess.run([*program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return finished.stdout.replace("_", "-") + passed_on


def check_flags(words: list[str]) -> None:
    """Check that the help of a script, or of a command with a placeholder, names the flags."""
    program = {"cobalt": ["python", "-m", "cobalt.commands", *words[1:2]], "python": words[:2], "bash": words[:2]}
    known = help_text(*(sys.executable if w == "python" else w for w in program.get(words[0], ["bash", words[0]])))
    for flag in (word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)):
        assert re.search(rf"(?<![\w-]){re.escape(flag.replace('_', '-'))}(?![\w-])", known), flag


NAMES = {f"cobalt {command}" for command in COMMANDS}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize(("page", "command"), DOCUMENTED)
@pytest.mark.slow
def test_a_documented_command_has_only_flags_and_settings_that_its_program_knows(page, command):
    for words in parts(command):
        if words[:2] == ["python", "docs/recipes/trl_reward.py"]:
            trl = pytest.importorskip("trl", reason="needs scripts/setup.sh --with recipes")
            trl.TrlParser(trl.GRPOConfig).parse_args_and_config([*words[4:], "--use_cpu", "--bf16", "false"])
            continue
        if words[0] in OTHERS:
            continue
        if words[0] == "serve":
            settings = {word.partition("=")[0] for word in words[3:] if "=" in word}
            assert words[2] == "..." or settings <= set(APPS[words[2]].model_fields)
        elif words[0] in ("sbatch", "pytest"):
            files = [word.partition("::")[0] for word in words if "/" in word]
            assert files and all((ROOT / file).is_file() for file in files if not file.startswith("--")), words
        elif words[0] not in ("cobalt", "python") or "..." in words:
            check_flags(words)
        elif " ".join(words) in NAMES or (words[1] == "-m" and len(words) == 3):  # the name of a program
            with pytest.raises(SystemExit, match="0"):
                arguments_of([*words[words[0] == "python" :], "--help"])
        else:
            arguments_of(words[words[0] == "python" :])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_blocks_of_a_page_can_be_read_and_import_what_the_library_has(page):
    for block in blocks(page, "bash"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True, timeout=30)
    for block in blocks(page, "python"):
        compile(block, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "cobalt":
                module = importlib.import_module(node.module)
                assert not [item.name for item in node.names if not hasattr(module, item.name)], node.module
    for block in blocks(page, "json"):
        for line in block.splitlines() if block.count("\n{") else [block]:
            json.loads(line)
    for block in blocks(page, "yaml"):
        yaml.safe_load(block)


@pytest.mark.sandbox
async def test_the_code_of_the_page_about_rewards_computes_one():
    block = blocks(ROOT / "docs" / "method.md", "python")[-1]
    response = "<think>\nThe input is a number.\n</think>\n\n```python\nprint(int(input()) + 1)\n```\n"
    async with LocalJudge() as judge:
        names = {
            "RewardSettings": RewardSettings, "compute_reward": compute_reward, "program_to_judge": program_to_judge,
            "response": response, "judge": judge, "suite": TestSuite(("1\n",), ("2\n",)), "prev_best_pass_rate": 0.0,
        }  # fmt: skip
        code = compile(block, "method.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        await eval(code, names)  # a coroutine: the block awaits the judge
    assert names["reward"].total == 1.0


FILE = re.compile(
    r"(?<![\w./-])((?:cobalt|verl/config|verl/cobalt_verl|tests|benchmarks|scripts|preproc|requirements|docs)/[\w./*-]*\.(?:py|sh|md|jsonl|json|yaml|"
    r"yml|def|sbatch|txt|lock|jinja|svg|png)|[a-z_*]+\.py|[A-Z][\w.]*\.(?:md|cff)|Dockerfile|compose\.yaml|mkdocs\.yml)(?![\w-])"
)


@cache
def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_file_that_a_page_names_exists(page):
    folders = (ROOT / folder for folder in (".", "benchmarks", "cobalt", "docs", "preproc", "scripts", "tests", "verl"))
    named = {file for code in re.findall(r"`([^`\n]+)`", prose(page)) for file in FILE.findall(code)}
    # A name without a folder is that of a file in the folder that the sentence is about.
    for folder in folders:
        below = "" if folder == ROOT else "**/"  # the environment lies below the root
        named -= {file for file in named if any(folder.glob(file if "/" in file else below + file))}
    assert not named


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_relative_link_leads_to_a_file_and_a_heading_of_it(page):
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_site_is_built_without_a_warning_and_every_page_is_in_its_table_of_contents(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")], cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr


NAMED = re.findall(r"^\| `(cobalt[\w.]+)", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)


def test_each_name_of_the_python_api_exists_and_is_described():
    assert len(NAMED) > 10 and all(pkgutil.resolve_name(named).__doc__ for named in NAMED)


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_figures_of_the_readme_are_those_of_the_results():
    def plain(path):
        return " ".join((ROOT / path).read_text().replace("+", "").replace("\\*", "").replace(" %", "").split())

    pages = " ".join(map(plain, ("docs/RESULTS.md", "docs/hacking.md", "docs/tutorial.md")))
    interval = r"[-\d.]+ to [-\d.]+"
    figures = re.findall(rf"[-\d.]+ \({interval}(?:; runs {interval})?\)", plain("README.md"))
    assert len(figures) >= 18 and sum("runs" in figure for figure in figures) >= 9
    assert [figure for figure in figures if figure[:-1] not in pages] == []


def test_the_example_problems_can_be_read_and_have_only_what_a_problem_needs():
    problems = load_problems(ROOT / "docs" / "examples" / "problems.jsonl")
    assert len(problems) == 3
    assert {field for problem in problems for field in problem.record} == {"id", "question", "test_cases"}
    assert all(len(problem.tests) >= 5 for problem in problems)


def test_the_files_for_containers_and_for_citing_follow_their_schemas():
    subprocess.run(["hadolint", ROOT / "Dockerfile"], check=True, timeout=60)
    for schema, file in (("compose-spec", "compose.yaml"), ("citation-file-format", "CITATION.cff")):
        command = ["check-jsonschema", "--builtin-schema", f"vendor.{schema}", file]
        subprocess.run(command, cwd=ROOT, check=True, timeout=60)
