"""The program `cobalt`: its help, its mistakes, and that it finds what a running `cobalt serve` left."""

import json
import os
import re
import shlex
import subprocess
from types import SimpleNamespace

import pytest
from outside import assert_each_is_refused, run_commands, run_script
from provider import answer, serve
from support import ROOT, needs_api, square_problem, trajectory_record, write_lines

from cobalt.commands.registry import COMMANDS
from cobalt.commands.serve import explanation
from cobalt.datasets.split_tests import SplitSettings, split, split_problem_file, split_tests
from cobalt.problems.problem import Problem, load_problems
from cobalt.rollout.api import ApiSampleSettings
from cobalt.rollout.multi_turn import RepairSettings, repaired
from cobalt.rollout.single_turn import SampleSettings, sampled
from cobalt.stage import serve_state
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import read_summary

JUDGE = {"COBALT_JUDGE_URL": "http://127.0.0.1:7/evaluator"}
ENGINE = {"COBALT_ENGINE_URL": "http://127.0.0.1:7/vllm_actor"}
SERVED = ("remote_reward_server.py", "vllm_engine_actor.py")  # `serve run` starts them, which the environment has


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A user without services, here and in the environment; the folder where those that run would be recorded."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("COBALT_HTTP", *JUDGE, *ENGINE):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    return tmp_path / "run" / "cobalt"


def cobalt(*words, **environment):
    return run_script("-m", "cobalt.commands", *words, **environment)


def in_one_sentence(finished, code=2):
    """Message of a command that ended with this code, in one line."""
    assert (finished.returncode, len(finished.stderr.splitlines())) == (code, 1), finished.stderr
    return finished.stderr


def test_help_lists_every_command_and_imports_only_the_standard_library():
    finished = run_script("-X", "importtime", "-m", "cobalt.commands", "--help")
    assert finished.returncode == 0
    assert all(f"  {name} " in finished.stdout for name in COMMANDS)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}
    assert not imported & {"tyro", "rich", "numpy", "pydantic", "ray", "torch", "matplotlib"}


def test_each_commands_help_has_an_example_with_its_flags_and_no_doubtful_metavar():
    names = [*SERVED, *(f"cobalt {one}" for one in COMMANDS)]
    shown = dict(zip(names, run_commands((ROOT, [*name.split(), "--help"]) for name in names), strict=True))
    assert all(code == 0 and "{None}" not in text for code, text, _ in shown.values()), shown
    assert all("serve run" in shown[name][1] for name in SERVED)
    page = (ROOT / "docs" / "commands.md").read_text()
    for name, command in COMMANDS.items():
        text = shown[f"cobalt {name}"][1]
        assert f"`cobalt {name}`" in page and f"Example: cobalt {name}" in text
        for flag in re.findall(r"(?<!\S)--?\w+", command.example.partition("-- ")[0]):
            assert re.search(rf"(?<!\S){flag}\b", text), flag


ENGINE_OF = {
    "": False,
    "--model m": True,
    "--model=anthropic/m": True,
    "--model tests": False,  # a folder
    "--model /no/such/folder": False,
    "--model Qwen/Qwen3-0.6B": False,
    "--model Qwen/Qwen3-0.6B --api_base http://127.0.0.1:1": True,
    "--model_name Qwen/Qwen3-0.6B": True,
    "--model m --engine_kind vllm": False,
    "--model tests --engine-kind=litellm": True,
}
"""Whether a provider's engine is meant."""


@needs_api
@pytest.mark.slow
def test_the_model_chooses_the_engine_and_its_flags():
    commands = [(ROOT, ["cobalt", "sample", *words.split(), "--help"]) for words in ENGINE_OF]
    for words, (_, shown, _) in zip(ENGINE_OF, run_commands(commands), strict=True):
        assert ("--api_base" in shown, "--engine_url" in shown) == (ENGINE_OF[words], not ENGINE_OF[words]), words


@needs_api
@pytest.mark.slow
def test_a_name_of_a_provider_that_is_also_a_model_on_this_machine_is_refused_by_the_flag_that_decides(tmp_path):
    model = tmp_path / "models--openai--both"
    for file, text in {f"snapshots/{'0' * 40}/config.json": "{}", "refs/main": "0" * 40}.items():
        (model / file).parent.mkdir(parents=True)
        (model / file).write_text(text)
    words = ["cobalt", "sample", "-i", "p.jsonl", "-o", tmp_path / "o.jsonl", "--model", "openai/both"]
    both = [words, [*words, "--engine_kind", "vllm"]]
    assert_each_is_refused(both, ["--engine_kind", "p.jsonl"], HF_HUB_CACHE=str(tmp_path))


