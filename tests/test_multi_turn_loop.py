"""The agent loops: of several turns, its rows against the chat template's own rendering, its rewards and its ends.

All is real but the engine, which is a list of recorded token ids, the judge, which knows the programs, and veRL's
queue. Of one turn, the seeds of samples, and which engine has those of a prompt. Of the processes that run the loops,
who gives a response its reward.
"""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest
import yaml
from support import FakeJudge, composed, square_problem

from cobalt.episode import load_prompts
from cobalt.problems.problem import Problem
from cobalt.reward import compute_reward
from cobalt.stage.errors import InfrastructureError, UserError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PROBLEM = Problem.parse(square_problem("p7"))  # four tests, of which the first two are public
PROMPTS = load_prompts("pocket")
REQUIRES_THINKING = "reward.custom_reward_function.reward_kwargs.require_thinking=true"
OPENING = [
    {"role": "system", "content": PROMPTS.system},
    {"role": "user", "content": PROMPTS.first_turn(PROBLEM.question)},
]
PROGRAMS = {  # what each program passes
    "print(0)": [False, False, False, False],
    "print(4)": [True, False, False, False],
    "public": [True, True, False, False],
    "nearly": [True, True, True, False],
    "right": [True, True, True, True],
}


def passed_by(code, suite):
    return [PROGRAMS[code][index] for index in PROBLEM.tests.positions_of(suite)]


def response(program, thinking="a b"):
    return f"<think>\n{thinking}\n</think>\n\n```python\n{program}\n```"


@pytest.fixture(scope="module")
def tokenizer(policy):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy)


