"""The pocket world: its problems, open sentences with their ceilings, demonstrations, and the seed model."""

import hashlib
import json
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cobalt.episode import load_prompts, program_of
from cobalt.judge import LocalJudge, VerdictKind
from cobalt.pocket import build_pocket_world
from cobalt.pocket.cases import draw_public, passes
from cobalt.pocket.ceilings import ceilings, repair_chances
from cobalt.pocket.dataset import SIZES, draw_problems, to_records
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
from cobalt.pocket.execution import run_program
from cobalt.pocket.problems import STEPS_OF, draw_task, split_of
from cobalt.pocket.tokenizer import learn_tokenizer
from cobalt.pocket.training import Recipe
from cobalt.problems.problem import Problem, load_problems
from cobalt.reward.format import format_reward
from cobalt.stage.errors import UserError

pytestmark = pytest.mark.slow

# --- problems


def digest(content):
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize(
    ("open_share", "split", "count", "published"),
    [
        (0.0, "train", 60, "871f30fb9751723e8bdd4163f2be570774a4c6f34f325b0af287d0dbd34cf6ab"),
        (0.0, "dev", 40, "66eaddbaff744fdeb1c381c029348d6469080cef1a1fe1965f2235c387110587"),
        (0.0, "test", 30, "eef64ca67bf50a832aa8a14b2f7ba19c96907552c3363448566c5aaa2b2cd657"),
        (0.5, "train", 30, "1822f6d0eb32e281ce1d378009f44333427569a364f3fb628d4c6aceb1c1b006"),
        (0.5, "dev", 20, "db2fd9de4f8a6ef5bd7223883954f3c477098c573b6122c2ef23ecc019461f91"),
        (0.5, "test", 20, "5eb8b29a1f9412761011f11aae0008479feb2802093d61789e303468814fb09b"),
    ],
)
def test_problems_are_those_of_published_worlds(open_share, split, count, published):
    records = to_records(split, draw_problems(split, count, 0, open_share))
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    assert digest(lines) == published


def passes_all(program, suite):
    return all(
        passes(run_program(program, stdin), expected)
        for stdin, expected in zip(suite.inputs, suite.outputs, strict=True)
    )


@pytest.fixture(scope="module")
def drawn():
    """By split, 45 problems without open sentences."""
    return {split: draw_problems(split, 45, seed=0) for split in SIZES}


def test_records_are_problems_of_each_difficulty_with_four_public_tests_and_no_composition_in_two_splits(drawn):
    compositions = []
    for split, problems in drawn.items():
        records = to_records(split, problems)
        for number, record in enumerate(records):
            problem = Problem.parse(record)
            assert problem.id == f"pocket-{split}-{number:04d}"
            assert problem.instruction == load_prompts("pocket").first_turn(problem.question)
            public, hidden, tests = problem.public_tests, problem.hidden_tests, problem.tests
            assert len(public) == 4 and 8 <= len(tests) <= 12
            assert (tests.inputs, tests.outputs) == (public.inputs + hidden.inputs, public.outputs + hidden.outputs)
            assert len(set(tests.inputs)) == len(tests)
        assert [record["difficulty"] for record in records] == [*STEPS_OF] * 15
        assert len({record["question"] for record in records}) == 45
        compositions.append({tuple(record["composition"]) for record in records})
    assert len(set.union(*compositions)) == sum(map(len, compositions))


@pytest.mark.parametrize("split", SIZES)
def test_every_confusion_fails_a_hidden_test(drawn, split):
    caught_in_public = []
    for problem in drawn[split]:
        for expressions in problem.task.confusions():
            program = problem.task.program(expressions)
            assert not passes_all(program, problem.hidden), (problem.task.statement, program)
            caught_in_public.append(not passes_all(program, problem.public))
    assert sum(caught_in_public) / len(caught_in_public) > 0.9


# --- open sentences

TURNS = 6


@pytest.fixture(scope="module")
def problems():
    return draw_problems("dev", 60, seed=0, open_share=0.7)


def test_public_and_hidden_tests_each_refute_every_reading_but_the_one_that_is_meant_and_records_hold_each(problems):
    refuted = 0
    for record, problem in zip(to_records("dev", problems), problems, strict=True):
        programs = [problem.task.program(reading) for reading in problem.task.readings]
        assert record.get("readings", record["solutions"]) == programs and len(set(programs)) == len(programs)
        for program in programs:
            meant = program in record["solutions"]
            assert passes_all(program, problem.public) == passes_all(program, problem.hidden) == meant
            refuted += not meant
        assert len(record["solutions"]) == 1
        assert len(programs) == 2 ** len(problem.task.open_slots) and ("readings" in record) == (len(programs) > 1)
    assert refuted > 50


def test_two_readings_of_a_composition_lie_in_one_split():
    tasks = [(one.task, split) for split in SIZES for one in draw_problems(split, 30, seed=2, open_share=0.8)]
    assert all(split_of(task.composition, 2) == split for task, split in tasks)
    assert any("sort or sort down" in task.composition for task, _ in tasks)


def test_ceilings_are_those_of_the_published_page_and_the_seeing_player_is_never_behind_the_blind_one():
    """Of a part of the problems of seed 0 whose ceilings docs/RESULTS.md has."""
    computed = ceilings(draw_problems("test", 20, 0, 0.5), TURNS)
    assert digest(json.dumps(computed)) == "4422ec49e89b101a8d331022b511085cf0a5cd25f72eae43e457c1a39a5eda56"
    assert computed["single_turn"] == computed["repair"][0] == computed["blind"][0] < 0.7 < 0.95 < computed["repair"][2]
    assert all(seeing >= blind for seeing, blind in zip(computed["repair"], computed["blind"], strict=True))
    assert computed["repair"] == sorted(computed["repair"])


