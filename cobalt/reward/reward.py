"""The reward of one response: R = clip(R_correct + R_improve + R_format, -1, 1) (Cobalt, reward).

Nothing is judged or awaited here: the caller has the program judged (`program_to_judge`) and passes in the pass rate.
A failure of the judge has no pass rate and so no reward; the authors' code turns such failures into rewards.
"""

from dataclasses import dataclass
from numbers import Real

from cobalt.episode.thinking import OPEN
from cobalt.episode.turns import program_of
from cobalt.reward.format import Flaw, FormatReward, format_reward
from cobalt.reward.lengths import O200K_BASE, token_counter
from cobalt.stage.errors import UserError

NO_CODE = -1.0
"""The reward of a response without a program."""

_UNCHECKED = FormatReward(0.0)


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """Settings of the reward; the defaults are the paper's.

    Attributes:
        lengths: The tokenizer that lengths are measured by: "o200k_base", or a folder with the policy's
            `tokenizer.json`.
        prompt_opens_thinking: Whether the policy's chat template ends the prompt with `<think>` (R1-Distill's does,
            Qwen3's does not). A response without `</think>` is then all thinking and has no program.
        require_thinking: Whether a response without thinking tags is flawed (paper). False is for models that do not
            think. A response that has a tag must have exactly one `</think>` in any case.

    Raises:
        UserError: `require_thinking` is neither true nor false; commands replace `auto` before they get here.
    """

    lengths: str = O200K_BASE
    prompt_opens_thinking: bool = False
    require_thinking: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.require_thinking, bool):
            raise UserError(f"setting 'require_thinking' is {self.require_thinking!r}: it must be true or false")


PAPER = RewardSettings()


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one response, and what it is made of.

    Attributes:
        total: Reward that training maximises, in [-1, 1].
        pass_rate: Passed tests over all tests; 0.0 without a program.
        correctness: R_correct.
        improvement: R_improve: what the comparison with the best earlier program added to R_correct. Where that
            comparison replaces R_correct, it is the difference between the two.
        form: R_format and why; `total` is the sum of these three, clipped.
        no_code: There was no program: `total` is -1.0, the three parts are 0.0 and the form was not checked.
    """

    total: float
    pass_rate: float
    correctness: float = 0.0
    improvement: float = 0.0
    form: FormatReward = _UNCHECKED
    no_code: bool = False

    @property
    def validation_score(self) -> float:
        """1.0 when every test passed, else 0.0; what validation reports instead of `total`."""
        return 1.0 if self.pass_rate == 1.0 else 0.0

    def to_metrics(self) -> dict[str, float]:
        """Every part as a number, the same names for every response; flags are 0.0 or 1.0."""
        return {
            "reward": self.total,
            "solved": self.validation_score,
            "pass_rate": self.pass_rate,
            "correctness": self.correctness,
            "improvement": self.improvement,
            "format": self.form.value,
            "no_code": float(self.no_code),
            "long_thinking": float(self.form.long_thinking),
            "long_answer": float(self.form.long_answer),
            "long_explanation": float(self.form.long_explanation),
        } | {f"flaw_{flaw}": float(self.form.flaw is flaw) for flaw in Flaw}


def program_to_judge(response: str, settings: RewardSettings = PAPER) -> str | None:
    """The program that the reward is for (`cobalt.episode.turns.program_of`); None without one."""
    return program_of(OPEN + response if settings.prompt_opens_thinking else response)


def compute_reward(
    response: str,
    pass_rate: float | None,
    prev_best_pass_rate: float = 0.0,
    settings: RewardSettings = PAPER,
) -> Reward:
    """The reward of a response whose program passed `pass_rate` of its tests.

    A response of 24,000 characters takes about 4 ms of CPU, at worst 50 ms. The first call loads the tokenizer.

    Args:
        response: The whole response, thinking included, as the engine decoded it.
        pass_rate: Passed tests over all tests (`ExecResult.pass_rate`); None when `program_to_judge` found nothing
            to judge.
        prev_best_pass_rate: Largest pass rate of the programs in the prompt; 0.0 in a first turn.
        settings: The paper's by default.

    Raises:
        UserError: a rate is not a number in [0, 1], or `settings.lengths` names nothing.
    """
    for name, rate in (("prev_best_pass_rate", prev_best_pass_rate), ("pass_rate", pass_rate or 0.0)):
        if not (isinstance(rate, Real) and 0.0 <= rate <= 1.0):  # not a number (NaN) is in no range
            raise UserError(f"{name} is {rate!r}, but must be a share between 0 and 1")
    if pass_rate is None:
        return Reward(NO_CODE, 0.0, no_code=True)
    correctness = correctness_reward(pass_rate)
    reward = with_improvement(correctness, pass_rate, prev_best_pass_rate)
    counter = token_counter(settings.lengths)
    form = format_reward(response, reward, counter, require_thinking=settings.require_thinking)
    return Reward(max(-1.0, min(1.0, reward + form.value)), pass_rate, correctness, reward - correctness, form)


def correctness_reward(pass_rate: float) -> float:
    """1.0 if every test passes, 0.2 if half of them or more, 0.0 if at least one, -0.1 if none."""
    if pass_rate == 1.0:
        return 1.0
    if pass_rate >= 0.5:
        return 0.2
    return 0.0 if pass_rate > 0.0 else -0.1


def with_improvement(correctness: float, pass_rate: float, prev_best_pass_rate: float) -> float:
    """The correctness reward after the comparison with the best earlier program.

    As in the authors' `code_reward_func_think.py`: nothing changes when every test passes, or when no earlier program
    passed any. A better program adds 0.1 * (p - best) / (1 - best). Any other, one that is exactly as good included,
    loses its correctness reward and gets -0.1 + 0.1 * (p - best) / best instead: -0.1 for as good, -0.2 for none.
    """
    if pass_rate == 1.0 or prev_best_pass_rate == 0.0:
        return correctness
    change = pass_rate - prev_best_pass_rate
    if change > 0.0:
        return correctness + change / (1.0 - prev_best_pass_rate) * 0.1
    return -0.1 + change / prev_best_pass_rate * 0.1
