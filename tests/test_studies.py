"""Studies: steps run once and in order; a stopped or changed study continues; plans name commands that exist."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from outside import arguments_of
from support import ROOT, executable, scripts_alone

from cobalt.serving.services import Arguments as ServicesArguments
from cobalt.serving.services import ServiceFlags
from cobalt.stage import cli
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.records import RecordFile, read_records
from cobalt.training.configuration import TrainingSettings
from studies import offline, paper_row, plan, quickstart, real_model, reproduce
from studies.flags import listed, services_command
from studies.plan import Step, Study, is_done, run_study, step_records

# --- studies of small commands


def step(name, *, needs=(), script="", **fields):
    """A step that notes its name in `ran` and makes a file of its name, from the content of those it needs."""
    lines = [f"echo {name} >>ran", script, f"cat {' '.join(needs)} /dev/null >{name}.part; mv {name}.part {name}"]
    command = ("bash", "-ec", "\n".join(lines))
    return Step(name, f"Make {name}.", command, files=(Path(name),), needs=tuple(map(Path, needs)), **fields)


def study(root, *steps, **arguments):
    return Study("small", Path("study"), arguments, steps, "done", root=root)


def run(planned, show=lambda text: None):
    """Run a study; returns its exit code and the steps that ran, in order."""
    log = planned.root / "ran"
    log.unlink(missing_ok=True)
    code = run_study(planned, show)
    return code, log.read_text().split() if log.exists() else []


def done(planned):
    return [step.name for step in planned.steps if is_done(planned, step, step_records(planned).get(step.name))]


@given(count=st.integers(1, 4), data=st.data())
@settings(max_examples=15)
def test_a_study_that_fails_at_any_step_goes_on_there_and_runs_every_step_once(tmp_path_factory, count, data):
    root = tmp_path_factory.mktemp("study")
    names = [f"s{number}" for number in range(count)]
    failing = data.draw(st.integers(0, count - 1))
    needs = [data.draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else [] for i in range(count)]
    scripts = ["test -e repaired || exit 7" if index == failing else "" for index in range(count)]
    planned = study(root, *(step(n, needs=need, script=s) for n, need, s in zip(names, needs, scripts, strict=True)))
    assert run(planned) == (7, names[: failing + 1])
    assert done(planned) == names[:failing]
    (root / "repaired").touch()
    assert run(planned) == (0, names[failing:])
    assert run(planned) == (0, [])
    assert done(planned) == [record["step"] for record in read_records(planned.record_file)] == names


@pytest.fixture
def chain(tmp_path):
    """A study a -> b -> c of which every step is done."""
    planned = study(tmp_path, step("a"), step("b", needs=["a"], script="echo b"), step("c", needs=["b"]))
    assert run(planned) == (0, ["a", "b", "c"])
    return planned


@pytest.mark.parametrize("name", "abc")
@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("changed")], ids=["removed", "changed"])
def test_a_step_whose_file_is_not_what_it_made_runs_again_and_those_after_it_only_if_it_changed(chain, name, spoil):
    spoil(chain.root / name)
    assert done(chain) != ["a", "b", "c"]
    assert run(chain) == (0, [name])


def test_a_step_whose_input_or_command_changed_runs_again_and_the_list_says_which_are_done(chain):
    changed = replace(chain.steps[0], command=("bash", "-c", "echo a >>ran; echo new >a"))
    planned = replace(chain, steps=(changed, *chain.steps[1:]))
    assert run(planned) == (0, ["a", "b", "c"])
    other = replace(planned.steps[2], command=(*planned.steps[2].command, "argument"))
    planned = replace(planned, steps=(*planned.steps[:2], other))
    assert ["done" in line for line in listed(planned).splitlines()[1:]] == [True, True, False]
    assert run(planned) == (0, ["c"])
    record = read_records(planned.record_file)[-1]
    assert record["command"] == list(other.command) and record["started"].endswith("Z")
    assert 0 <= record["seconds"] < 60 and (record["files"].keys(), record["needs"].keys()) == ({"c"}, {"b"})


def test_a_folder_of_other_arguments_is_refused_before_any_step(tmp_path):
    assert run(study(tmp_path, step("a"), seed=0)) == (0, ["a"])
    with pytest.raises(UserError, match="seed"):
        run(study(tmp_path, step("a", script="true"), step("b"), seed=1))
    assert not (tmp_path / "b").exists()
    more = study(tmp_path, step("a"), step("b"), seed=0)
    with RecordFile(more.record_file), pytest.raises(UserError):
        run(more)  # while another run has the folder
    assert run(more) == (0, ["b"])


@pytest.mark.parametrize(
    ("script", "code", "said"), [("exit 3", 3, "out"), ("kill -9 $$", 137, "out"), ("exit 0", 1, "did not make a")]
)
def test_the_first_failure_names_step_and_log_and_shows_what_the_step_said_last(tmp_path, caplog, script, code, said):
    """A signal ends a step with a shell's exit code, and a step that does not make its files fails, too."""
    lines = "; ".join(f"echo line-{number}-" for number in range(30))
    failing = Step("a", "Fail.", ("bash", "-c", f"{lines}; echo out >&2; {script}"), files=(Path("a"),))
    assert run(study(tmp_path, failing, step("b"))) == (code, [])
    [failure] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert all(part in failure for part in ("step a", str(code), "study/logs/a.log", said))
    assert "line-1-" not in failure and "line-1-" in (tmp_path / "study/logs/a.log").read_text()


