"""R_correct: what a program earns by the share of tests it passes (Cobalt, reward)."""


def correctness_reward(pass_rate: float) -> float:
    """1.0 when every test passes, 0.2 from half of them on, 0.0 for any, -0.1 for none.

    Args:
        pass_rate: Passed tests over all tests, public and hidden, in [0, 1].
    """
    if pass_rate == 1.0:
        return 1.0
    if pass_rate >= 0.5:
        return 0.2
    return 0.0 if pass_rate > 0.0 else -0.1
