"""The paper's reward of one response: correctness, improvement and format (Cobalt, reward).

Pure functions of the response's text and the share of tests its program passed. No Ray, no torch, no judge, no
network; `docs/method.md` has the table.
"""

from cobalt.reward.format import Flaw
from cobalt.reward.lengths import token_counter
from cobalt.reward.reward import Reward, RewardSettings, compute_reward, program_to_judge

__all__ = ["Flaw", "Reward", "RewardSettings", "compute_reward", "program_to_judge", "token_counter"]
