"""The reward, to the paper's numbers: every branch and border, and the laws that follow from them."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from cobalt.episode import program_of
from cobalt.judge import ExecResult
from cobalt.reward import Flaw, RewardSettings, compute_reward, program_to_judge, token_counter
from cobalt.reward.format import format_reward
from cobalt.stage.errors import UserError

WORDS = ["the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with"]
CODE = "```python\nprint(int(input()) ** 2)\n```"
GOOD = f"<think>\nA square.\n</think>\n\nThe program:\n{CODE}\nIt squares."


def prose(tokens):
    """Text of exactly so many tokens of o200k_base, and no repetition."""
    text = " ".join(random.Random(tokens).choices(WORDS, k=tokens))
    assert token_counter()(text) == tokens
    return text


def response(thinking="", before="", code="print(1)", explanation=""):
    return f"{thinking}\n</think>\n\n{before}\n```python\n{code}\n```\n{explanation}"


def answer_of(tokens):
    """A well-formed answer of exactly so many tokens, all of them before the code."""
    for words in range(tokens - 40, tokens):
        answer = f"{prose(words)}\n{CODE}"
        if token_counter()(answer) == tokens:
            return answer
    raise AssertionError("no answer of this length")


# ---- correctness and improvement ----


@pytest.mark.parametrize(
    ("pass_rate", "best", "so_far"),
    [
        # Solved: the past does not matter.
        (1.0, 0.0, 1.0),
        (1.0, 0.5, 1.0),
        (1.0, 1.0, 1.0),
        # Nothing to improve on: correctness alone.
        (0.999, 0.0, 0.2),
        (0.5, 0.0, 0.2),
        (math.nextafter(0.5, 0), 0.0, 0.0),
        (math.nextafter(0, 1), 0.0, 0.0),
        (0.0, 0.0, -0.1),
        # Better: correctness + 0.1 (p - best) / (1 - best).
        (0.75, 0.5, 0.2 + 0.05),
        (0.5, 0.25, 0.2 + 0.1 / 3),
        (0.3, 0.2, 0.0 + 0.0125),
        (0.95, 0.05, 0.2 + 0.9 / 0.95 * 0.1),
        # As good: -0.1 in place of correctness.
        (0.75, 0.75, -0.1),
        (0.25, 0.25, -0.1),
        # Worse: -0.1 + 0.1 (p - best) / best.
        (0.5, 0.75, -0.1 - 0.1 / 3),
        (0.25, 0.5, -0.15),
        (0.75, 1.0, -0.125),
        (0.0, 0.25, -0.2),
        (0.0, 1.0, -0.2),
    ],
)
def test_correctness_goes_by_the_share_of_passed_tests_and_improvement_by_the_best_earlier_program(
    pass_rate, best, so_far
):
    reward = compute_reward(GOOD, pass_rate, best)
    assert reward.correctness == compute_reward(GOOD, pass_rate).correctness
    assert best > 0 or (reward.improvement, reward.correctness) == (0, so_far)
    assert reward.pass_rate == pass_rate
    assert reward.correctness + reward.improvement == pytest.approx(so_far, abs=1e-12)
    assert reward.total == pytest.approx(so_far + reward.form.value, abs=1e-12)


# ---- program ----


@pytest.mark.parametrize(("opened", "program"), [(True, None), (False, "draft")])
def test_a_thinking_that_the_prompt_opened_has_no_program(opened, program):
    own = RewardSettings(prompt_opens_thinking=opened)
    assert program_to_judge("Let me try\n```python\ndraft\n```", own) == program
    assert program_to_judge(GOOD.removeprefix("<think>"), own) == "print(int(input()) ** 2)"


@pytest.mark.parametrize("best", [0.0, 0.5])
def test_without_a_program_the_reward_is_minus_one_and_the_score_zero(best):
    for pass_rate in (None, ExecResult.no_code(4).pass_rate):
        reward = compute_reward("no program", pass_rate, best)
        assert (reward.total, reward.no_code, reward.validation_score) == (-1.0, pass_rate is None, 0.0)


@pytest.mark.parametrize("text", [GOOD, GOOD * 2, CODE])
def test_the_validation_score_is_one_when_everything_passes_whatever_the_form(text):
    assert [compute_reward(text, rate, 0.5).validation_score for rate in (1.0, 0.99, 0.0)] == [1.0, 0.0, 0.0]


# ---- form ----

LOOP = "Wait, let me look at this again. " * 8


# Responses whose form is the same whether thinking is required or not.
FORMS = [
    (GOOD, None),
    (response(), None),
    (response(thinking="```python\nprint(2)\n```"), None),  # drafts in the thinking are free
    (response(thinking="<think> <think>"), None),  # only the closing tag is counted
    (response(before="As `x` says"), None),
    (response(before="```\nan example\n```"), None),
    (response(explanation="`x` is ```inline```."), None),
    (response(code=""), None),
    ("</think>```python\n```", None),
    ("</think>\r\n```python\r\nprint(1)\r\n```\r\n", None),
    (response(thinking=LOOP), Flaw.REPETITION),
    (response(explanation=LOOP), Flaw.REPETITION),
    (response(code="#" + "-" * 256), Flaw.REPETITION),
    (LOOP + CODE, Flaw.REPETITION),  # before the thinking is looked at
    ("<think>" + CODE, Flaw.THINKING),
    ("a</think>b</think>" + CODE, Flaw.THINKING),
    (CODE + "</think>", Flaw.CODE_BLOCK),
    (f"a</think>\n{CODE}\n</think>", Flaw.THINKING),
    ("</think>\n```\nprint(1)\n```", Flaw.CODE_BLOCK),
    ("</think>\n```py\nprint(1)\n```", Flaw.CODE_BLOCK),
    ("</think>\n```Python\nprint(1)\n```", Flaw.CODE_BLOCK),
    ("```python\nprint(1)\n```\n</think>\nDone.", Flaw.CODE_BLOCK),
    (response(before=CODE), Flaw.CODE_BLOCK),
    (response(explanation="Write ```python next time."), Flaw.CODE_BLOCK),
    ("</think>\n```python\nprint(1)", Flaw.CLOSING_FENCE),
    ("</think>\n```python\nprint(1)```", Flaw.CLOSING_FENCE),
    ("</think>\n  ```python\n  print(1)\n  ```", Flaw.CLOSING_FENCE),
    ("</think>\n```python\nprint(1)\n~~~", Flaw.CLOSING_FENCE),
    (response(explanation="```\nan example\n```"), Flaw.CLOSING_FENCE),
    (response(code="print('`')"), Flaw.BACKTICK),
    (response(code="s = ' ```'"), Flaw.BACKTICK),
    ("</think>\n```python `x`\nprint(1)\n```", Flaw.BACKTICK),
    (response(explanation="  ```\n  an example\n  ```"), Flaw.OTHER_PROGRAM),
    (response(explanation="~~~\nan example\n~~~"), Flaw.OTHER_PROGRAM),
    (response(before="````"), Flaw.OTHER_PROGRAM),  # never closed: three back-ticks are too few
    (response(before="~~~"), Flaw.OTHER_PROGRAM),
    (response(before="```"), None),  # never closed, but ```python begins anew
    ("</think>Code:\n  ```python\n  if x:\n    y()\n```", Flaw.OTHER_PROGRAM),  # judged without the indentation
]
# Responses without tags: the flaw by the paper's rule, and where no thinking is required.
PLAIN = [
    (CODE, Flaw.THINKING, None),
    (f"  A square.\n\n{CODE}\nIt squares.\n", Flaw.THINKING, None),
    ("```\nprint(1)\n```", Flaw.THINKING, Flaw.CODE_BLOCK),
    (CODE + CODE, Flaw.THINKING, Flaw.CODE_BLOCK),
    ("```python\nprint(1)", Flaw.THINKING, Flaw.CLOSING_FENCE),
    ("```python\n# `x`\n```", Flaw.THINKING, Flaw.BACKTICK),
]


@pytest.mark.parametrize(("text", "paper", "without"), [*((text, flaw, flaw) for text, flaw in FORMS), *PLAIN])
def test_every_flaw_of_the_form_costs_nine_tenths(text, paper, without):
    for own, flaw in ((RewardSettings(), paper), (RewardSettings(require_thinking=False), without)):
        solved, failed = (compute_reward(text, rate, settings=own) for rate in (1.0, 0.0))
        assert solved.form.flaw == failed.form.flaw == flaw
        assert (solved.form.value, solved.total) == pytest.approx((-0.9, 0.1) if flaw else (0.0, 1.0))
        assert failed.total == -1.0 if flaw else -0.1 <= failed.total < 0.0


@pytest.mark.parametrize("explanation", ["", prose(600)])
def test_without_a_thinking_the_reward_is_that_of_an_empty_one(explanation):
    plain, own = f"{CODE}\n{explanation}", RewardSettings(require_thinking=False)
    for pass_rate, best in ((1.0, 0.0), (0.75, 0.0), (0.25, 0.5), (0.0, 0.0)):
        reward = compute_reward(plain, pass_rate, best, own)
        assert reward == compute_reward(f"</think>{plain}", pass_rate, best)
        assert reward.form.long_explanation == bool(explanation)


@pytest.mark.parametrize("value", ["auto", "false", None, 0])
def test_whether_thinking_is_required_must_be_decided_before_a_reward_is_computed(value):
    with pytest.raises(UserError, match="require_thinking"):
        RewardSettings(require_thinking=value)


FENCES = ["```python", "```", "```", "````", "~~~", "`", "  ```", " ~~~~"]
OTHERS = ["\r", "\r\n", "3", " ", "\t", "\x0c", "print(1)", "Explanation", "python", "py", "<think>", "</think>"]
LINE = st.lists(st.sampled_from(FENCES + OTHERS), max_size=3).map("".join)
FREE = st.lists(st.sampled_from(FENCES) | LINE, max_size=4).map("\n".join)
# Most of these have the right form, but for what was drawn to stand around and in the block.
NEARLY_RIGHT = st.tuples(
    FREE | st.just(""),
    st.lists(st.sampled_from(["x = 1", "", "  y = 2"]) | LINE, max_size=3).map("\n".join) | st.just("x = 1"),
    FREE,
    st.sampled_from(["", "", " ", "3", "  "]),
    st.sampled_from(["\n", "\r\n"]),
).map(lambda p: f"t</think>\n{p[0]}\n{p[3]}```python\n{p[1]}\n```{p[2]}".replace("\n", p[4]))


@settings(max_examples=300)
@given(FREE | NEARLY_RIGHT)
def test_without_a_flaw_the_program_that_is_judged_is_the_block_whose_form_was_looked_at(text):
    if format_reward(text, 1.0, len).flaw is None:
        block = text.split("</think>")[1].split("```python")[1].split("\n```")[0]
        after_the_opening_line = block.replace("\r\n", "\n").partition("\n")[2]
        assert program_of(text).strip() == after_the_opening_line.strip()


# ---- lengths ----

LENGTHS = [
    # text, long thinking, long answer, long explanation
    (response(prose(4096)), False, False, False),
    (response(prose(4097)), True, False, False),
    ("hm</think>" + answer_of(2048), False, False, False),
    ("hm</think>" + answer_of(2049), False, True, False),
    (response("hm", explanation=prose(512)), False, False, False),
    (response("hm", explanation=prose(513)), False, False, True),
    (response("hm", explanation=prose(2049)), False, True, True),
    (response(prose(4097), explanation=prose(2049)), True, True, True),
]


@pytest.mark.parametrize(("text", "thinking", "answer", "explanation"), LENGTHS)
def test_each_part_may_have_its_number_of_tokens_and_not_one_more(text, thinking, answer, explanation):
    solved = compute_reward(text, 1.0)
    form = solved.form
    assert (form.long_thinking, form.long_answer, form.long_explanation) == (thinking, answer, explanation)
    long = thinking or answer or explanation
    # A program that earned 0 or more: a hundredth, once.
    assert solved.total == (0.99 if long else 1.0)
    assert compute_reward(text, 0.25).total == (-0.01 if long else 0.0)
    # One that earned less: a tenth for each, and nothing for a thinking that is too long.
    for best, so_far in ((0.0, -0.1), (0.5, -0.2)):
        tokens = token_counter()(text.partition("</think>")[0].strip())
        bonus = -0.1 if thinking else 0.075 * math.tanh(tokens / 1024)
        expected = so_far + bonus - 0.1 * answer - 0.1 * explanation
        assert compute_reward(text, 0.0, best).total == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("thinking", "bonus"),
    [
        ("", 0.0),
        ("nothing of it", 0.0),
        ("wait", 0.005),
        ("WAIT, Wait", 0.005),
        ("wait wait wait wait", 0.005),
        ("wait wait wait wait wait", 0.0),
        ("wait " * 5 + "but", 0.005),
        ("waiting, errors, buts", 0.0),  # whole words only
        ("wait_error retry2", 0.0),
        ("wait-but\nerror", 0.015),
        ("<think>\nwait mistake however but", 0.020),  # a tag of the model's own is part of the thinking
        ("wait mistake however but retry", 0.025),
        ("wait mistake however but retry error verify wrong evaluate", 0.025),  # the cap
    ],
)
def test_a_failed_program_earns_a_bonus_for_thinking_and_its_keywords(thinking, bonus):
    tokens = token_counter()(thinking.strip())
    expected = 0.075 * math.tanh(tokens / 1024) + bonus
    assert compute_reward(response(thinking), 0.0).form.value == pytest.approx(expected, abs=1e-12)
    # Neither in the answer nor for a program that earned 0 or more.
    assert compute_reward(response(explanation=thinking), 0.0).form.value == 0.0
    assert compute_reward(response(thinking), 0.25).form.value == 0.0


# ---- laws ----

RATES = st.integers(1, 20).flatmap(lambda tests: st.integers(0, tests).map(lambda passed: passed / tests))
THINKING = st.builds(
    lambda words, tail: prose(words) + tail,
    st.sampled_from([1, 30, 2000, 4096, 4100]),
    st.sampled_from(["", " wait", " wait but error wrong verify retry", "`", "</think>"]),
)
TEXTS = st.builds(
    response,
    thinking=THINKING,
    before=st.sampled_from(["", prose(2000), CODE, LOOP]),
    code=st.sampled_from(["print(1)", "", "`"]),
    explanation=st.sampled_from(["", prose(500), prose(600), prose(2100), "\n```"]),
)


@given(TEXTS | st.text(max_size=300), RATES, RATES)
def test_a_total_is_the_clipped_sum_of_its_parts_within_the_range_of_its_kind(text, pass_rate, best):
    reward = compute_reward(text, pass_rate, best)
    form, total = reward.form, reward.total
    assert total == pytest.approx(max(-1.0, min(1.0, reward.correctness + reward.improvement + form.value)), abs=1e-12)
    if pass_rate == 1.0:
        assert total in (1.0, 0.99, 1.0 - 0.9)
    elif pass_rate > 0.0:
        assert -1.0 <= total < 0.3
    elif form.flaw:
        assert total == -1.0
    elif form.long_thinking or form.long_answer or form.long_explanation:
        assert -0.5 - 1e-12 <= total < -0.1
    else:
        assert -0.2 <= total < 0.0
    metrics = reward.to_metrics()
    assert metrics.keys() == compute_reward("", None).to_metrics().keys()
    assert all(type(value) is float for value in metrics.values())
    assert metrics["reward"] == total
    assert sum(value for name, value in metrics.items() if name.startswith("flaw_")) == (form.flaw is not None)


@given(TEXTS, RATES, RATES, RATES.filter(bool), RATES.filter(bool))
def test_more_passed_tests_never_earn_less_and_a_better_past_never_more(text, first, second, third, fourth):
    low, high = sorted((first, second))
    best, better = sorted((third, fourth))
    assert compute_reward(text, low, best).total <= compute_reward(text, high, best).total + 1e-12
    assert compute_reward(text, low, better).total <= compute_reward(text, low, best).total + 1e-12


# ---- settings and mistakes ----


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello world", 2),
        ("    if x == 10_000:\n        return None\n", 13),
        ("漢字かな交じり文", 7),
        ("I've SEEN it: naïve café's\r\n\r\n123456789 ∑ x²", 17),
        (" " * 24_000, 188),
        ("<|endoftext|>", 7),
    ],
)
def test_tokens_are_those_of_tiktoken_with_the_published_o200k_base(text, tokens):
    assert token_counter()(text) == tokens


@pytest.mark.parametrize("token", ["<|endofprompt|>", "<|im_end|>", "\ud800"])
def test_special_tokens_and_broken_characters_in_a_response_are_text(token):
    assert token_counter()(token) == token_counter()(token.replace("\ud800", "?")) > (len(token) > 1)
    assert compute_reward(response(f"a {token} b", explanation=token), 0.0).form.flaw is None


def test_lengths_can_be_those_of_the_policy(tmp_path):
    """One token a character, one for the tag; the file's own truncation, padding and special tokens do not count."""
    tokenizer = Tokenizer(models.WordLevel({chr(code): code for code in range(128)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    tokenizer.enable_truncation(10)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    count = token_counter(str(tmp_path))
    texts = {"abc": 3, "a" * 5000: 5000, "<think>a": 2, "<|im_end|>": len("<|im_end|>"), "\ud800": 1}
    assert {text: count(text) for text in texts} == texts
    own = RewardSettings(lengths=str(tmp_path))
    assert compute_reward(response(prose(1300)), 1.0, settings=own).form.long_thinking
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": None}))
    token_counter.cache_clear()
    for folder in ("o200k", str(tmp_path)):
        with pytest.raises(UserError, match="setting 'lengths': .*tokenizer.json"):
            compute_reward(GOOD, 1.0, settings=RewardSettings(lengths=folder))


@pytest.mark.parametrize("rate", [-0.01, 1.01, math.nan, math.inf, "1", None])
def test_a_rate_outside_0_to_1_is_named(rate):
    with pytest.raises(UserError, match="^prev_best_pass_rate is "):
        compute_reward(GOOD, 1.0, rate)
    if rate is not None:
        with pytest.raises(UserError, match=r"^pass_rate is "):
            compute_reward(GOOD, rate)
