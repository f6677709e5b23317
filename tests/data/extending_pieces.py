"""The examples of docs/extending.md in use, all in one process: importing veRL takes longer than they do."""

import asyncio, json, os, traceback
from pathlib import Path
from types import SimpleNamespace
import numpy, torch, verl
from hydra.utils import instantiate
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.workers.rollout.replica import TokenOutput
from cobalt.problems.problem import TestSuite
from cobalt.training.configuration import TrainingSettings, compose

def settings(**choices):
    return TrainingSettings(Path("d"), os.environ["POLICY"], Path("o"), **choices)

def choices():
    composed = []
    for scale in ("pocket", "paper"):
        own = {"data": "contest", "rollout": "second_chance", "estimator": "median_baseline"}
        config = compose(settings(scale=scale, **own))
        policy = config.actor_rollout_ref
        composed.append([config.algorithm.adv_estimator, policy.rollout.agent.default_agent_loop,
                         config.trainer.total_epochs, policy.actor.clip_ratio_high, config.data.max_prompt_length])
    return composed

def estimator():
    rewards = torch.zeros(5, 3)
    rewards[:, 2] = torch.tensor([1.0, 0.0, -1.0, 0.5, 1.0])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 1]])
    data = DataProto.from_dict({"token_level_rewards": rewards, "response_mask": mask},
                               {"uid": numpy.array(["a", "b", "a", "a", "b"], dtype=object)})
    keys = [f"{u}_0_{n}" for n, u in enumerate("abaab")]
    data = compute_advantage_for_multi_trajectories(data, keys, "median_baseline")
    return data.batch["advantages"].tolist()

def loop():  # the engine is a list of recorded answers; the loop, the tokenizer and the chat template are the real ones
    config = compose(settings(rollout="second_chance"))
    tokenizer = AutoTokenizer.from_pretrained(os.environ["POLICY"])
    [entry] = [e for e in OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
               if e.name == config.actor_rollout_ref.rollout.agent.default_agent_loop]

    async def ask(*answers):
        asked = []
        async def generate(prompt_ids, sampling_params, **_):
            asked.append([tokenizer.decode(prompt_ids), sampling_params["seed"]])
            return TokenOutput(token_ids=tokenizer.encode(answers[len(asked) - 1], add_special_tokens=False))
        wanted = OmegaConf.create({"_target_": entry._target_, "seeded": entry.seeded})
        made = instantiate(wanted, trainer_config=DictConfigWrap(config),
            server_manager=SimpleNamespace(generate=generate), tokenizer=tokenizer, processor=None, dataset_cls=None,
            data_config=DictConfigWrap(config.data))
        outputs = await made.run({"temperature": 1.0}, raw_prompt=[{"role": "user", "content": "problem 1"}],
                                 global_steps=1, index=0, session_id=0)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        texts = [tokenizer.decode(output.response_ids) for output in outputs]
        return [asked, texts, [set(output.response_mask) == {1} for output in outputs]]

    program = "```python\nprint(1)\n```"
    return [asyncio.run(ask(program)), asyncio.run(ask("no program", program))]

def judge():
    from cobalt.judge.own import OwnJudge
    own = OwnJudge(lambda code, stdin: f"{len(code)} {stdin}")
    result = asyncio.run(own.judge("print", TestSuite(("a", "b"), ("5 a", "6"))))
    kinds = [verdict.kind for verdict in result.verdicts]
    return [result.passing, [bool(text) for text in result.feedback], kinds, asyncio.run(own.describe())]

def reward():
    path = "reward.custom_reward_function.path=verl/cobalt_verl/pass_rate_reward.py"
    function = get_custom_reward_fn(compose(settings(overrides=[path])))
    tests = json.dumps({"inputs": ["1", "2"], "outputs": ["1", "4"]})
    async def scores():
        responses = [f"```python\nprint({code})\n```" for code in ("int(input()) ** 2", "1")] + ["nothing"]
        return [await function("contest", text, tests, {"id": 1, "split": "train"}) for text in responses]
    return asyncio.run(scores())

said = {}
for piece in (choices, estimator, loop, judge, reward):
    try:
        said[piece.__name__] = piece()
    except Exception:
        said[piece.__name__] = traceback.format_exc()
print(json.dumps(said))