# --- running services


def test_the_file_of_running_services_is_private_and_goes_with_its_process(home):
    with serve_state.recorded_state(os.getpid(), None, JUDGE | {"COBALT_VLLM_TOKEN": "secret"}) as state:
        [path] = home.iterdir()
        assert path.stat().st_mode & 0o077 == 0 and "secret" not in path.read_text()
        (home / "1.json").write_bytes(path.read_bytes())  # which no process has locked
        (home / "2.json").write_text("half a fi")
        assert serve_state.running_states() == [state]
        assert list(home.iterdir()) == [path]
    assert not list(home.iterdir())


def used(needed="judge and engine", **fields):
    """The variables that a command with these settings has when it has looked for services."""
    settings = SimpleNamespace(**{"services": lambda: needed, "judge_url": (), "engine_url": ()} | fields)
    serve_state.use_running_services(settings)
    return {name: os.environ[name] for name in (*JUDGE, *ENGINE) if name in os.environ}


OTHER = {"COBALT_JUDGE_URL": "http://other/evaluator"}


@pytest.mark.parametrize(
    ("settings", "variables", "expected"),
    [
        ({}, {}, JUDGE | ENGINE),
        ({"needed": "judge"}, {}, JUDGE),
        ({"needed": "none"}, {}, {}),
        ({"judge_url": ("u",)}, {}, ENGINE),
        ({"engine_url": ("u",)}, {}, JUDGE),
        ({}, OTHER, ENGINE | OTHER),
        ({"engine_url": ("u",)}, OTHER, OTHER),
        ({}, {"COBALT_HTTP": "http://other"}, {}),
        ({"model": "../m/../m"}, {}, JUDGE | ENGINE),  # one folder may have several paths
        ({"model": "another"}, {}, None),
        ({"model": "another", "needed": "judge"}, {}, JUDGE),
    ],
)
def test_a_running_serve_is_used_for_what_neither_flags_nor_variables_name(
    tmp_path, monkeypatch, settings, variables, expected
):
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path / "m")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with serve_state.recorded_state(os.getpid(), str(tmp_path / "m"), JUDGE | ENGINE):
        if expected is None:
            with pytest.raises(UserError, match="--model"):
                used(**settings)
        else:
            assert used(**settings) == expected


def test_of_several_running_serves_none_is_chosen_and_one_without_an_engine_fits_every_model():
    assert used() == {}
    with serve_state.recorded_state(os.getpid(), None, JUDGE):
        with (
            serve_state.recorded_state(os.getppid(), None, JUDGE | ENGINE),
            pytest.raises(UserError, match=str(os.getppid())),
        ):
            used()
        assert used(model="mine") == JUDGE


@pytest.mark.slow
def test_a_command_names_the_services_that_it_needs_and_no_others(tmp_path, home):
    recorded, result = ROOT / "tests" / "data" / "recorded_run", tmp_path / "result.jsonl"

    def said(*words):
        finished = cobalt(*words, XDG_RUNTIME_DIR=str(home.parent))
        return finished.returncode, [line for line in finished.stderr.splitlines() if str(os.getpid()) in line]

    with serve_state.recorded_state(os.getpid(), "the_model", JUDGE | ENGINE):  # nothing answers at its address
        assert said("evaluate", "-i", recorded / "single_turn.jsonl", "-o", result) == (0, [])
        code, lines = said("evaluate", "-i", recorded / "multi_turn.jsonl", "-o", tmp_path / "multi.jsonl")
        assert code == 1 and len(lines) == 1 and "judge" in lines[0] and "the_model" not in lines[0]
        code, lines = said("sample", "-i", recorded / "problems.jsonl", "-o", tmp_path / "sampled.jsonl")
        assert code == 1 and len(lines) == 1 and "the_model" in lines[0]


def test_serve_prints_the_lines_that_set_the_variables_in_another_terminal_and_the_name_of_the_model():
    with serve_state.recorded_state(os.getpid(), "m", ENGINE | {"COBALT_JUDGE_URL": "http://a http://b"}) as state:
        lines = explanation(state, "model-1a2b").splitlines()
    assert any(line.startswith("engine ") and "model-1a2b" in line for line in lines)
    exports = "\n".join(line for line in lines if line.startswith("export "))
    command = f"{exports}\necho $COBALT_JUDGE_URL $COBALT_ENGINE_URL"
    said = subprocess.check_output(["bash", "-c", command], text=True).split()
    assert said == ["http://a", "http://b", ENGINE["COBALT_ENGINE_URL"]]


