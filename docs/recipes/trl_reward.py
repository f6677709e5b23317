"""TRL's GRPOTrainer with the judge as its reward: `trl_reward.py PROBLEMS MODEL --output_dir FOLDER`.

`reward_function` is the recipe. The data set has two columns: `prompt`, and `tests` with each problem's suite as JSON.
A failure of the judge raises `InfrastructureError`, after the judge's own attempts, and so stops the training run. It
is never a reward.
"""

import asyncio
import sys
from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, TrlParser

from cobalt.episode import first_messages, load_prompts
from cobalt.episode.chat_template import template_thinks
from cobalt.judge import LocalJudge
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.reward import RewardSettings, compute_reward, program_to_judge


def reward_function(*, require_thinking=True):
    """The function that TRL calls; without `require_thinking`, a response without thinking tags has no flaw of form."""
    settings = RewardSettings(require_thinking=require_thinking)

    async def code_reward(completions, tests, **_):
        """The paper's reward of each completion; TRL passes the columns of the data set by name."""

        async def score(completion, suite):
            response = completion[-1]["content"]
            program = program_to_judge(response, settings)
            rate = None if program is None else (await judge.judge(program, TestSuite.parse(suite))).pass_rate
            return compute_reward(response, rate, settings=settings).total

        async with LocalJudge() as judge:
            return await asyncio.gather(*map(score, completions, tests))

    return code_reward


def rows(path):
    """A file of problems as TRL's data set."""
    prompts = load_prompts("program")
    problems = load_problems(Path(path))
    return Dataset.from_list([{"prompt": first_messages(p, prompts), "tests": p.tests.to_json()} for p in problems])


if __name__ == "__main__":
    problems, model, *flags = sys.argv[1:]
    [config] = TrlParser(GRPOConfig).parse_args_and_config(flags)
    thinks = template_thinks(AutoTokenizer.from_pretrained(model), {})
    print(f"reward: a response {'must' if thinks else 'need not'} have a </think>, by the model's chat template")
    reward = reward_function(require_thinking=thinks)
    GRPOTrainer(model, reward_funcs=reward, args=config, train_dataset=rows(problems)).train()
