"""R_correct: the reward for the share of tests that a program passes (Cobalt, reward)."""


def correctness_reward(pass_rate: float) -> float:
    """1.0 if every test passes, 0.2 if half of them or more, 0.0 if at least one, -0.1 if none.

    Args:
        pass_rate: Passed tests over all tests, public and hidden, in [0, 1].
    """
    if pass_rate == 1.0:
        return 1.0
    if pass_rate >= 0.5:
        return 0.2
    return 0.0 if pass_rate > 0.0 else -0.1
