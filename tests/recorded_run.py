"""A small run from problems to report in which nothing is random or measured, so that its bytes can be compared.

    PYTHONPATH=tests python tests/recorded_run.py tests/data/recorded_run

wrote the files there with the code at commit 824951e, and `viewer.json` when the viewer's data got their present form.
`test_recorded_run.py` makes them again and compares.
"""

import asyncio
import json
import sys
import zlib
from pathlib import Path

from support import square_problem, write_lines

from cobalt.engine import Completion
from cobalt.episode.record import read_trajectories
from cobalt.hacking.extraction import ExtractionSettings, extract_events
from cobalt.hacking.perturbation import PerturbationSettings, perturb
from cobalt.judge.feedback import failure_text
from cobalt.judge.verdict import ExecResult, Verdict, VerdictKind
from cobalt.report.runs import read_run
from cobalt.report.viewer.data import problem_data
from cobalt.rollout.evaluate import TurnsSettings, evaluate_turns, turn_metrics, write_metrics
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.protocols import outcomes_of
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.selection.processing import ProcessingSettings, select_prompts

PROGRAMS = (
    "print(int(input()) ** 2)",
    "print(int(input()) * 2)",
    "print(4)",
    "raise ValueError",
    "print({2: 9, 3: 4}.get(n := int(input()), n * n))",
)
SAMPLES, TURNS = 4, 2
SETTINGS = {"num_completions": SAMPLES, "max_tokens": 64, "seed": 0}


def _number(*parts):
    return zlib.crc32(repr(parts).encode())


class ScriptedEngine:
    """Responses, token counts, costs and finish reasons that the call alone decides."""

    def _completion(self, call, sample):
        number = _number(call.problem_id, call.turn, sample)
        if number % 11 == 0:
            return Completion(text="", finish_reason="prompt_too_long", prompt_tokens=99, message="too long: é")
        program = PROGRAMS[number % len(PROGRAMS)]
        fenced = "I do not know. \u2603" if number % 13 == 0 else f"```python\n{program}\n```"
        return Completion(
            text=f"<think>\nturn {call.turn}\n</think>\n\nTry {number % 7}:\n{fenced}",
            finish_reason="length" if number % 5 == 0 else "stop",
            prompt_tokens=number % 100,
            completion_tokens=number % 50,
            cost=None if number % 3 == 0 else number % 100 / 1000,
        )

    async def generate(self, conversation, settings, call):
        samples = range(settings.n) if call.sample is None else [call.sample]
        return [self._completion(call, sample) for sample in samples]

    async def describe(self):
        return {"model": "scripted"}


class ScriptedJudge:
    """Knows the results of the few programs above without running them; its times are made up."""

    async def judge(self, code, suite, *, stop_at_first_failure=False):
        passing, feedback, verdicts = [], [], []
        for given, expected in zip(suite.inputs, suite.outputs, strict=True):
            number = int(given)
            crashed = code == PROGRAMS[3]
            output = (number**2, number * 2, 4, "", {2: 9, 3: 4}.get(number, number**2))[PROGRAMS.index(code)]
            kind = VerdictKind.RUNTIME_ERROR if crashed else VerdictKind.WRONG_ANSWER
            passed = not crashed and str(output) == expected.strip()
            if stop_at_first_failure and not all(passing):
                passed, kind = False, VerdictKind.NOT_RUN
            kind = VerdictKind.PASSED if passed else kind
            passing.append(passed)
            feedback.append("" if passed else failure_text(kind, given, str(output), expected, "ValueError", ""))
            verdicts.append(Verdict(kind, 0.01 * number, 0.02 * number, 1 if crashed else 0, 1000 * number))
        return ExecResult(passing, feedback, verdicts, queue_seconds=0.5, run_seconds=0.25)

    async def describe(self):
        return {"judge": "scripted"}


async def _make(folder, policy):
    engine, judge = ScriptedEngine(), ScriptedJudge()
    tags = [{"source": "codeforces", "unknown": {"kept": [1, "é"]}}, {"difficulty": "HARD"}, {}]
    plain = write_lines(folder / "plain.jsonl", [square_problem(f"p{i}", **tag) for i, tag in enumerate(tags)])
    problems = folder / "problems.jsonl"
    await perturb(PerturbationSettings(plain, problems))
    single = folder / "single_turn.jsonl"
    assert not (await sample(SampleSettings(problems, single, **SETTINGS, prompts="pocket"), engine, judge)).failed
    for name, tests, source in (("", "benign", single), ("_perturbed", "perturbed", problems)):
        multi, evaluated = folder / f"multi_turn{name}.jsonl", folder / f"evaluation{name}.jsonl"
        options = {"turns": TURNS, "public_tests": tests, "prompts": "pocket", "enable_thinking": True}
        run = RepairSettings(source, multi, **SETTINGS, **options)
        assert not (await repair(run, engine, judge)).failed
        assert not (await evaluate_turns(TurnsSettings(multi, evaluated), judge)).failed
        write_metrics(turn_metrics(list(map(outcomes_of, read_trajectories(evaluated))), "x"), evaluated)
    extraction = ExtractionSettings(problems, folder / "evaluation_perturbed.jsonl", folder / "events.jsonl")
    await extract_events(extraction, judge)
    for name, settings in (("prompts", {}), ("test_prompts", {"is_test": True, "num_turns": 2})):
        run = ProcessingSettings(
            folder / "evaluation.jsonl",
            folder / f"{name}.jsonl",
            policy,
            prompts="pocket",
            perturbed_ratio=0.5,
            **settings,
        )
        await select_prompts(run, judge)
    run = read_run("run", folder / "evaluation.jsonl")
    figures = {name: getattr(run, name) for name in ("problems", "pass_at_1", "metrics", "usage")}
    (folder / "report.json").write_text(json.dumps(figures, indent=1, default=_fields) + "\n")
    pages = [problem_data(group, []) for group in read_trajectories(folder / "evaluation.jsonl")]
    (folder / "viewer.json").write_text(json.dumps(pages, indent=1) + "\n")


def _fields(value):
    return {name: getattr(value, name) for name in value.__slots__}


def make_files(folder, policy):
    """Make all files of the run in an empty folder.

    Args:
        folder: Where.
        policy: Folder of a tokenizer; only the number of its tokens matters, and that all prompts fit.
    """
    asyncio.run(_make(folder, policy))


if __name__ == "__main__":
    from cobalt.pocket.tokenizer import learn_tokenizer

    target = Path(sys.argv[1])
    target.mkdir()
    learn_tokenizer(["0"], vocabulary=400).save_pretrained("/tmp/policy_of_recorded_run")
    make_files(target, "/tmp/policy_of_recorded_run")
