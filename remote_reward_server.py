"""The judge as a Ray Serve app: `serve run remote_reward_server:app --name evaluator --route-prefix /evaluator`.

Settings are `key=value` arguments of `serve run` or `COBALT_JUDGE_<NAME>` variables; their names, units and defaults
are in `cobalt.judge.settings` and `cobalt.serving.settings`.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: dict[str, Any]) -> "Application":
    """Build the app from the arguments of `serve run`; a user's mistake ends it with one sentence and exit code 2."""
    from cobalt.serving.ray_serve import for_serve_run, judge_app

    return for_serve_run(judge_app, args)


if __name__ == "__main__":
    sys.stdout.write(f"{__doc__}\n")
