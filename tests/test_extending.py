"""The code of docs/extending.md, placed as the page says: each example alone, and a training step with all three."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from support import ROOT, write_lines

LONG = pytest.mark.skipif(
    "COBALT_LONG_TESTS" not in os.environ, reason="a training run takes minutes: set COBALT_LONG_TESTS=1"
)
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = dict(re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
ESTIMATOR = "verl/cobalt_verl/estimators/median_baseline.py"
LOOP = "verl/cobalt_verl/agent_loops/second_chance.py"
DATA = "cobalt/datasets/contest.py"
REWARD = "verl/cobalt_verl/pass_rate_reward.py"
JUDGE = "cobalt/judge/steady.py"
EXAMPLES = (ESTIMATOR, LOOP, DATA, REWARD, JUDGE)
CHOICES = {"data": "contest", "rollout": "second_chance", "estimator": "median_baseline"}


def contest(number):
    tests = {"inputs": [f"{number}\n", "0\n"], "outputs": [f"{number * number}\n", "0\n"]}
    return {"name": f"p{number}", "statement": "Print the square of a number.", "examples": tests, "secret": tests}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of this checkout with the page's files in their places."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("cobalt", "verl", "preproc"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, code in BLOCKS.items():
        path = folder / name
        # The list of agent loops gains an entry; all other files are new.
        assert path.exists() == (name == "verl/cobalt_verl/config/agent_loops.yaml")
        path.write_text((path.read_text() if path.exists() else "") + code)
    return folder


def in_checkout(checkout, *arguments, **environment):
    paths = {"PYTHONPATH": f"{checkout}:{checkout / 'verl'}"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=checkout, env=os.environ | paths | environment, capture_output=True, text=True, timeout=600
    )


def run_code(checkout, code):
    finished = in_checkout(checkout, "-c", code, VERL_USE_EXTERNAL_MODULES="cobalt_verl.plugin", VERL_PLATFORM="cpu")
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout.splitlines()[-1]


def test_each_example_is_about_thirty_lines_and_the_page_names_no_other_files():
    assert set(BLOCKS) == {*EXAMPLES, "verl/cobalt_verl/config/agent_loops.yaml"} | {
        f"verl/cobalt_verl/config/{folder}/{name}.yaml" for folder, name in CHOICES.items()
    }
    for name in EXAMPLES:
        assert 15 <= len([line for line in BLOCKS[name].splitlines() if line]) <= 40, name


@pytest.mark.slow
def test_the_examples_keep_this_projects_rules(checkout):
    files = [checkout / name for name in EXAMPLES]
    for command in (["check"], ["format", "--check"]):
        finished = subprocess.run(
            ["ruff", *command, "--config", ROOT / "pyproject.toml", *files], capture_output=True, text=True
        )
        assert finished.returncode == 0, finished.stdout


@pytest.mark.slow
def test_the_pages_choices_compose_with_the_rest(checkout):
    code = """
import json
from pathlib import Path
from cobalt.training.configuration import TrainingSettings, compose
for scale in ("pocket", "paper"):
    config = compose(TrainingSettings(Path("d"), "m", Path("o"), scale=scale, data="contest", rollout="second_chance",
                         estimator="median_baseline"))
    policy = config.actor_rollout_ref
    print(json.dumps([config.algorithm.adv_estimator, policy.rollout.agent.default_agent_loop,
                      config.trainer.total_epochs, config.data.max_prompt_length, policy.actor.clip_ratio_high]))
"""
    finished = in_checkout(checkout, "-c", code)
    assert finished.returncode == 0, finished.stderr
    lengths = [json.loads(line)[3] for line in finished.stdout.splitlines()]
    assert lengths == [1024, 2048]
    for line in finished.stdout.splitlines():
        estimator, loop, epochs, _, clip = json.loads(line)
        assert (estimator, loop, epochs, clip) == ("median_baseline", "second_chance", 8, 0.4)


@pytest.mark.slow
def test_the_pages_estimator_is_called_by_verl_and_subtracts_the_median(checkout):
    code = """
import json, torch, numpy, verl
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
rewards = torch.zeros(5, 3)
rewards[:, 2] = torch.tensor([1.0, 0.0, -1.0, 0.5, 1.0])
mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 1]])
data = DataProto.from_dict({"token_level_rewards": rewards, "response_mask": mask},
                           {"uid": numpy.array(["a", "b", "a", "a", "b"], dtype=object)})
data = compute_advantage_for_multi_trajectories(data, [f"{u}_0_{n}" for n, u in enumerate("abaab")], "median_baseline")
print(json.dumps(data.batch["advantages"].tolist()))
"""
    advantages = json.loads(run_code(checkout, code))
    assert advantages == [[0.5] * 3, [-0.5, -0.5, 0], [-1.5, 0, 0], [0] * 3, [0.5, 0, 0.5]]


@pytest.mark.slow
def test_the_pages_agent_loop_asks_again_only_where_there_is_no_program(checkout, policy):
    """The engine is a list of recorded answers; the loop, the tokenizer and the chat template are the real ones."""
    code = f"""
import asyncio, json
from pathlib import Path
from types import SimpleNamespace
from hydra.utils import instantiate
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput
from cobalt.training.configuration import TrainingSettings, compose

config = compose(TrainingSettings(Path("d"), {policy!r}, Path("o"), rollout="second_chance"))
tokenizer = AutoTokenizer.from_pretrained({policy!r})
[entry] = [e for e in OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
           if e.name == config.actor_rollout_ref.rollout.agent.default_agent_loop]

