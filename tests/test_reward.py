"""The paper's reward, every branch and border; VeRPO and offline RL: advantages and the gradient of the loss."""

import functools
import itertools
import json
import math
import random
import re
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from cobalt.episode import program_of
from cobalt.judge import ExecResult
from cobalt.reward import Flaw, RewardSettings, compute_reward, program_to_judge, token_counter, verpo
from cobalt.reward.format import format_reward
from cobalt.reward.offline import OfflineSettings, offline_advantages
from cobalt.reward.repetition import is_repetitive
from cobalt.reward.verpo import VerpoSettings
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
    ("pass_rate", "best", "highest"),
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
    pass_rate, best, highest
):
    reward = compute_reward(GOOD, pass_rate, best)
    assert reward.correctness == compute_reward(GOOD, pass_rate).correctness
    assert best > 0 or (reward.improvement, reward.correctness) == (0, highest)
    assert reward.pass_rate == pass_rate
    assert reward.correctness + reward.improvement == pytest.approx(highest, abs=1e-12)
    assert reward.total == pytest.approx(highest + reward.form.value, abs=1e-12)


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
        assert [solved.validation_score, failed.validation_score] == [1.0, 0.0], "whatever the form"
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


# ---- repetition ----


@functools.cache
def pattern(length):
    return re.compile(rf"(.{{{length}}})\1{{7}}", re.DOTALL)


