"""`cobalt serve`: run the judge and an engine until Ctrl-C, and say how other terminals use them."""

import os
import shlex
import sys
from dataclasses import dataclass

from cobalt.engine.model_name import model_name
from cobalt.serving.services import ServiceFlags, ending, first_to_end, variables
from cobalt.stage.errors import InfrastructureError
from cobalt.stage.serve_state import ServeState, recorded_state


@dataclass(frozen=True)
class Arguments(ServiceFlags):
    """Run the judge and, with --model, a vLLM engine on this machine, until Ctrl-C.

    In other terminals, the commands sample, repair, evaluate, select and try find the two services by themselves; any
    other command uses them by the variables that are printed.
    """


def main(arguments: Arguments) -> int:
    """Run the services until Ctrl-C, and return the exit code.

    Raises:
        InfrastructureError: a service did not start, or has ended by itself.
    """
    with (
        arguments.started() as servers,
        recorded_state(os.getpid(), arguments.model, variables(servers)) as state,
    ):
        name = "" if arguments.model is None else model_name(arguments.model)
        sys.stdout.write(explanation(state, name))
        sys.stdout.flush()
        try:
            died = first_to_end(servers)
        except KeyboardInterrupt:
            return 0
    assert died is not None
    raise InfrastructureError(f"{ending(died)}: start the services again")


def explanation(state: ServeState, name: str) -> str:
    """Text that `cobalt serve` prints; `name` is the model's on OpenAI's routes, "" without an engine."""
    engine = ""
    if name:
        url = state.variables["COBALT_ENGINE_URL"]
        engine = f"\nengine  {url}  ({state.model}; for clients of OpenAI's API: base URL {url}/v1, model {name})"
    exports = "\n".join(f"export {variable}={shlex.quote(value)}" for variable, value in state.variables.items())
    return f"""
judge   {state.variables["COBALT_JUDGE_URL"]}{engine}

In another terminal, `cobalt sample`, `repair`, `evaluate`, `select` and `try` use these services by themselves.
Any other command uses them after

{exports}

Ctrl-C here stops the services.
"""