async def ask(*answers):
    asked = []
    async def generate(prompt_ids, sampling_params, **_):
        asked.append([tokenizer.decode(prompt_ids), sampling_params["seed"]])
        return TokenOutput(token_ids=tokenizer.encode(answers[len(asked) - 1], add_special_tokens=False))
    wanted = OmegaConf.create({{"_target_": entry._target_, "seeded": entry.seeded}})
    loop = instantiate(wanted, trainer_config=DictConfigWrap(config),
        server_manager=SimpleNamespace(generate=generate), tokenizer=tokenizer, processor=None, dataset_cls=None,
        data_config=DictConfigWrap(config.data))
    outputs = await loop.run({{"temperature": 1.0}}, raw_prompt=[{{"role": "user", "content": "problem 1"}}],
                             global_steps=1, index=0, session_id=0)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    texts = [tokenizer.decode(output.response_ids) for output in outputs]
    return [asked, texts, [set(output.response_mask) == {{1}} for output in outputs]]

program = "```python\\nprint(1)\\n```"
print(json.dumps([asyncio.run(ask(program)), asyncio.run(ask("no program", program))]))
"""
    once, twice = json.loads(run_code(checkout, code))
    assert len(once[0]) == len(once[1]) == 1
    assert [len(part) for part in twice] == [2, 2, 2] and all(twice[2])
    assert twice[0][1][0].startswith(twice[0][0][0]) and "no program" in twice[0][1][0]
    assert "print(1)" in twice[1][1] and twice[0][0][1] == twice[0][1][1] == once[0][0][1]


@pytest.mark.slow
def test_the_pages_data_set_becomes_problems_and_training_rows(checkout, policy, tmp_path):
    rows = write_contest(checkout, tmp_path, policy)
    from pyarrow import parquet

    table = parquet.read_table(rows / "train.parquet").to_pylist()
    assert len(table) == 16 and table[0]["data_source"] == "contest"
    assert json.loads(table[3]["reward_model"]["ground_truth"])["outputs"] == ["9\n", "0\n"] * 2
    bad = write_lines(tmp_path / "bad.jsonl", [contest(1), contest(2) | {"secret": None}])
    finished = convert(checkout, bad, tmp_path / "problems.jsonl")
    assert finished.returncode == 2 and "line 2" in finished.stderr and len(finished.stderr.splitlines()) == 1


@pytest.mark.sandbox
@pytest.mark.slow
def test_the_pages_reward_is_the_share_of_passed_tests_in_the_function_that_verl_calls(checkout):
    code = f"""
import asyncio, json
from pathlib import Path
from verl.trainer.ppo.reward import get_custom_reward_fn
from cobalt.training.configuration import TrainingSettings, compose
override = "reward.custom_reward_function.path={REWARD}"
reward = get_custom_reward_fn(compose(TrainingSettings(Path("d"), "m", Path("o"), overrides=[override])))
tests = json.dumps({{"inputs": ["1", "2"], "outputs": ["1", "4"]}})
async def scores():
    fence = chr(96) * 3
    responses = [f"{{fence}}python\\nprint({{code}})\\n{{fence}}" for code in ("int(input()) ** 2", "1")] + ["nothing"]
    return [await reward("contest", text, tests, {{"id": 1, "split": "train"}}) for text in responses]
print(json.dumps(asyncio.run(scores())))
"""
    solved, half, none = json.loads(run_code(checkout, code))
    assert (solved, half, none) == ({"score": 1, "acc": 1}, {"score": 0.5, "acc": 0}, {"score": -1, "acc": 0})


def test_the_pages_judge_takes_the_worse_of_two_results(checkout):
    code = """
import asyncio, json
from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.judge.steady import SteadyJudge
from cobalt.problems.problem import TestSuite
class Once:
    passing = True
    async def judge(self, code, suite, *, stop_at_first_failure=False):
        self.passing = not self.passing
        return ExecResult([self.passing], [""], [Verdict(VerdictKind.PASSED)])
    async def describe(self):
        return {"isolated": True}
judge = SteadyJudge(Once())
result = asyncio.run(judge.judge("print(1)", TestSuite(("",), ("1",))))
print(json.dumps([result.passing, asyncio.run(judge.describe())]))
"""
    assert json.loads(run_code(checkout, code)) == [[False], {"isolated": True, "runs": 2}]


def convert(checkout, source, result):
    return in_checkout(checkout, "-m", "cobalt.stage", "cobalt.datasets.contest:contest", "-i", source, "-o", result)


def write_contest(checkout, folder, model):
    """The page's data set from its raw rows to parquet."""
    for split, numbers in (("train", range(16)), ("validation", range(16, 20))):
        source = write_lines(folder / f"{split}_raw.jsonl", map(contest, numbers))
        finished = convert(checkout, source, folder / f"{split}.jsonl")
        assert finished.returncode == 0, finished.stderr
    finished = in_checkout(
        checkout, "preproc/verl_preproc_single_turn.py", "--train_file", folder / "train.jsonl", "--validation_file",
        folder / "validation.jsonl", "--local_dir", folder / "rows", "--model_name", model, "--prompts", "pocket",
        "--data_source", "contest",
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return folder / "rows"


@LONG
@pytest.mark.services
@pytest.mark.timeout(1200)
def test_a_training_step_with_the_pages_data_loop_and_estimator(checkout, seed_model, tmp_path):
    rows = write_contest(checkout, tmp_path, seed_model)
    choices = [part for folder, name in CHOICES.items() for part in (f"--{folder}", name)]
    finished = in_checkout(
        checkout, "-m", "cobalt.training", *choices, "--data_dir", rows, "--model", seed_model, "--output_dir",
        tmp_path / "run", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1", "data.max_response_length=96",
        "trainer.total_training_steps=1", "trainer.save_freq=1",
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    metrics = [json.loads(line)["metrics"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[1]["critic/rewards/mean"] <= 1
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