@pytest.fixture
def rollout(tokenizer, policy):
    """One trajectory of recorded responses, each a text (ended by the end-of-turn token) or a list of token ids."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    from cobalt_verl.agent_loops.multi_turn import MultiTurnLoop

    encode = partial(tokenizer.encode, add_special_tokens=False)

    async def run(responses, *overrides, judge=None, seeded=True, split="train", **episode):
        ids = [[*encode(each), tokenizer.eos_token_id] if isinstance(each, str) else each for each in responses]
        judge, asked = judge or FakeJudge(passed_by), []

        async def generate(request_id, prompt_ids, sampling_params):
            now = ids[len(asked)]
            asked.append((request_id, list(prompt_ids), dict(sampling_params)))
            log_probs = [-(n + 1) / 8 for n in range(len(now))]
            steps = {"min_global_steps": 2, "max_global_steps": 2}
            return TokenOutput(token_ids=now, log_probs=log_probs, extra_fields=steps)

        config = composed(policy, policy, policy, REQUIRES_THINKING, data="episodes", rollout="multi_turn")
        settings = [f"cobalt.multi_turn.turns={len(responses)}", *overrides]
        for key, _, value in (setting.partition("=") for setting in settings):  # to compose each would take long
            OmegaConf.update(config, key.lstrip("+"), yaml.safe_load(value), force_add=key.startswith("+"))
        loop = MultiTurnLoop(
            DictConfigWrap(config), SimpleNamespace(generate=generate), tokenizer, None, None,
            DictConfigWrap(config.data), seeded=seeded, judge=judge,
        )  # fmt: skip
        rules = {"enable_thinking": False, "truncated_thinking": "keep", "prompts": "pocket", "public_tests": [0, 1]}
        fields = {
            "raw_prompt": OPENING,
            "reward_model": {"ground_truth": PROBLEM.tests.to_json()},
            "extra_info": {"id": "p7", "split": split, "prev_best_pass_rate": 0.0, "episode": rules | episode},
            "global_steps": 3, "index": 5, "session_id": 1,
        }  # fmt: skip
        outputs = await loop.run({"temperature": 1.0, "logprobs": True}, **fields)
        return SimpleNamespace(
            ids=ids, asked=asked, fields=fields, outputs=outputs,
            parts=outputs[-1].extra_fields["reward_extra_info"],
            judged=[len(suite) for _, suite in judge.asked],  # how many tests each program was judged on
        )  # fmt: skip

    return run


def rendered(tokenizer, *programs_feedback, generation_prompt=False):
    """The tokens of a conversation: the opening, responses, and the feedback to each (None: none)."""
    messages = list(OPENING)
    for text, feedback in programs_feedback:
        messages.append({"role": "assistant", "content": text})
        messages += [{"role": "user", "content": PROMPTS.feedback(feedback)}] if feedback else []
    return tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=generation_prompt, return_dict=False
    )


async def test_a_history_that_keeps_responses_whole_is_one_row_as_the_chat_template_renders_it(rollout, tokenizer):
    first, second = response("print(4)"), response("right")
    done = await rollout([first, second])
    [row] = done.outputs
    after_the_end = tokenizer.encode("\n", add_special_tokens=False)
    whole = rendered(tokenizer, (first, "test 1 fails"), (second, None))
    assert row.prompt_ids + row.response_ids + after_the_end == whole
    assert row.prompt_ids == rendered(tokenizer, generation_prompt=True)
    written = [token for token, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]
    assert written == done.ids[0] + done.ids[1]
    scores = iter([-(n + 1) / 8 for ids in done.ids for n in range(len(ids))])  # of the engine, by token
    assert row.response_logprobs == [next(scores) if mask else 0.0 for mask in row.response_mask]


async def test_what_ends_a_cut_off_response_is_shown_and_not_written(rollout, tokenizer):
    cut = tokenizer.encode("```python\nprint(4)", add_special_tokens=False)
    done = await rollout([cut, response("right")])
    [row] = done.outputs
    assert row.response_ids[: len(cut)] == cut
    assert row.response_ids[len(cut)] == tokenizer.eos_token_id
    assert row.response_mask[: len(cut) + 1] == [1] * len(cut) + [0]
    # The program that was being written was judged, and its failing test came back.
    assert "test 1 fails" in tokenizer.decode(row.response_ids)


async def test_a_response_whose_text_has_other_tokens_begins_a_new_row(rollout, tokenizer):
    first = response("print(4)")
    letters = [token for letter in first for token in tokenizer.encode(letter, add_special_tokens=False)]
    assert tokenizer.decode(letters) == first and letters != tokenizer.encode(first, add_special_tokens=False)
    done = await rollout([[*letters, tokenizer.eos_token_id], response("right")])
    one, two = done.outputs
    assert one.response_ids == [*letters, tokenizer.eos_token_id]
    assert two.prompt_ids == rendered(tokenizer, (first, "test 1 fails"), generation_prompt=True)


@pytest.fixture
def put(monkeypatch):
    """Entries that a process puts into veRL's queue for the outputs of one sample."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    from cobalt_verl.agent_loops.worker import RewardingWorker

    async def put(outputs, fields, reward=None):
        puts = []

        async def keep(keys, fields, tags, partition_id):
            puts.append(SimpleNamespace(keys=keys, fields=fields, tags=tags, partition=partition_id))

        monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", keep)
        worker = object.__new__(RewardingWorker)
        worker.processor, worker.distillation_enabled, worker.mm_processor_kwargs = None, False, {}
        worker.reward_loop_worker_handles, worker.reward_function = [], reward
        worker.tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: f"text of {ids}")
        await asyncio.wait_for(worker._agent_loop_postprocess(outputs, validate=False, uid="u", **fields), 10)
        [result] = puts
        return result

    return put


@pytest.mark.parametrize("enable_thinking", [True, False])
async def test_verl_gives_the_rows_their_positions_and_all_of_them_the_reward(rollout, put, enable_thinking):
    done = await rollout([response("print(4)"), response("right")], enable_thinking=enable_thinking)
    assert len(done.outputs) == 1 + enable_thinking, "a history without the thinking is a row for each turn"
    queued = await put(done.outputs, done.fields)
    assert queued.keys == [f"u_1_{n}" for n in range(len(done.outputs))]
    for n, row in enumerate(done.outputs):
        fields = {name: values[n] for name, values in queued.fields.items()}
        ids = row.prompt_ids + row.response_ids
        assert fields["input_ids"].tolist() == ids
        assert fields["position_ids"].tolist() == list(range(len(ids)))
        assert fields["response_mask"].tolist() == row.response_mask
        assert len(fields["rollout_log_probs"]) == len(row.response_ids)
        assert fields["rm_scores"].tolist() == [0.0] * (len(row.response_ids) - 1) + [done.parts["score"]]
        assert queued.tags[n]["min_global_steps"] == queued.tags[n]["max_global_steps"] == 2


