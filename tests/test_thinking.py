"""Thinking from collection to training, under chat templates that behave like those of the paper's two models.

Qwen3's template lets the model think unless it is told not to, and the model opens `<think>` itself. R1-Distill's knows
no switch and opens `<think>` in the prompt, so that responses start inside their thinking. `test_chat_templates.py` has
what holds for both alike.
"""

import pytest
from chat_tokenizers import make_tokenizer, save_policy
from support import FakeEngine, FakeJudge, composed, refused_training, square_problem, write_lines

from cobalt.episode.chat_template import head_of_responses, opened_thinking, template_arguments
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.stage.errors import UserError
from cobalt.stage.records import read_records

SWITCHES = ["default", "on", "off"]
CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def test_the_switch_is_not_passed_by_default_so_that_qwen3_thinks():
    from cobalt.engine.vllm_engine import render

    tokenizer = make_tokenizer("qwen3")
    prompts = {switch: tokenizer.decode(render(tokenizer, CHAT, switch)[0]) for switch in SWITCHES}
    assert prompts["default"] == prompts["on"]
    assert prompts["default"].endswith("<|im_start|>assistant\n")
    assert prompts["off"] == prompts["on"] + "<think>\n\n</think>\n\n"
    assert template_arguments("default") == {}


@pytest.mark.parametrize("thinking", SWITCHES)
@pytest.mark.parametrize(("form", "opened"), [("qwen3", ""), ("llama", "<think>\n")])
def test_the_tag_that_a_template_opened_is_put_at_the_head_of_the_response(tmp_path, form, opened, thinking):
    from cobalt.engine.vllm_engine import render

    assert render(make_tokenizer(form), CHAT, thinking)[1] == opened
    counter = PromptTokenCounter(save_policy(tmp_path, form), template_arguments(thinking))
    assert bool(head_of_responses(counter.tokenizer, counter.arguments)) is bool(opened)


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [("[A]<think>\n", "<think>\n"), ("[A]<think>", "<think>"), ("[A]<think>\n\n</think>\n\n", ""), ("[A]", "")],
)
def test_a_closed_block_is_not_an_open_one(prompt, opened):
    assert opened_thinking(prompt) == opened


def test_counters_with_different_template_arguments_have_different_fingerprints(tmp_path):
    folder = save_policy(tmp_path, "qwen3")
    counters = [PromptTokenCounter(folder, template_arguments(switch)) for switch in SWITCHES]
    assert len({counter.fingerprint for counter in counters}) == 3
    assert counters[0].fingerprint == PromptTokenCounter(folder).fingerprint


def one_sample(folder, **flags):
    """The settings of a run of one problem and one sample, with the file of the problem."""
    problems = write_lines(folder / "p.jsonl", [square_problem(0)])
    return RepairSettings(problems, folder / "m.jsonl", **{"num_completions": 1, "seed": 0, "turns": 0} | flags)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ({"enable_thinking": True}, ("<think>\n" + "a" * 7000)[:6000]),
        ({"enable_thinking": True, "truncated_thinking": "drop"}, ""),
        ({}, "<think>\n" + "a" * 7000),
    ],
)
async def test_the_next_turn_is_shown_the_beginning_of_a_thinking_that_was_cut_off(tmp_path, flags, shown):
    run, engine = one_sample(tmp_path, turns=1, **flags), FakeEngine("<think>\n" + "a" * 7000)
    assert not (await repair(run, engine, FakeJudge())).failed
    assert engine.asked[1][0][2] == {"role": "assistant", "content": shown}
    [record] = read_records(run.output_file)
    assert record["conversations"][0][2]["content"] == shown  # and the prompts of training are cut from these
    assert record["raw_responses"][0] == ["<think>\n" + "a" * 7000]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["qwen3", "llama"])
def test_the_lengths_that_are_checked_are_those_of_the_prompts_that_training_will_render(tmp_path, form):
    import pyarrow
    from pyarrow import parquet

    folder = save_policy(tmp_path, form)
    row = {
        "data_source": "d",
        "prompt": CHAT,
        "reward_model": {"style": "rule", "ground_truth": square_problem(0)["test_cases"]},
        "extra_info": {"index": 0, "prev_best_pass_rate": 0.0},
    }
    for split in ("train", "validation"):
        parquet.write_table(pyarrow.Table.from_pylist([row] * 16), tmp_path / f"{split}.parquet")

    def errors(*overrides):
        opens = f"reward.custom_reward_function.reward_kwargs.prompt_opens_thinking={str(form == 'llama').lower()}"
        return refused_training(composed(tmp_path, folder, tmp_path / "out", opens, *overrides))

    off = "+data.apply_chat_template_kwargs.enable_thinking=false"
    length = f"data.max_prompt_length={PromptTokenCounter(folder).count([CHAT])[0]}"
    assert errors() == errors(off) == errors(length) == []
    assert len(errors(length, off)) == (form == "qwen3")
    with pytest.raises(UserError, match=r"apply_chat_template_kwargs"):
        errors("data.apply_chat_template_kwargs=off")
