"""The program `cobalt`: its help, its mistakes, and that it finds what a running `cobalt serve` left."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from outside import run_commands
from provider import answer, serve
from support import ROOT, needs_api, square_problem, trajectory_record, write_lines

from cobalt.commands.registry import COMMANDS
from cobalt.commands.serve import explanation
from cobalt.commands.try_problems import Arguments
from cobalt.datasets.split_tests import SplitSettings, split, split_problem_file, split_tests
from cobalt.engine.model_name import fingerprint
from cobalt.problems.problem import Problem, load_problems
from cobalt.stage import serve_state
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import open_manifest, read_summary

URLS = ("COBALT_JUDGE_URL", "COBALT_ENGINE_URL")
SERVED = ("remote_reward_server.py", "vllm_engine_actor.py")  # `serve run` starts them, which the environment has


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A user without services, here and in the environment; the folder where those that run would be recorded."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("COBALT_HTTP", *URLS):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    return tmp_path / "run" / "cobalt"


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def cobalt(*words, **environment):
    return run("-m", "cobalt.commands", *words, **environment)


def each_in_one_sentence(commands, **environment):
    """What each of some commands said that ended as a user's mistake, in one line; all run in one process."""
    ended = run_commands([(ROOT, list(map(str, words))) for words in commands], **environment)
    for words, (code, _, said) in zip(commands, ended, strict=True):
        assert (code, len(said.splitlines())) == (2, 1), (words, said)
    return [said for _, _, said in ended]


def in_one_sentence(finished, code=2):
    """What a command said that ended with this code, in one line."""
    assert (finished.returncode, len(finished.stderr.splitlines())) == (code, 1), finished.stderr
    return finished.stderr


def test_help_lists_every_command_and_imports_only_the_standard_library():
    finished = run("-X", "importtime", "-m", "cobalt.commands", "--help")
    assert finished.returncode == 0
    assert all(f"  {name} " in finished.stdout for name in COMMANDS)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}
    assert not imported & {"tyro", "rich", "numpy", "pydantic", "ray", "torch", "matplotlib"}


def test_each_commands_help_has_an_example_with_its_flags_and_no_doubtful_metavar():
    shown = run_commands((ROOT, ["cobalt", *name.split(), "--help"]) for name in COMMANDS)
    page = (ROOT / "docs" / "commands.md").read_text()
    for name, (code, text, said) in zip(COMMANDS, shown, strict=True):
        assert code == 0, said
        assert f"`cobalt {name}`" in page
        assert "Example: cobalt " + name in text
        assert "{None}" not in text
        for flag in re.findall(r"(?<!\S)--?\w+", COMMANDS[name].example.partition("-- ")[0]):
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


@needs_api
def test_the_model_chooses_the_engine_and_its_flags():
    commands = [(ROOT, ["cobalt", "sample", *words.split(), "--help"]) for words in ENGINE_OF]
    for words, (_, shown, _) in zip(ENGINE_OF, run_commands(commands), strict=True):
        assert ("--api_base" in shown, "--engine_url" in shown) == (ENGINE_OF[words], not ENGINE_OF[words]), words