def test_only_the_output_of_shown_steps_is_for_the_terminal(tmp_path):
    shown = []
    planned = study(tmp_path, step("a", script="echo hidden"), step("b", script="echo table", shown=True))
    for _ in "12":
        assert run(planned, shown.append)[0] == 0
        (tmp_path / "b").unlink()
    assert shown == ["table\n"] * 2, "each time what that run has said"


def test_commands_see_the_users_environment_without_the_variables_that_the_plan_decides(tmp_path, monkeypatch):
    for name in ("RAY_ADDRESS", "SOME_API_KEY"):
        monkeypatch.setenv(name, "theirs")
    assert run(study(tmp_path, step("a", script="env >variables; which python >>variables")))[0] == 0
    seen = (tmp_path / "variables").read_text().splitlines()
    assert {"SOME_API_KEY=theirs", "HF_HUB_OFFLINE=1"} <= set(seen) and "RAY_ADDRESS=theirs" not in seen
    assert seen[-1] == str(Path(sys.executable).parent / "python")


def test_what_another_study_makes_must_be_there_before_anything_runs(tmp_path):
    planned = replace(study(tmp_path, step("a"), step("b", needs=["a", "other"])), inputs=(Path("other"),))
    with pytest.raises(UserError, match="other"):
        run(planned)
    assert not list(tmp_path.iterdir())
    (tmp_path / "other").write_text("")
    assert run(planned) == (0, ["a", "b"])


# --- stops