async def as_coroutine(**arguments):
    return {"score": 0.5, "seen": arguments}


def as_function(**arguments):
    return {"score": 0.5, "seen": arguments}


@pytest.mark.parametrize("reward", [as_coroutine, as_function, lambda **_: 0.5])
async def test_a_response_is_rewarded_by_the_configured_function(put, reward):
    from verl.experimental.agent_loop import AgentLoopOutput

    output = AgentLoopOutput(
        prompt_ids=[1, 2], response_ids=[8, 9], response_mask=[1, 1], num_turns=2, metrics={},
        response_logprobs=[-0.5, -0.5], extra_fields={"min_global_steps": 4, "max_global_steps": 5},
    )  # fmt: skip
    shared = {"id": "p", "split": "train"}  # by the samples of a prompt
    fields = {"session_id": 3, "global_steps": 5, "data_source": "pocket", "raw_prompt": OPENING, "extra_info": shared}
    queued = await put(output, fields | {"reward_model": {"ground_truth": "{}"}}, reward)
    assert (queued.partition, queued.keys) == ("train", ["u_3_0"])
    assert queued.fields["rm_scores"][0].tolist() == [0.0, 0.5]
    parts = queued.fields["extra_fields"][0]["reward_extra_info"]
    if seen := parts.get("seen"):
        assert seen["solution_str"] == "text of [8, 9]"
        assert seen["extra_info"] == shared | {"min_global_steps": 4, "max_global_steps": 5, "num_turns": 2}
        assert shared == {"id": "p", "split": "train"}
    else:
        assert parts == {"acc": 0.5}


@pytest.mark.parametrize(("rewarded", "program", "rate"), [("final", "nearly", 0.75), ("best", "right", 1.0)])
async def test_the_reward_is_the_single_turn_reward_of_the_final_or_of_the_best_program(
    rollout, rewarded, program, rate
):
    done = await rollout([response("right"), response("nearly")], f"cobalt.multi_turn.reward={rewarded}")
    assert done.parts["score"] == done.outputs[-1].reward_score == compute_reward(response(program), rate).total
    assert (done.parts["acc"], done.parts["pass_rate"]) == (rate == 1, rate)
    assert done.outputs[0].extra_fields["episode"]["solved"] is (rate == 1)


async def test_validation_counts_whether_the_final_program_solves(rollout):
    for last, value in (("right", 1.0), ("nearly", 0.0)):
        done = await rollout([response("print(0)"), response(last)], split="validation")
        assert done.outputs[-1].reward_score == value


async def test_a_turn_whose_program_needed_public_tests_alone_has_no_outcome_of_all(rollout):
    done = await rollout([response("print(0)"), response("print(4)"), response("right")])
    assert [done.parts[f"public_pass_rate_turn_{turn}"] for turn in range(3)] == [0, 0.5, 1]
    [row] = done.outputs
    assert [turn["passed"] for turn in row.extra_fields["episode"]["turns"]] == [None, None, [True] * 4]


async def test_every_outcome_is_kept_where_the_estimator_needs_it(rollout):
    done = await rollout(
        [response("print(4)"), response("no fence").replace("```", "")], "+cobalt.judge_every_turn=true"
    )
    assert done.judged == [4]  # a response without a program is not judged
    turns = [turn for row in done.outputs for turn in row.extra_fields["episode"]["turns"]]
    assert [turn["passed"] for turn in turns] == [[True, False, False, False], [False] * 4]
    assert (done.parts["no_code"], done.parts["score"]) == (1.0, -1.0)