# --- own problems


def own(identifier, tests):
    numbers = {"inputs": [f"{n}\n" for n in range(tests)], "outputs": [f"{n * n}\n" for n in range(tests)]}
    return {"id": identifier, "question": "Print the square.", "test_cases": numbers}


@pytest.mark.parametrize(("tests", "asked", "public"), [(2, 4, 1), (4, 4, 3), (5, 4, 4), (9, 4, 4), (9, 2, 2)])
def test_the_first_tests_become_public_and_one_stays_hidden(tmp_path, tests, asked, public):
    source = write_lines(tmp_path / "p.jsonl", [own("a", tests), own("b", 12), square_problem("c")])
    split_problem_file(source, tmp_path / "q.jsonl", asked)
    problem, *_ = load_problems(tmp_path / "q.jsonl")
    assert len(problem.public_tests) == public
    assert problem.public_tests.inputs + problem.hidden_tests.inputs == problem.tests.inputs


def test_tests_of_a_function_under_another_name_of_the_field_are_refused_before_anything_starts():
    tests = {"function": "f", "inputs": ["1", "2"], "outputs": ["1", "2"]}
    with pytest.raises(UserError, match=r"'p'.*'function'.*fn_name"):
        split_tests(Problem.parse({"id": "p", "question": "f", "test_cases": json.dumps(tests)}))


def test_split_counts_problems_with_both_kinds_of_tests_and_refuses_others_without_touching_a_result(tmp_path):
    source = write_lines(tmp_path / "p.jsonl", [own("a", 9), own("b", 8), square_problem("c")])
    result = tmp_path / "q.jsonl"
    for _ in range(2):  # the second run changes nothing
        outcome = split(SplitSettings(source, result, public_tests=3))
        assert outcome.next.startswith(f"cobalt sample -i {result}")
        assert [(len(p.public_tests), len(p.hidden_tests)) for p in load_problems(result)] == [(3, 6), (3, 5), (2, 2)]
        assert read_summary(result) == {
            "problems": {"read": 3, "split": 2, "left as they are": 1},
            "tests of those split": {"public": 6, "hidden": 11},
        }
    before = result.read_bytes()
    refused = {
        f"-i {write_lines(tmp_path / 'short.jsonl', [own('short', 1)])}": "'short'",
        f"-i {source} --public_tests 0": "--public_tests",
        f"-i {source} --public_tests 2": "public_tests was 3, now 2",
    }
    assert_each_is_refused([["cobalt", "split", *words.split(), "-o", result] for words in refused], refused.values())
    assert result.read_bytes() == before


@pytest.mark.parametrize(("cut", "shares"), [(0, []), (3, ["75.0 % "])])
def test_a_stage_says_at_its_end_which_share_of_the_responses_was_cut_off(tmp_path, cut, shares):
    reasons = ["length"] * cut + ["stop"] * (4 - cut)
    results = [{"passing": [False] * 4, "feedback": ["wrong"] * 4}] * 4
    single = square_problem(1, responses=["none"] * 4, exec_results=results, finish_reasons=reasons)
    multi = trajectory_record(1, [[(0, 0)]] * 4, finish_reasons=[reasons])
    files = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    for record, end, settings in ((single, sampled, SampleSettings), (multi, repaired, RepairSettings)):
        write_lines(files[1], [record])
        lines = end(settings(*files)).tables
        assert [line[:7] for line in lines] == shares and all("--max_tokens" in line for line in lines)


def test_the_flags_of_single_turn_that_later_turns_need_are_in_the_next_command(tmp_path):
    files = (tmp_path / "p.jsonl", write_lines(tmp_path / "s.jsonl", []))
    said = sampled(ApiSampleSettings(*files, model_name="a/b", prompts="pocket", concurrency=3)).next
    assert "--model a/b" in said and "--prompts pocket" in said
    assert "--model" in sampled(ApiSampleSettings(*files)).next  # which says that an API is asked
    assert "concurrency" not in said and "max_tokens" not in said


# --- ends