def scan(text):
    """The rule as the paper's code has it."""
    return any(pattern(length).search(text) for length in range(32, len(text) // 8 + 1))


def distinct(count, seed=0):
    """`count` characters without any repetition."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz \n", k=count))


@pytest.mark.parametrize(
    ("text", "repetitive"),
    [
        ("", False),
        ("-" * 255, False),
        ("-" * 256, True),
        ("ab" * 128, True),
        # The shortest block of a 3-character unit has 33 characters.
        ("abc" * 87, False),
        ("abc" * 88, True),
        (distinct(31) * 15, False),  # blocks of 62
        (distinct(31) * 16, True),
        (LOOP, True),
        ("漢字と仮名" * 64, True),
        ("漢字と仮名" * 55, False),  # blocks of 35, 7.9 times
        ("a\ud800" * 128, True),
        (distinct(24_000), False),
        (distinct(23_744) + "=" * 256, True),
        (distinct(23_745) + "=" * 255, False),
        ((distinct(2999) * 8)[:-1], False),
        (distinct(3000) * 8, True),
    ],
)
def test_the_rule_at_its_borders(text, repetitive):
    assert is_repetitive(text) is repetitive
    if len(text) < 1000:
        assert scan(text) is repetitive


def planted(generator):
    """A text of up to three near-repetitions, with lengths around the borders and now and then a broken character."""
    alphabet = "ab\n|"[: generator.randint(1, 4)]
    parts = []
    for _ in range(generator.randint(1, 3)):
        length = generator.choice([1, 2, 3, 7, 16, 31, 32, 33, 34, 40, 63, 64, 65, generator.randint(1, 300)])
        unit = "".join(generator.choices(alphabet, k=length))
        total = generator.choice([256, 8 * length]) + generator.choice([-33, -2, -1, 0, 1, 2, 40])
        run = (unit * (total // length + 1))[: max(total, 0)]
        if run and generator.random() < 0.25:
            broken = generator.randrange(len(run))
            run = run[:broken] + generator.choice(alphabet + "c") + run[broken + 1 :]
        parts += ["".join(generator.choices(alphabet, k=generator.randint(0, 60))), run]
    return "".join(parts)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_the_answers_are_those_of_the_back_reference_scan(seed):
    generator = random.Random(seed)
    answers = []
    for _ in range(2000):
        text = planted(generator)
        answers.append(is_repetitive(text))
        assert answers[-1] is scan(text), text
    assert 500 < sum(answers) < 1500  # the generator stays near the border


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
    for best, earlier in ((0.0, -0.1), (0.5, -0.2)):
        tokens = token_counter()(text.partition("</think>")[0].strip())
        bonus = -0.1 if thinking else 0.075 * math.tanh(tokens / 1024)
        expected = earlier + bonus - 0.1 * answer - 0.1 * explanation
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


# ---- VeRPO ----

# Two trajectories of two programs each, three tests: M = 4, so that the pass rates are 1, 1/2 and 1/4.
HAND = [np.array([[1, 0, 0], [1, 1, 0]]), np.array([[1, 0, 0], [1, 1, 1]])]
HAND_SOLVED = [False, True]
HAND_SETTINGS = VerpoSettings(alpha=2, beta=0.5, gamma=0.9, sigma=0.25, delta=0)
# With sigma = 1/4 the densities are 1 + e^-2 + e^-4.5, 1 + e^-2 + e^-0.5 and 1 + e^-4.5 + e^-0.5, and the difficulties
# e^-2, e^-1 and e^-0.5.
HAND_WEIGHTS = [0.1180479, 0.2111985, 0.3749479]
# The turns earn w1, w1 + w2, w1 and w1 + w2 + w3, the trajectories 0 and 0.81.
HAND_ADVANTAGES = [[-0.5046681, -0.3990689], [0.3053319, 0.5984051]]


def groups(tests):
    """Groups of trajectories of unequal lengths with as many tests."""
    program = st.lists(st.booleans(), min_size=tests, max_size=tests)
    return st.lists(st.lists(program, min_size=1, max_size=4), min_size=1, max_size=5)


def solved(group):
    return [all(trajectory[-1]) for trajectory in group]


def reference(group, settings):
    """Weights and advantages written out sum by sum, equations 3 and 7 to 14."""
    tests, programs = len(group[0][0]), sum(map(len, group))
    rho = [sum(program[j] for trajectory in group for program in trajectory) / programs for j in range(tests)]
    mean = sum(rho) / tests
    sigma = settings.sigma or max(math.sqrt(sum((r - mean) ** 2 for r in rho) / tests) / 2, settings.sigma_floor)
    density = [sum(math.exp(-((a - b) ** 2) / (2 * sigma * sigma)) for b in rho) for a in rho]
    weights = [math.exp(-settings.alpha * r) / (n + settings.delta) for r, n in zip(rho, density, strict=True)]
    turns = [[sum(w for w, passed in zip(weights, p, strict=True) if passed) for p in group_i] for group_i in group]
    paths = [done * settings.gamma ** len(path) for done, path in zip(solved(group), group, strict=True)]
    mean_turn, mean_path = sum(map(sum, turns)) / programs, sum(paths) / len(paths)
    advantages = [
        [path - mean_path + settings.beta * (turn - mean_turn) for turn in of_path]
        for path, of_path in zip(paths, turns, strict=True)
    ]
    return weights, advantages


def test_a_group_computed_by_hand():
    rates = verpo.pass_rates(HAND)
    assert rates.tolist() == [1, 0.5, 0.25]
    assert verpo.difficulty_weights(rates, HAND_SETTINGS) == pytest.approx(HAND_WEIGHTS, abs=1e-6)
    for ours, by_hand in zip(verpo.advantages(HAND, HAND_SOLVED, HAND_SETTINGS), HAND_ADVANTAGES, strict=True):
        assert ours == pytest.approx(by_hand, abs=1e-6)


@given(
    st.integers(1, 8).flatmap(groups),
    st.sampled_from([VerpoSettings(), HAND_SETTINGS, VerpoSettings(alpha=0.5, beta=2, delta=0.1)]),
)
def test_weights_and_advantages_are_those_of_the_reference(group, settings):
    weights, advantages = reference(group, settings)
    assert verpo.difficulty_weights(verpo.pass_rates(group), settings) == pytest.approx(weights, abs=1e-9)
    ours = verpo.advantages(group, solved(group), settings)
    for computed, expected in zip(ours, advantages, strict=True):
        assert computed.dtype == np.float64
        assert computed == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((VerpoSettings, {name: -1.0}) for name in ("alpha", "beta", "delta", "gamma")),
        *((VerpoSettings, {name: 0.0}) for name in ("sigma", "sigma_floor", "gamma")),
        *((VerpoSettings, settings) for settings in ({"alpha": "two"}, {"delta": math.nan}, {"gamma": 2.0}, {"x": 1})),
        *((OfflineSettings, {"beta": beta}) for beta in (0, True)),
        *((OfflineSettings, {"clip": clip}) for clip in (1.0, "a")),
        *((OfflineSettings, {"kl": kl}) for kl in (-0.1, math.nan)),
        *((OfflineSettings, settings) for settings in ({"estimator": "ppo"}, {"clip": 0.2, "estimator": "sft"})),
    ],
)
def test_a_constant_out_of_range_is_named(kind, settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        kind.read(settings)


# ---- offline ----


REWARDS = st.lists(st.sampled_from([1.0, -0.3, -0.6, -1.0]), min_size=2, max_size=8).filter(lambda r: len(set(r)) > 1)


@given(REWARDS, st.floats(0.1, 3))
def test_offline_advantages_are_those_of_their_definitions(rewards, beta):
    exact, count = [Fraction(reward) for reward in rewards], len(rewards)
    left_out = [float(reward - (sum(exact) - reward) / (count - 1)) for reward in exact]
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    normalised = [(reward - mean) / (deviation + 1e-6) for reward in rewards]
    accepted = np.array(rewards) == 1
    advantages = {
        name: offline_advantages(OfflineSettings(name, beta), np.array(rewards), accepted)
        for name in ("rloo", "grpo", "exponential", "sft")
    }
    assert advantages["rloo"] == pytest.approx(left_out, abs=1e-12)
    assert advantages["grpo"] == pytest.approx(normalised, rel=1e-9, abs=1e-12)
    assert np.log(advantages["exponential"]) / beta == pytest.approx(normalised, abs=1e-9)
    assert advantages["sft"].tolist() == accepted.tolist()


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="veRL is not installed (scripts/setup.sh --profile none)")


def jagged(rows):
    import torch

    return torch.nested.as_nested_tensor([torch.as_tensor(row).double() for row in rows], layout=torch.jagged)


def loss_of(settings, log_probs, advantages, mask, start=None):
    """The loss of a batch of one micro-batch on one rank; `log_probs` and `start` are its flat values."""
    import torch

    from cobalt_verl.losses.offline import offline_loss

    offsets = torch.tensor([0, *itertools.accumulate(map(len, mask))])
    flat = [None if one is None else torch.nested.nested_tensor_from_jagged(one, offsets) for one in (log_probs, start)]
    data = {"advantages": jagged(advantages), "loss_mask": jagged(mask), "start_log_probs": flat[1], "dp_size": 1}
    return offline_loss(settings, {"log_probs": flat[0]}, data | {"batch_num_tokens": sum(map(sum, mask))})[0]


def test_the_gradient_of_the_policy_gradient_is_the_written_one_on_a_model_of_two_tokens(torch):
    # pi(1) = sigmoid(z). d log pi(1) / dz = 1 - p, d log pi(0) / dz = -p. Two responses: (1, 1) with A = 0.5 and (0)
    # with A = -2; each has a prompt's token before it, which does not count. The mean runs over three tokens.
    z = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    one, zero = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
    other = torch.tensor(-7.0, dtype=torch.float64)
    values = torch.stack([other, one, one, other, zero])
    loss_of(OfflineSettings("rloo"), values, [[9, 0.5, 0.5], [9, -2.0]], [[0, 1, 1], [0, 1]]).backward()
    p = 1 / (1 + math.exp(-0.3))
    assert z.grad.item() == pytest.approx(-(0.5 * (1 - p) + 0.5 * (1 - p) - 2.0 * -p) / 3, abs=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        OfflineSettings("grpo"),
        OfflineSettings("grpo", kl=0.3),
        OfflineSettings("grpo", clip=0.2),
        OfflineSettings("grpo", clip=0.2, kl=0.3),
        OfflineSettings("sft", kl=0.3),
    ],
)
def test_the_gradient_agrees_with_finite_differences(torch, settings):
    generator = torch.Generator().manual_seed(0)
    weights, start = (torch.randn(6, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    tokens = torch.tensor([0, 3, 1, 4, 2, 2])[:, None]

    def chosen(logits):
        return torch.log_softmax(logits, -1).gather(-1, tokens)[:, 0]

    def loss(logits):
        advantages, mask = [[0, 1.5, 1.5, 1.5], [0, -0.7]], [[0, 1, 1, 1], [0, 1]]
        return loss_of(settings, chosen(logits), advantages, mask, chosen(start))

    assert torch.autograd.gradcheck(loss, (weights.requires_grad_(),))


def test_the_ratio_stops_the_gradient_of_tokens_that_moved_far_enough(torch):
    from cobalt_verl.losses.offline import token_losses

    start = torch.zeros(4, dtype=torch.float64)
    log_probs = torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    token_losses(OfflineSettings("grpo", clip=0.2), log_probs, advantages, start).sum().backward()
    assert (log_probs.grad == 0).tolist() == [True, False, False, True]


def test_an_infinite_value_at_a_prompts_token_does_not_reach_the_loss(torch):
    log_probs = torch.tensor([-math.inf, -1.0], dtype=torch.float64)
    assert loss_of(OfflineSettings("rloo"), log_probs, [[1, 2.0]], [[0, 1]]).item() == 2.0