@needs_api
def test_a_name_of_a_provider_that_is_also_a_model_on_this_machine_is_refused_by_the_flag_that_decides(tmp_path):
    commit = "0" * 40
    model = tmp_path / "hub" / "models--openai--both"
    (model / "snapshots" / commit).mkdir(parents=True)
    (model / "snapshots" / commit / "config.json").write_text("{}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    words = ["cobalt", "sample", "-i", "p.jsonl", "-o", tmp_path / "o.jsonl", "--model", "openai/both"]
    both = [words, [*words, "--engine_kind", "vllm"]]
    ambiguous, chosen = each_in_one_sentence(both, HF_HUB_CACHE=str(tmp_path / "hub"))
    assert "--engine_kind" in ambiguous and "p.jsonl" in chosen


def test_the_apps_files_have_help():
    for code, shown, said in run_commands((ROOT, [app, "--help"]) for app in SERVED):
        assert code == 0 and "serve run" in shown, said


# --- running services


HERE = {"COBALT_JUDGE_URL": "http://127.0.0.1:7/evaluator", "COBALT_ENGINE_URL": "http://127.0.0.1:7/vllm_actor"}


def test_the_file_of_running_services_is_private_and_goes_with_its_process(home):
    with serve_state.recorded_state(os.getpid(), None, HERE | {"COBALT_VLLM_TOKEN": "secret"}) as state:
        [path] = home.iterdir()
        assert path.stat().st_mode & 0o077 == 0 and "secret" not in path.read_text()
        (home / "1.json").write_bytes(path.read_bytes())  # which no process has locked
        (home / "2.json").write_text("half a fi")
        assert serve_state.running_states() == [state]
        assert list(home.iterdir()) == [path]
    assert not list(home.iterdir())


def urls():
    return {name: os.environ[name] for name in URLS if name in os.environ}


def test_one_running_serve_is_used_several_are_refused_and_flags_and_variables_go_first(monkeypatch):
    serve_state.use_running_services()
    assert not urls()
    other = {"COBALT_JUDGE_URL": "http://other/evaluator"}
    with serve_state.recorded_state(os.getpid(), None, HERE):
        with serve_state.recorded_state(os.getppid(), None, HERE):
            with pytest.raises(UserError, match=str(os.getppid())):
                serve_state.use_running_services()
            serve_state.use_running_services("judge", judge_named=True)
            serve_state.use_running_services("none")
            monkeypatch.setenv("COBALT_HTTP", "http://other")
            serve_state.use_running_services()
            monkeypatch.delenv("COBALT_HTTP")
            assert not urls()
        serve_state.use_running_services("judge")
        assert urls() == {"COBALT_JUDGE_URL": HERE["COBALT_JUDGE_URL"]}
        monkeypatch.setenv("COBALT_JUDGE_URL", other["COBALT_JUDGE_URL"])
        serve_state.use_running_services()
        assert urls() == HERE | other
        monkeypatch.delenv("COBALT_ENGINE_URL")
        serve_state.use_running_services(engine_named=True)
        assert urls() == other


def test_a_running_engine_of_another_model_is_refused_and_one_folder_may_have_two_paths(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    judge = {"COBALT_JUDGE_URL": HERE["COBALT_JUDGE_URL"]}
    with serve_state.recorded_state(os.getpid(), "m", HERE):
        with pytest.raises(UserError, match="--model"):
            serve_state.use_running_services(model="another")
        assert not urls()
        serve_state.use_running_services(model=str(tmp_path / "m"))
        assert urls() == HERE
    for name in URLS:
        monkeypatch.delenv(name)
    with serve_state.recorded_state(os.getpid(), None, judge):  # of an engine in the command
        serve_state.use_running_services(model="mine")
        assert urls() == judge


def test_a_command_names_the_services_that_it_needs_and_no_others(tmp_path):
    recorded, result = ROOT / "tests" / "data" / "recorded_run", tmp_path / "result.jsonl"

    def said(*words):
        finished = cobalt(*words)
        return finished.returncode, [line for line in finished.stderr.splitlines() if str(os.getpid()) in line]

    with serve_state.recorded_state(os.getpid(), "the_model", HERE):  # nothing answers at its address
        assert said("evaluate", "-i", recorded / "single_turn.jsonl", "-o", result) == (0, [])
        code, lines = said("evaluate", "-i", recorded / "multi_turn.jsonl", "-o", tmp_path / "multi.jsonl")
        assert code == 1 and len(lines) == 1 and "judge" in lines[0] and "the_model" not in lines[0]
        code, lines = said("sample", "-i", recorded / "problems.jsonl", "-o", tmp_path / "sampled.jsonl")
        assert code == 1 and len(lines) == 1 and "the_model" in lines[0]


def test_serve_prints_the_lines_that_set_the_variables_in_another_terminal_and_the_name_of_the_model():
    with serve_state.recorded_state(os.getpid(), "m", HERE | {"COBALT_JUDGE_URL": "http://a http://b"}) as state:
        lines = explanation(state, "model-1a2b").splitlines()
    assert any(line.startswith("engine ") and "model-1a2b" in line for line in lines)
    exports = "\n".join(line for line in lines if line.startswith("export "))
    command = f"{exports}\necho $COBALT_JUDGE_URL $COBALT_ENGINE_URL"
    said = subprocess.check_output(["bash", "-c", command], text=True).split()
    assert said == ["http://a", "http://b", HERE["COBALT_ENGINE_URL"]]


# --- own problems


def own(identifier, tests):
    numbers = {"inputs": [f"{n}\n" for n in range(tests)], "outputs": [f"{n * n}\n" for n in range(tests)]}
    return {"id": identifier, "question": "Print the square.", "test_cases": numbers}


@pytest.mark.parametrize(("tests", "asked", "public"), [(2, 4, 1), (4, 4, 3), (5, 4, 4), (9, 4, 4), (9, 2, 2)])
def test_the_first_tests_become_public_and_at_least_one_stays_hidden(tests, asked, public):
    problem = Problem.parse(split_tests(Problem.parse(own("a", tests)), asked))
    assert len(problem.public_tests) == public
    assert problem.public_tests.inputs + problem.hidden_tests.inputs == problem.tests.inputs


@pytest.mark.parametrize(
    ("tests", "named"),
    [
        ({"fn_name": "f", "inputs": ["1", "1 2"], "outputs": ["2", "3"]}, "test 1 .*JSON"),  # no program could pass it
        ({"fn_name": "f", "inputs": ["1", "abc"], "outputs": ["2", "3"]}, "test 1 .*JSON"),
        ({"fn_name": "f", "inputs": ["1", "1\n2"], "outputs": ["2", "abc"]}, "test 1 .*JSON"),
        ({"function": "f", "inputs": ["1", "2"], "outputs": ["1", "2"]}, "'p'.*'function'.*fn_name"),
        ('{"function": "f", "inputs": ["1", "2"], "outputs": ["1", "2"]}', "'p'.*'function'.*fn_name"),
    ],
)
def test_tests_of_a_function_that_nothing_could_pass_or_read_are_named_before_anything_starts(tests, named):
    with pytest.raises(UserError, match=named):
        split_tests(Problem.parse({"id": "p", "question": "f", "test_cases": tests}))


@pytest.mark.parametrize(("tests", "warned"), [(7, True), (8, False)])
def test_few_hidden_tests_are_warned_of(tmp_path, caplog, tests, warned):
    source = write_lines(tmp_path / "p.jsonl", [own("a", tests), own("b", 9), square_problem("c")])
    split_problem_file(source, tmp_path / "q.jsonl")
    assert ("1 of 3 problems" in caplog.text) is warned


def test_a_run_of_other_settings_in_the_folder_is_refused_by_try_before_an_engine_starts(tmp_path):
    source = write_lines(tmp_path / "p.jsonl", [own("a", 9)])
    model, other, namesake = models = [tmp_path / name for name in ("one", "two", "other/one")]
    for folder in models:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}" + " " * len(str(folder)))
        (folder / "model.safetensors").touch()
    given = Arguments(source, tmp_path / "run", model=str(model))
    settings = given.sample_settings()
    split_problem_file(source, settings.input_file)
    made = {"stage": "single_turn", "engine": {"model": "one", "fingerprint": fingerprint(model)}} | settings.decisive()
    open_manifest(settings.output_file, made, [settings.input_file])
    write_lines(settings.output_file, [own("a", 9)])
    refused = {
        "--max_tokens 256": "generation.max_tokens",
        "-n 3": "generation.n",
        "--prompts pocket": "prompts",
        "--public_tests 2": "problems.jsonl",
        f"--model {other}": "engine.model",
        f"--model {namesake}": "engine.fingerprint",
    }
    words = ["cobalt", "try", source, "-o", tmp_path / "run"]
    said = each_in_one_sentence([[*words, "--model", model, *flags.split()] for flags in refused])
    assert [named for named, text in zip(refused.values(), said, strict=True) if named not in text] == []


@pytest.mark.parametrize(
    ("reasons", "tokens", "limits"),
    [
        (["stop"] * 4, [10, 20, 30, 512], []),
        (["length", "length", "stop", "length"], [512, 512, 20, 512], ["75.0 % --max_tokens"]),
        (["length", "length", "stop", "stop"], [512, 100, 20, 30], ["50.0 % max_model_len"]),
    ],
)
def test_a_stage_says_at_its_end_which_share_of_the_responses_was_cut_off(tmp_path, reasons, tokens, limits):
    from cobalt.rollout.multi_turn import RepairSettings, repaired
    from cobalt.rollout.single_turn import SampleSettings, sampled

    fields = {"finish_reasons": reasons, "completion_tokens": tokens}
    result = {"passing": [False] * 4, "feedback": ["wrong"] * 4}
    single = square_problem(1, responses=["none"] * 4, exec_results=[result] * 4, **fields)
    by_turn = {name: [values] for name, values in fields.items()}
    multi = trajectory_record(1, [[(0, 0)]] * 4, **by_turn)
    for record in (single, multi):
        path = tmp_path / "r.jsonl"
        path.unlink(missing_ok=True)
        open_manifest(path, {"generation": {"max_tokens": 512}})
        write_lines(path, [record])
        outcome = sampled(SampleSettings(path, path)) if record is single else repaired(RepairSettings(path, path))
        lines = outcome.tables
        assert len(lines) == len(limits)
        for line, limit in zip(lines, limits, strict=True):
            share, named = limit.split(" % ")
            assert line.startswith(share) and named in line


def test_the_flags_of_single_turn_that_later_turns_need_are_in_the_next_command(tmp_path):
    from cobalt.rollout.api import ApiSampleSettings
    from cobalt.rollout.single_turn import sampled

    files = (tmp_path / "p.jsonl", write_lines(tmp_path / "s.jsonl", []))
    said = sampled(ApiSampleSettings(*files, model_name="a/b", prompts="pocket", concurrency=3)).next
    assert "--model a/b" in said and "--prompts pocket" in said
    assert "--model" in sampled(ApiSampleSettings(*files)).next  # which says that an API is asked
    assert "concurrency" not in said and "max_tokens" not in said


def test_split_gives_own_problems_both_kinds_of_tests_counts_them_and_names_a_next_command(tmp_path):
    source = write_lines(tmp_path / "p.jsonl", [own("a", 9), own("b", 8), square_problem("c")])
    result = tmp_path / "q.jsonl"
    for _ in range(2):  # the second run changes nothing
        finished = cobalt("split", "-i", source, "-o", result, "--public_tests", "3")
        assert finished.returncode == 0, finished.stderr
        assert f"next: cobalt sample -i {result}" in finished.stdout
        assert [(len(p.public_tests), len(p.hidden_tests)) for p in load_problems(result)] == [(3, 6), (3, 5), (2, 2)]
        assert read_summary(result) == {
            "problems": {"read": 3, "split": 2, "left as they are": 1},
            "tests of those split": {"public": 6, "hidden": 11},
        }


def test_split_refuses_in_one_sentence_and_leaves_an_earlier_result(tmp_path):
    result, source = tmp_path / "q.jsonl", write_lines(tmp_path / "p.jsonl", [own("a", 9)])
    short = write_lines(tmp_path / "short.jsonl", [own("short", 1)])
    split(SplitSettings(source, result))
    before = result.read_bytes()
    refused = {
        f"-i {short}": "'short'",
        f"-i {source} --public_tests 0": "--public_tests",
        f"-i {source} --public_tests 2": "public_tests was 4, now 2",
    }
    said = each_in_one_sentence([["cobalt", "split", *words.split(), "-o", result] for words in refused])
    assert [named for named, text in zip(refused.values(), said, strict=True) if named not in text] == []
    assert result.read_bytes() == before


def test_a_package_that_only_the_work_needs_and_the_environment_lacks_is_one_sentence(tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(1)])
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    words = ["sample", "-i", str(problems), "-o", str(tmp_path / "o.jsonl"), "--model", str(tmp_path)]
    code = f"import sys; sys.modules['vllm'] = None; from cobalt.commands.main import main; main({words!r})"
    finished = run("-c", code)
    assert finished.returncode == 2
    assert "'vllm'" in finished.stderr and "Traceback" not in finished.stderr


