"""Judging programs: run a program in a sandbox on a suite of stdin/stdout tests, and give a verdict for each test.

`open_judge` opens a judge in this process or behind URLs; `LocalJudge` is the sandboxes in this process alone.
Importing this package imports nothing that needs a network. `python -m cobalt.judge doctor` is the
self-check. The head of `cobalt.judge.inside.zygote` says what sandboxes protect against and what they do not.
"""

from cobalt.judge.local import Judge, LocalJudge, programs_at_a_time
from cobalt.judge.opening import open_judge
from cobalt.judge.remembering import RememberingJudge
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.verdict import ExecResult, Verdict, VerdictKind

__all__ = [
    "ExecResult",
    "Judge",
    "JudgeSettings",
    "LocalJudge",
    "RememberingJudge",
    "Verdict",
    "VerdictKind",
    "open_judge",
    "programs_at_a_time",
]
