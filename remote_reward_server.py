"""The judge as a Ray Serve app: `serve run remote_reward_server:app --name evaluator --route-prefix /evaluator`.

Settings are `key=value` arguments of `serve run` or `COBALT_JUDGE_<NAME>` environment variables; their names,
units and defaults are in `cobalt.judge.settings` and `cobalt.judge.service`.
"""

import sys

from ray.serve import Application

from cobalt.cli import build_app
from cobalt.errors import UserError
from cobalt.judge.service import build


def app(args: dict[str, str]) -> Application:
    """Build the app from the arguments of `serve run`; ends with one sentence where it cannot serve."""
    try:
        return build_app(build, args)
    except UserError as error:
        sys.exit(f"error: {error}")