def test_a_package_that_only_the_work_needs_and_the_environment_lacks_is_one_sentence(tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(1)])
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    words = ["sample", "-i", str(problems), "-o", str(tmp_path / "o.jsonl"), "--model", str(tmp_path)]
    code = f"import sys; sys.modules['vllm'] = None; from cobalt.commands.main import main; main({words!r})"
    finished = run_script("-c", code)
    assert finished.returncode == 2
    assert "'vllm'" in finished.stderr and "Traceback" not in finished.stderr


STARTED_BY_USERS = [
    *sorted(script.name for script in ROOT.glob("*.py") if script.name not in SERVED),
    *sorted(f"preproc/{script.name}" for script in (ROOT / "preproc").glob("*.py") if script.name != "start.py"),
    *("-m cobalt.judge", "-m cobalt.preflight", "-m cobalt.training", "-m cobalt.pocket", "-m studies.quickstart"),
]


@pytest.mark.parametrize("words", STARTED_BY_USERS)
def test_without_the_environment_every_command_names_the_first_step_in_one_sentence(words):
    finished = run_script("-S", *words.split(), "--no_such_flag")  # -S: without installed packages
    assert "scripts/setup.sh" in in_one_sentence(finished)


def test_a_module_keeps_its_traceback_at_a_defect_and_ends_in_one_sentence_at_ctrl_c(tmp_path):
    ends = {"raise KeyError('defect')": (1, "Traceback"), "raise KeyboardInterrupt": (130, "interrupted")}
    for statement, (code, said) in ends.items():
        (tmp_path / "tyro.py").write_text(statement)
        finished = run_script("-m", "cobalt.report", PYTHONPATH=str(tmp_path))
        assert finished.returncode == code and finished.stderr.startswith(said), finished.stderr
    # The program `cobalt` imports it later.
    in_one_sentence(cobalt("sample", "--help", PYTHONPATH=str(tmp_path)), 130)


@needs_api
@pytest.mark.sandbox
def test_each_command_says_what_it_wrote_and_names_a_next_command_that_runs(tmp_path):
    right, wrong = "```python\nprint(int(input()) ** 2)\n```", "```python\nprint(int(input()) * 2)\n```"
    problems = write_lines(tmp_path / "problems.jsonl", [square_problem(number) for number in range(2)])
    folder = tmp_path / "a run"  # a name that a shell must be given in quotes

    def model(request):
        return answer(wrong if len(request["body"]["messages"]) == 2 else right)

    with serve(model) as provider:
        words = ["sample", "-i", problems, "-o", folder / "single_turn.jsonl", "-n", "2"]
        words += ["--model", "mine", "--api_base", provider.url]
        for name in ("single_turn.jsonl", "multi_turn.jsonl", "evaluation.jsonl", "view.html"):
            finished = cobalt(*words, OPENAI_API_KEY="none", COBALT_JUDGE_CONCURRENCY="1")
            assert finished.returncode == 0, finished.stderr
            assert f"wrote {folder / name}" in finished.stdout and (folder / name).exists()
            following = re.search(r"^next: cobalt (.*?)(, or .*)?$", finished.stdout, re.MULTILINE)
            words = shlex.split(following[1]) if following else []
    assert words == []
    assert len(provider.requests) == 2 * 2 * 9  # both samples of both problems, and eight rounds of feedback
    metrics = json.loads((folder / "evaluation.metrics.json").read_text())["turns"]
    assert [turn["pass_at_1"] for turn in metrics] == [0.0, *[1.0] * 8]


@pytest.mark.services
def test_try_leaves_results_report_and_viewer_and_changes_nothing_when_run_again(seed_model, tmp_path):
    source, folder = write_lines(tmp_path / "p.jsonl", [own("a", 3), own("b", 6)]), tmp_path / "out"
    words = ["try", source, "-o", folder, "-n", "2", "--turns", "1", "--prompts", "pocket", "--max_tokens", "32"]
    words += ["--model", seed_model, "--engine", "max_model_len=1024", "--engine", "dtype=float32"]
    written = []
    for _ in range(2):
        finished = cobalt(*words)
        assert finished.returncode == 0, finished.stderr[-3000:]
        assert str(folder / "view.html") in finished.stdout and "cobalt report" in finished.stdout
        written.append({path.name: path.read_bytes() for path in folder.glob("*.jsonl")})
    assert written[0] == written[1] and {"single_turn.jsonl", "multi_turn.jsonl", "evaluation.jsonl"} <= {*written[0]}
    assert len(json.loads((folder / "evaluation.metrics.json").read_text())["turns"]) == 2
    assert all((folder / "report" / name).exists() for name in ("report.md", "pass_at_1.png"))
