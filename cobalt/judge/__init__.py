"""Judging programs: run a program in a sandbox on a suite of stdin/stdout tests, and give a verdict for each test.

`LocalJudge` runs sandboxes in this process; `ServeJudge` asks the Ray Serve app of `remote_reward_server.py`.
Importing this package imports neither Ray nor anything that needs a network. `python -m cobalt.judge doctor` is the
self-check. The head of `cobalt.judge.inside.zygote` says what sandboxes protect against and what they do not.
"""

from cobalt.judge.client import ServeJudge
from cobalt.judge.local import Judge, LocalJudge, judge_or_local, programs_at_a_time
from cobalt.judge.remembering import RememberingJudge
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.verdict import ExecResult, Verdict, VerdictKind

__all__ = [
    "ExecResult",
    "Judge",
    "JudgeSettings",
    "LocalJudge",
    "RememberingJudge",
    "ServeJudge",
    "Verdict",
    "VerdictKind",
    "judge_or_local",
    "programs_at_a_time",
]