@pytest.mark.parametrize("readings", [1, 2, 4])
def test_a_repairer_tries_readings_by_lot_and_drops_those_that_a_test_refutes(problems, readings):
    """With k readings, of which each test refutes all but the right one, the first try is right 1 time in k."""
    problem = next(problem for problem in problems if len(problem.task.readings) == readings)
    chances = repair_chances(problem, TURNS)
    assert chances[0] == Fraction(1, readings) and chances[-1] == 1
    assert chances == sorted(chances)


# --- the seed model

TINY = Recipe(hidden=32, layers=1, heads=2, key_value_heads=1, feed_forward=48, demonstrations=48, batch=8)
SMALL = {"train": 6, "dev": 3, "test": 3}


@pytest.fixture(scope="module")
def demonstrations():
    return list(draw_demonstrations(300, seed=0))


@pytest.fixture(scope="module")
def tokenizer(demonstrations):
    return learn_tokenizer(corpus(demonstrations))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return build_pocket_world(tmp_path_factory.mktemp("world"), seed=3, sizes=SMALL, recipe=TINY, open_share=0.7)


@pytest.mark.parametrize(
    ("special_cases", "open_share", "published"),
    [
        (0.0, 0.0, "c363cfefd218bb2ffccdffdf4e186ed95e0ad8ed4f5e036dfaee9c75cc818cfc"),
        (0.5, 0.0, "a31258ec67dbcae5048757e351c697652f00f570a29475ebcf240ee5592e6ba9"),
        (0.0, 0.5, "fb66ae14007092cd28e2f552796820919085c1770a87f14a5c43d1b4811b2b8f"),
    ],
)
def test_demonstrations_are_those_that_published_worlds_were_made_with(special_cases, open_share, published):
    items = draw_demonstrations(400, 0, special_cases, open_share)
    assert digest("".join(json.dumps([list(item.messages), item.response]) for item in items)) == published


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
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_think_tags_are_tokens_that_decoding_keeps_and_the_end_of_a_turn_is_not(tokenizer):
    for tag, shown in (("<think>", True), ("</think>", True), ("<|im_end|>", False)):
        ids = tokenizer(f"a{tag}b", add_special_tokens=False)["input_ids"]
        assert tokenizer.convert_tokens_to_ids(tag) in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == f"a{tag * shown}b"
    assert tokenizer.eos_token == "<|im_end|>"


MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U "},
    {"role": "assistant", "content": "<think>\nt\n</think>\n\nA"},
    {"role": "user", "content": "<b>V</b> & {{ x }}"},
]


def render(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


def test_the_chat_template_renders_messages_whole_or_refuses_them_and_closes_the_thinking_where_it_is_off(tokenizer):
    base = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in MESSAGES)
    assert render(tokenizer, MESSAGES) == base
    for options in ({}, {"enable_thinking": True}):
        assert render(tokenizer, MESSAGES, add_generation_prompt=True, **options) == base + "<|im_start|>assistant\n"
    closed = render(tokenizer, MESSAGES, add_generation_prompt=True, enable_thinking=False)
    assert closed == base + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    tool, parts = {"role": "tool", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}
    tools = [{"type": "function", "function": {"name": "f"}}]  # it would drop all three
    for named, chat, options in (("'tool'", [tool], {}), ("text", [parts], {}), ("tools", MESSAGES, {"tools": tools})):
        with pytest.raises(Exception, match=named):
            render(tokenizer, chat, **options)


def test_a_built_world_is_complete_and_loads(world):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    assert {split: len(load_problems(getattr(world, split))) for split in SMALL} == SMALL
    tokenizer = AutoTokenizer.from_pretrained(world.model)
    model = AutoModelForCausalLM.from_pretrained(world.model)
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer)
    assert str(model.dtype) == "torch.float32"
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert GenerationConfig.from_pretrained(world.model).eos_token_id == [end]
    figures = json.loads(world.ceilings.read_text(encoding="utf-8"))
    assert figures == {split: ceilings(draw_problems(split, size, 3, 0.7)) for split, size in SMALL.items()}


def test_a_built_world_is_kept_one_of_other_settings_refused_and_the_remains_of_an_interrupted_build_replaced(
    world, tmp_path
):
    folder, same = world.dev.parent.parent, {"sizes": SMALL, "recipe": TINY}
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert build_pocket_world(folder, seed=3, open_share=0.7, **same) == world
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for other in ({"seed": 4, "open_share": 0.7}, {"seed": 3, "open_share": 0.0}, {"seed": 3, "open_share": 0.6}):
        with pytest.raises(UserError, match=r"\bseed\b.* 4|open_share.*0\.7"):
            build_pocket_world(folder, **same, **other)
    (tmp_path / "data.part").mkdir()
    (tmp_path / "data.part" / "train.jsonl").write_text("torn")
    built = build_pocket_world(tmp_path, seed=3, open_share=0.7, **same)
    assert not (tmp_path / "data.part").exists()
    for name in ("data/train.jsonl", "data/dev.jsonl", "data/test.jsonl", "model/tokenizer.json"):
        assert (built.dev.parent.parent / name).read_bytes() == (folder / name).read_bytes()