STARTED_BY_USERS = [
    *sorted(script.name for script in ROOT.glob("*.py") if script.name not in SERVED),
    *sorted(f"preproc/{script.name}" for script in (ROOT / "preproc").glob("*.py") if script.name != "start.py"),
    *("-m cobalt.judge", "-m cobalt.preflight", "-m cobalt.training", "-m cobalt.pocket", "-m studies.quickstart"),
]


@pytest.mark.parametrize("words", STARTED_BY_USERS)
def test_without_the_environment_every_command_names_the_first_step_in_one_sentence(words):
    finished = run("-S", *words.split(), "--no_such_flag")  # -S: without installed packages
    assert "scripts/setup.sh" in in_one_sentence(finished)


def test_a_module_keeps_its_traceback_at_a_defect_and_ends_in_one_sentence_at_ctrl_c(tmp_path):
    ends = {"raise KeyError('defect')": (1, "Traceback"), "raise KeyboardInterrupt": (130, "interrupted")}
    for statement, (code, said) in ends.items():
        (tmp_path / "tyro.py").write_text(statement)
        finished = run("-m", "cobalt.report", PYTHONPATH=str(tmp_path))
        assert finished.returncode == code and finished.stderr.startswith(said), finished.stderr


def test_ctrl_c_while_modules_are_imported_is_one_sentence():
    code = (
        "import builtins, os, signal, sys; real = builtins.__import__\n"
        "def imported(name, *more):\n"
        "    if name == 'tyro': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *more)\n"
        "builtins.__import__ = imported\n"
        "from cobalt.commands.main import main; main(['sample', '--help'])"
    )
    in_one_sentence(run("-c", code), 130)


