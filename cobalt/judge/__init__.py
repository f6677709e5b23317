"""Judging programs: run one in a sandbox on a suite of stdin/stdout tests, and say how each test went.

`LocalJudge` runs sandboxes in this process; `ServeJudge` asks the Ray Serve app of `remote_reward_server.py`.
Importing this package imports neither Ray nor anything that needs a network. `python -m cobalt.judge` has the
self-check. What sandboxes protect against, and what they do not, is said in `cobalt.judge.inside.zygote`.
"""

from cobalt.judge.client import ServeJudge
from cobalt.judge.local import Judge, LocalJudge
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
]
