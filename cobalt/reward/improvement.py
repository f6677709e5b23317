"""R_improve: a program compared with the best earlier one of its conversation (Cobalt, reward)."""


def with_improvement(correctness: float, pass_rate: float, prev_best_pass_rate: float) -> float:
    """The correctness reward after the comparison with the best earlier program.

    As in the authors' `code_reward_func_think.py`: nothing changes when every test passes, or when no earlier program
    passed any. A better program adds 0.1 * (p - best) / (1 - best). Any other, one that is exactly as good included,
    loses its correctness reward and gets -0.1 + 0.1 * (p - best) / best instead: -0.1 for as good, -0.2 for none.

    Args:
        correctness: `correctness_reward(pass_rate)`.
        pass_rate: Passed tests over all tests, in [0, 1].
        prev_best_pass_rate: Largest pass rate among the programs in the prompt, in [0, 1]; 0 in a first turn.
    """
    if pass_rate == 1.0 or prev_best_pass_rate == 0.0:
        return correctness
    change = pass_rate - prev_best_pass_rate
    if change > 0.0:
        return correctness + change / (1.0 - prev_best_pass_rate) * 0.1
    return -0.1 + change / prev_best_pass_rate * 0.1