@pytest.mark.parametrize(
    ("stop", "turns", "judged"), [("never", 3, [2, 2, 4]), ("public_passed", 1, [2, 4]), ("all_passed", 2, [4, 4])]
)
async def test_an_episode_ends_where_the_setting_says(rollout, stop, turns, judged):
    responses = [response("public"), response("right"), response("print(0)")]
    done = await rollout(responses, f"cobalt.multi_turn.stop={stop}")
    assert (done.parts["turns"], len(done.asked), done.judged) == (turns, turns, judged)
    assert done.parts["judged_tests"] == sum(judged)
    assert [f"public_pass_rate_turn_{n}" in done.parts for n in range(4)] == [True, True, True, False]


async def test_a_context_that_grows_too_long_ends_the_trajectory_without_a_final_program(rollout):
    limit = "data.max_prompt_length=256"
    responses = [response("right", "a b c d " * 100), response("right")]
    done = await rollout(responses, limit)
    assert (len(done.asked), done.parts["context_too_long"], done.parts["turns"]) == (1, 1.0, 1.0)
    assert (done.parts["score"], done.parts["no_code"], done.parts["acc"]) == (-1.0, 1.0, 0.0)
    assert done.outputs[0].extra_fields["episode"]["solved"] is False
    best = await rollout(responses, limit, "cobalt.multi_turn.reward=best")
    assert (best.parts["acc"], best.outputs[0].extra_fields["episode"]["solved"]) == (1.0, True)
    with pytest.raises(UserError, match="data.max_prompt_length"):
        await rollout(responses, "data.max_prompt_length=4")


async def test_a_failure_of_the_judge_is_raised_and_leaves_its_reason(rollout, tmp_path, monkeypatch):
    monkeypatch.setenv("COBALT_FAILURE_FILE", str(tmp_path / "failure.txt"))
    with pytest.raises(InfrastructureError):
        await rollout([response("right")], judge=FakeJudge(lambda *_: InfrastructureError("the sandbox died")))
    assert (tmp_path / "failure.txt").read_text() == "problem p7: the sandbox died\n"


async def test_each_turn_has_a_seed_of_its_own_and_the_same_in_every_run(rollout):
    responses = [response("print(4)"), response("print(4)"), response("print(4)")]
    one, two = await rollout(responses), await rollout(responses)
    seeds = [sampling["seed"] for _, _, sampling in one.asked]
    assert len(set(seeds)) == 3
    assert seeds == [sampling["seed"] for _, _, sampling in two.asked]
    assert len({request for request, _, _ in one.asked + two.asked}) == 1, "one server has all samples of a prompt"
    unseeded = await rollout(responses, seeded=False)
    assert all("seed" not in sampling for _, _, sampling in unseeded.asked)


@pytest.mark.parametrize(("scale", "seeds"), [("pocket", 5), ("paper", 0)])
async def test_samples_have_seeds_of_their_own_at_the_pocket_scale_and_those_of_a_prompt_go_to_one_engine(
    tokenizer, policy, scale, seeds
):
    from hydra.utils import get_class
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    asked = []

    async def generate(request_id, prompt_ids, sampling_params, **_):
        asked.append((request_id, list(prompt_ids), sampling_params.get("seed")))
        return TokenOutput(token_ids=[7], log_probs=[-0.5], extra_fields={})

    config = composed(policy, policy, policy, scale=scale)
    agent = config.actor_rollout_ref.rollout.agent
    [entry] = [e for e in OmegaConf.load(agent.agent_loop_config_path) if e.name == agent.default_agent_loop]
    for number, prompt in enumerate(["one", "two", "one", "two", "one"]):
        loop = get_class(entry._target_)(
            DictConfigWrap(config), SimpleNamespace(generate=generate), tokenizer, None, None,
            DictConfigWrap(config.data), seeded=entry.seeded,
        )  # fmt: skip
        messages = [{"role": "user", "content": prompt}]
        fields = {"raw_prompt": messages, "global_steps": 1, "index": 0, "session_id": number}
        output = await loop.run({"temperature": 1.0}, **fields)
        rendered = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert output.prompt_ids == asked[-1][1] == rendered
    requests = [request for request, _, _ in asked]
    assert [requests.index(request) for request in requests] == [0, 1, 0, 1, 0]
    assert len({seed for _, _, seed in asked} - {None}) == seeds