@needs_api
@pytest.mark.sandbox
def test_each_command_says_what_it_wrote_and_names_a_next_command_that_runs(tmp_path):
    right, wrong = "```python\nprint(int(input()) ** 2)\n```", "```python\nprint(int(input()) * 2)\n```"
    problems = write_lines(tmp_path / "problems.jsonl", [square_problem(number) for number in range(2)])
    folder = tmp_path / "a run"  # a name that a shell must be given in quotes

    def model(request):
        return answer(wrong if len(request["body"]["messages"]) == 2 else right)

    def said(words):
        """What a command printed, and the words of the command that it names."""
        finished = cobalt(*words, OPENAI_API_KEY="none", COBALT_JUDGE_CONCURRENCY="1")
        assert finished.returncode == 0, finished.stderr
        following = re.search(r"^next: cobalt (.*?)(, or .*)?$", finished.stdout, re.MULTILINE)
        return finished.stdout, shlex.split(following[1]) if following else []

    with serve(model) as provider:
        words = ["sample", "-i", problems, "-o", folder / "single_turn.jsonl", "-n", "2"]
        chain = ["single_turn.jsonl", "multi_turn.jsonl", "evaluation.jsonl", "view.html"]
        words += ["--model", "mine", "--api_base", provider.url]
        for name in chain:
            text, following = said(words)
            assert f"wrote {folder / name}" in text and (folder / name).exists()
            words = following
    assert words == []
    assert len(provider.requests) == 2 * 2 * 9  # both samples of both problems, and eight rounds of feedback
    metrics = json.loads((folder / "evaluation.metrics.json").read_text())["turns"]
    assert [turn["pass_at_1"] for turn in metrics] == [0.0, *[1.0] * 8]


@pytest.mark.services
def test_try_leaves_results_report_and_viewer_and_changes_nothing_when_run_again(services, tmp_path):
    source, folder = write_lines(tmp_path / "p.jsonl", [own("a", 3), own("b", 6)]), tmp_path / "out"
    words = ["try", source, "-o", folder, "-n", "2", "--turns", "1", "--prompts", "pocket", "--max_tokens", "32"]
    written = []
    for environment in (services, {}):  # a finished run needs no services
        finished = cobalt(*words, **environment)
        assert finished.returncode == 0, finished.stderr[-3000:]
        assert str(folder / "view.html") in finished.stdout and "cobalt report" in finished.stdout
        written.append(
            [(folder / f"{name}.jsonl").read_bytes() for name in ("single_turn", "multi_turn", "evaluation")]
        )
    assert written[0] == written[1]
    assert len(json.loads((folder / "evaluation.metrics.json").read_text())["turns"]) == 2
    assert (folder / "report" / "report.md").exists() and (folder / "pass_at_1.png").exists()
