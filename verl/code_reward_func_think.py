"""The reward function at the path that the paper's README names, for veRL's `reward.custom_reward_function.path`."""

from cobalt_verl.code_reward_func_think import compute_score

__all__ = ["compute_score"]