STUDY = """
import sys
from pathlib import Path
from studies.flags import StudyFlags
from cobalt.stage.cli import run_script
from studies.plan import Step, Study
steps = (Step("a", "Make a.", ("touch", "a"), (Path("a"),)), Step("b", "Make b.", ("bash", "waiting.sh"), (Path("b"),)))
study = Study("small", Path("study"), {}, steps, "done", root=Path(sys.argv.pop(1)))
run_script(StudyFlags, lambda arguments: arguments.carry_out(study))
"""
WAITING = """
echo $$ >process
trap 'kill $!; echo kept >kept; exit 1' INT
if [ ! -e later ]; then sleep 600 & fi
echo up >pipe
wait
touch b
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.slow
def test_a_stopped_study_runs_its_interrupted_step_again(tmp_path, number):
    (tmp_path / "waiting.sh").write_text(WAITING)
    os.mkfifo(tmp_path / "pipe")
    for exit_code, made in ((-number if number == signal.SIGKILL else 130, ["a"]), (0, ["a", "b"])):
        process = subprocess.Popen([sys.executable, "-c", STUDY, tmp_path], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert (tmp_path / "pipe").read_text() == "up\n"
        if exit_code:
            process.send_signal(number)
        assert "Traceback" not in process.communicate(timeout=60)[1] and process.returncode == exit_code
        assert [record["step"] for record in read_records(tmp_path / "study/steps.jsonl")] == made
        if exit_code == -signal.SIGKILL:
            os.killpg(int((tmp_path / "process").read_text()), signal.SIGKILL)
        else:
            assert (tmp_path / "kept").exists() == (number != signal.SIGKILL), "the step is asked to end and waited for"
        (tmp_path / "later").touch()


def test_an_interrupt_while_a_step_is_started_ends_it(tmp_path, monkeypatch):
    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            if "process_group" in named:  # a step
                started.append(self)
                signal.raise_signal(signal.SIGINT)

    started = []
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(study(tmp_path, step("a", script="sleep 600")))
    assert started[0].returncode == -signal.SIGINT


# --- services


class Stub(ServiceFlags):
    """Services that only note when they start and stop."""

    @contextlib.contextmanager
    def started(self):
        model = Path(self.model).name
        if model == "broken":
            raise InfrastructureError("no such model")
        notes.append(("start", model))
        yield {"COBALT_STUB": model}
        notes.append(("stop", model))


notes = []


@pytest.fixture
def served(monkeypatch):
    """Makes a step that needs the services of a model."""
    notes.clear()
    monkeypatch.setattr(plan, "variables", dict)
    script = 'echo "$COBALT_STUB" >>served'
    return lambda name, model: step(name, script=script, services=None if model is None else Stub(model=model))


def test_neighbouring_steps_share_services_and_others_do_not(tmp_path, served):
    models = ["m", "m", None, "m", "n"]
    planned = study(tmp_path, *(served(f"s{number}", model) for number, model in enumerate(models)))
    assert run(planned)[0] == 0
    assert (tmp_path / "served").read_text().split("\n")[:-1] == ["m", "m", "", "m", "n"]
    expected = [(what, model) for model in "mmn" for what in ("start", "stop")]
    assert notes == expected
    assert run(planned) == (0, []) and notes == expected, "none is started for steps that are done"


def test_services_stop_when_a_step_fails_and_fail_the_step_if_they_do_not_start(tmp_path, served, caplog):
    assert run(study(tmp_path, replace(served("a", "m"), command=("false",))))[0] == 1
    assert [what for what, _ in notes] == ["start", "stop"]
    assert run(study(tmp_path, served("a", "broken"), served("b", "m"))) == (1, [])
    assert "no such model" in caplog.text, "what the services have said"


# --- the project's studies

MINE = Path("runs/mine")
STUDIES = {
    f"{module.__name__.partition('.')[2]} {flags}": module.study(module.Arguments(**flags))
    for module, flags in [
        *((quickstart, flags) for flags in ({}, {"output_dir": MINE, "seed": 3, "fast": True}, {"hacking": True})),
        (quickstart, {"profile": "gpu-smoke"}),
        (quickstart, {"seed": 1, "profile": "gpu-smoke", "model": "Qwen/Qwen3-0.6B", "gpus": 4}),
        (reproduce, {"seeds": (4,)}),
        (real_model, {}),
        (real_model, {"output_dir": MINE, "seed": 3, "limit": 4, "model": Path("own")}),
        (paper_row, {"row": "FT", "model": "own/model", "data": Path("data")}),
        (paper_row, {"row": "FT-Cobalt"}),
        (offline, {"seeds": (4,), "page": Path("mine.md")}),
    ]
}


@pytest.mark.parametrize(
    ("module", "flags", "named"),
    [
        *((module, {"seed": -1}, "-1") for module in (quickstart, real_model, paper_row)),
        *((module, {"seeds": seeds}, "--seeds") for module in (reproduce, offline) for seeds in ((), (0, 0))),
        *((real_model, {"limit": limit}, "--limit") for limit in (-1, 0, 3)),
        (quickstart, {"fast": True, "hacking": True}, "--fast"),
        (quickstart, {"model": "Qwen/Qwen3-0.6B"}, "--model"),
        (quickstart, {"gpus": 2}, "--gpus"),
        (quickstart, {"profile": "gpu-smoke", "gpus": 0}, "--gpus"),
        (quickstart, {"profile": "gpu-smoke", "fast": True}, "--fast"),
    ],
)
def test_flags_that_contradict_one_another_or_are_out_of_range_are_refused(module, flags, named):
    with pytest.raises(UserError, match=named):
        module.study(module.Arguments(**flags))


def test_the_second_round_trains_from_the_policy_that_collected_for_it():
    steps = {step.name: step for step in reproduce.study(reproduce.Arguments(seeds=(4,))).steps}
    reached = "runs/reproduce/seed4/models/ft_cobalt_2_rounds_1"
    assert steps["seed4_ft_cobalt_2_rounds_2_collection"].services.model == reached
    assert reached in steps["seed4_ft_cobalt_2_rounds_2_training"].command


@pytest.fixture(scope="module")
def expand(tmp_path_factory):
    """A function that gives the Python command lines that a step's command comes to, whatever scripts lie between."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "scripts", root / "scripts")  # without .venv, whose Python some scripts prefer
    stub, log = root / "bin" / "python", root / "log"
    executable(stub, f"printf '%s\\t' \"$@\" >>{log}; echo >>{log}")

    def lines(command):
        if command[0] == "python":
            return [list(command[1:])]
        log.write_text("")
        path = f"{stub.parent}:{os.environ['PATH']}"
        subprocess.run(command, cwd=root, env=os.environ | {"PATH": path}, check=True, capture_output=True)
        text = log.read_text().replace(f"{root}/", "")  # scripts name others by their checkout
        return [line.rstrip("\t").split("\t") for line in text.splitlines()]

    return lines


