"""Cobalt: contextual-bandit learning with offline trajectories for multi-turn code generation.

The names in `__all__` are for others to build on; each is imported when it is first used. A package imports only from
those before it in the list of `docs/architecture.md`.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cobalt.episode.episode import Episode as Episode
    from cobalt.episode.trajectory import Trajectory as Trajectory
    from cobalt.episode.turns import program_of as program_of
    from cobalt.judge.local import LocalJudge as LocalJudge
    from cobalt.judge.settings import JudgeSettings as JudgeSettings
    from cobalt.judge.verdict import Verdict as Verdict
    from cobalt.problems.problem import Problem as Problem
    from cobalt.problems.problem import TestSuite as TestSuite
    from cobalt.problems.problem import load_problems as load_problems
    from cobalt.reward.reward import compute_reward as compute_reward
    from cobalt.stage.errors import CobaltError as CobaltError
    from cobalt.stage.errors import InfrastructureError as InfrastructureError
    from cobalt.stage.errors import UserError as UserError

_MODULES = {
    "CobaltError": "stage.errors",
    "Episode": "episode.episode",
    "InfrastructureError": "stage.errors",
    "JudgeSettings": "judge.settings",
    "LocalJudge": "judge.local",
    "Problem": "problems.problem",
    "TestSuite": "problems.problem",
    "Trajectory": "episode.trajectory",
    "UserError": "stage.errors",
    "Verdict": "judge.verdict",
    "compute_reward": "reward.reward",
    "load_problems": "problems.problem",
    "program_of": "episode.turns",
}


__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cobalt' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cobalt.{_MODULES[name]}"), name)


_RUN = {"cobalt.preflight": "cobalt.serving.preflight", "cobalt.services": "cobalt.serving.services"}
"""Modules that `python -m` runs under a name that is public and is not the module's path."""


class _Run:
    """A finder at the end of `sys.meta_path`, where only modules arrive that no other finder knows."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _RUN or sys.argv[:1] != ["-m"]:
            return None
        spec = importlib.util.find_spec(_RUN[name])
        return spec and importlib.util.spec_from_file_location(name, spec.origin)


sys.meta_path.append(_Run)

if sys.argv[:1] == ["-m"]:  # `python -m cobalt.X` is about to import X, which may lack the packages that it imports
    from cobalt.stage.entry import end_in_one_sentence

    end_in_one_sentence()
