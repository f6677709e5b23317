"""The seed model of the pocket world: demonstrations, tokenizer, chat template, a short training run."""

import hashlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cobalt.episode import load_prompts, program_of
from cobalt.judge import LocalJudge, VerdictKind
from cobalt.pocket import build_pocket_world
from cobalt.pocket.cases import draw_public
from cobalt.pocket.ceilings import ceilings
from cobalt.pocket.dataset import draw_problems
from cobalt.pocket.demonstrations import (
    corpus,
    damage,
    draw_demonstrations,
    first_choice,
    first_failure,
    judge_here,
    special_case,
    with_special_cases,
)
from cobalt.pocket.problems import draw_task
from cobalt.pocket.tokenizer import learn_tokenizer
from cobalt.pocket.training import Recipe
from cobalt.problems.problem import load_problems
from cobalt.reward.format import format_reward
from cobalt.stage.errors import UserError

TINY = Recipe(hidden=32, layers=1, heads=2, key_value_heads=1, feed_forward=48, demonstrations=48, batch=8)
SIZES = {"train": 6, "dev": 3, "test": 3}


@pytest.fixture(scope="module")
def demonstrations():
    return list(draw_demonstrations(300, seed=0))


@pytest.fixture(scope="module")
def tokenizer(demonstrations):
    return learn_tokenizer(corpus(demonstrations))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return build_pocket_world(tmp_path_factory.mktemp("world"), seed=3, sizes=SIZES, recipe=TINY, open_share=0.7)


@pytest.mark.parametrize(
    ("special_cases", "open_share", "digest"),
    [
        (0.0, 0.0, "c363cfefd218bb2ffccdffdf4e186ed95e0ad8ed4f5e036dfaee9c75cc818cfc"),
        (0.5, 0.0, "a31258ec67dbcae5048757e351c697652f00f570a29475ebcf240ee5592e6ba9"),
        (0.0, 0.5, "fb66ae14007092cd28e2f552796820919085c1770a87f14a5c43d1b4811b2b8f"),
    ],
)
def test_demonstrations_are_those_that_published_worlds_were_made_with(special_cases, open_share, digest):
    drawn = hashlib.sha256()
    for item in draw_demonstrations(400, 0, special_cases, open_share):
        drawn.update(json.dumps([list(item.messages), item.response]).encode())
    assert drawn.hexdigest() == digest


def test_demonstrations_are_conversations_of_a_rollout_with_a_response_of_the_right_form(demonstrations):
    prompts, depths = load_prompts("pocket"), set()
    for item in demonstrations:
        roles = [message["role"] for message in item.messages]
        depths.add(len(roles))
        assert roles == ["system", "user", *["assistant", "user"] * ((len(roles) - 2) // 2)]
        assert item.messages[0]["content"] == prompts.system
        assert not any("think>" in message["content"] for message in item.messages)
        assert format_reward(item.response, 1.0, len).flaw is None
        compile(program_of(item.response), "main.py", "exec")
    assert len(depths) >= 4


@pytest.mark.sandbox
async def test_feedback_equals_the_judges_and_a_special_case_passes_the_test_that_it_is_for():
    """The seed model learns from the same feedback as in the rollout, crashes and broken code included."""
    rng, kinds, special_cases = random.Random(11), set(), 0
    async with LocalJudge() as judge:
        for _ in range(25):
            task = draw_task(rng, "MEDIUM")
            public = draw_public(task, rng)
            if public is None:
                continue
            expressions = first_choice(task, rng)
            programs = [task.program(expressions), damage(task.program(task.solution), rng)]
            failure = first_failure(judge_here(programs[0], public), public)
            if case := failure and special_case(failure, expressions[0]):
                programs.append(with_special_cases(programs[0], [case]))
                after = first_failure(judge_here(programs[-1], public), public)
                assert after is None or after.stdin != failure.stdin
                special_cases += 1
            for program in programs:
                result, here = await judge.judge(program, public), judge_here(program, public)
                kinds.update(verdict.kind for verdict in result.verdicts)
                assert (here.passing, here.feedback) == (result.passing, result.feedback)
    assert special_cases > 3
    assert {VerdictKind.WRONG_ANSWER, VerdictKind.RUNTIME_ERROR, VerdictKind.COMPILE_ERROR} <= kinds


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_tokenizer_is_lossless(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert max(ids, default=0) < len(tokenizer)


def test_think_tags_are_tokens_that_decoding_keeps_and_the_end_of_a_turn_is_not(tokenizer):
    for tag, kept in (("<think>", True), ("</think>", True), ("<|im_end|>", False)):
        ids = tokenizer(f"a{tag}b", add_special_tokens=False)["input_ids"]
        assert tokenizer.convert_tokens_to_ids(tag) in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == f"a{tag * kept}b"
    assert tokenizer.eos_token == "<|im_end|>"


MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U "},
    {"role": "assistant", "content": "<think>\nt\n</think>\n\nA"},
    {"role": "user", "content": "<b>V</b> & {{ x }}"},
]


def render(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


def test_the_chat_template_renders_every_message_whole_and_closes_the_thinking_where_it_is_off(tokenizer):
    base = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in MESSAGES)
    assert render(tokenizer, MESSAGES) == base
    for options in ({}, {"enable_thinking": True}):
        assert render(tokenizer, MESSAGES, add_generation_prompt=True, **options) == base + "<|im_start|>assistant\n"
    closed = render(tokenizer, MESSAGES, add_generation_prompt=True, enable_thinking=False)
    assert closed == base + "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([{"role": "tool", "content": "x"}], {}),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], {}),
        ([{"role": "user", "content": "x"}], {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ],
)
def test_chat_template_refuses_what_it_would_drop(tokenizer, messages, options):
    with pytest.raises(Exception, match="this chat template"):
        render(tokenizer, messages, **options)


@pytest.mark.slow
def test_a_built_world_is_complete_and_loads(world):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    assert {split: len(load_problems(getattr(world, split))) for split in SIZES} == SIZES
    tokenizer = AutoTokenizer.from_pretrained(world.model)
    model = AutoModelForCausalLM.from_pretrained(world.model)
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer)
    assert str(model.dtype) == "torch.float32"
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert GenerationConfig.from_pretrained(world.model).eos_token_id == [end]
    figures = json.loads(world.ceilings.read_text(encoding="utf-8"))
    assert figures == {split: ceilings(draw_problems(split, size, 3, 0.7)) for split, size in SIZES.items()}


@pytest.mark.slow
def test_a_built_world_is_kept_one_of_other_settings_refused_and_the_remains_of_an_interrupted_build_replaced(
    world, tmp_path
):
    folder, same = world.dev.parent.parent, {"sizes": SIZES, "recipe": TINY}
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert build_pocket_world(folder, seed=3, open_share=0.7, **same) == world
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for other in ({"seed": 4, "open_share": 0.7}, {"seed": 3, "open_share": 0.0}, {"seed": 3, "open_share": 0.6}):
        with pytest.raises(UserError, match="other settings"):
            build_pocket_world(folder, **same, **other)
    (tmp_path / "data.part").mkdir()
    (tmp_path / "data.part" / "train.jsonl").write_text("torn")
    built = build_pocket_world(tmp_path, seed=3, open_share=0.7, **same)
    assert not (tmp_path / "data.part").exists()
    for name in ("data/train.jsonl", "data/dev.jsonl", "data/test.jsonl", "model/tokenizer.json"):
        assert (built.dev.parent.parent / name).read_bytes() == (folder / name).read_bytes()