INPUTS = {"input_file", "train_file", "validation_file", "perturbed_file", "model_name", "model", "data_dir"}
OUTPUTS = ("output_file", "output_dir", "local_dir", "page")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.slow
def test_steps_of_a_plan_need_what_is_there_by_then_and_name_what_their_commands_read_and_make_once(name, expand):
    """Commands have their scripts' flags; each path in one is named as made or needed, or lies in such a folder."""
    made, steps = set(STUDIES[name].inputs), STUDIES[name].steps
    assert len({item.name for item in steps}) == len(steps)
    for item in steps:
        assert made.issuperset(item.needs) and made.isdisjoint(item.files)
        made.update(item.files)
        if item.command[:2] == ("bash", "-c") or "hf" in item.command:
            continue
        lines, written = expand(item.command), set()
        assert lines
        for line in lines:
            arguments = arguments_of(line)
            values = vars(arguments)
            written |= {values[key] for key in OUTPUTS if values.get(key) is not None}
            if "validation_share" in values:
                validation = Path(values["output_dir"]) / "validation.jsonl"
                assert (validation in item.files) == (values["validation_share"] > 0)
            for key in INPUTS & values.keys():
                path = Path(values[key]) if values[key] is not None else None
                known = {*item.needs, *(parent for need in item.needs for parent in need.parents), *written}
                assert path is None or path in known or any(path.is_relative_to(folder) for folder in written)
        assert all(any(file.is_relative_to(folder) for folder in written) for file in item.files)
        if item.training is not None:
            # What a dry run checks is what the command trains.
            read = {field.name: getattr(arguments, field.name) for field in fields(TrainingSettings)}
            assert TrainingSettings(**read | {"overrides": tuple(read["overrides"])}) == item.training
        if item.services is not None:
            services = cli.parse_arguments(ServicesArguments, [*services_command(item)[3:], *item.command])
            assert services.command == list(item.command)
            assert all(getattr(services, key) == value for key, value in vars(item.services).items())


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("quickstart", [], {}),
        ("quickstart", ["--fast", "o", "3"], {"fast": True, "output_dir": Path("o"), "seed": 3}),
        ("quickstart", ["--profile=gpu-smoke", "--list"], {"profile": "gpu-smoke", "list_steps": True}),
        ("quickstart", ["--profile", "gpu-smoke", "--dry_run"], {"profile": "gpu-smoke", "dry_run": True}),
        ("hacking_study", ["o"], {"hacking": True, "output_dir": Path("o")}),
    ],
)
def test_a_studys_script_sets_up_what_its_profile_needs_and_passes_its_flags_on(tmp_path, script, arguments, expected):
    scripts_alone(tmp_path)
    executable(tmp_path / ".venv" / "bin" / "python", "printf '%s\\t' \"$@\" >>log")
    subprocess.run(["bash", str(tmp_path / "scripts" / f"{script}.sh"), *arguments], cwd="/", check=True)
    *set_up, line = (tmp_path / "log").read_text().splitlines()
    profile = "gpu" if expected.get("profile") == "gpu-smoke" else "cpu"
    assert [words.split() for words in set_up] == (
        [] if "--dry_run" in arguments else [["setup", "--profile", profile]]
    )
    flag, name, *rest = line.rstrip("\t").split("\t")
    assert (flag, name) == ("-m", "studies.quickstart")
    assert cli.parse_arguments(quickstart.Arguments, rest) == quickstart.Arguments(**expected)
