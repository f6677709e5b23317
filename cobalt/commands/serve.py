"""`cobalt serve`: run the judge and an engine until Ctrl-C, and say how other terminals use them."""

import json
import os
import shlex
import sys
from dataclasses import dataclass

from cobalt.engine.model_name import model_name
from cobalt.serving.children import check_settings, ending, variables
from cobalt.serving.services import ServiceFlags, first_to_end
from cobalt.stage.errors import InfrastructureError
from cobalt.stage.serve_state import ServeState, recorded_state
from cobalt.stage.settings import pairs


@dataclass(frozen=True)
class Arguments(ServiceFlags):
    """Run the judge and, with --model, a vLLM engine on this machine, until Ctrl-C.

    In other terminals, the commands sample, repair, evaluate, select and try find the two services by themselves;
    `cobalt attach` runs any other command with them.
    """


def main(arguments: Arguments) -> int:
    """Run the services until Ctrl-C, and return the exit code.

    Raises:
        InfrastructureError: a service did not start, or has ended by itself.
    """
    _, engine = check_settings(pairs(arguments.judge), arguments.engine_settings())
    with (
        arguments.started() as servers,
        recorded_state(os.getpid(), arguments.model, variables(servers)) as state,
    ):
        name = "" if engine is None else engine.served_model_name or model_name(engine.model)
        token = engine is not None and engine.token is not None
        sys.stdout.write(explanation(state, name, token=token))
        sys.stdout.flush()
        try:
            died = first_to_end(servers)
        except KeyboardInterrupt:
            return 0
    assert died is not None
    raise InfrastructureError(f"{ending(died)}: start the services again")


def explanation(state: ServeState, name: str, *, token: bool) -> str:
    """What `cobalt serve` prints; `name` is the model's on OpenAI's routes, "" without an engine."""
    engine = ""
    if name:
        url = state.variables["COBALT_ENGINE_URL"]
        engine = f"""
engine  {url}  ({state.model}, served as {name})

Any client of OpenAI's API can ask the engine, for instance:

{_request(f"{url}/v1", name, token=token)}"""
    return f"""
judge   {state.variables["COBALT_JUDGE_URL"]}{engine}

In another terminal, `cobalt sample`, `repair`, `evaluate`, `select` and `try` use these services by themselves.
For any other command:  cobalt attach -- COMMAND
For a whole terminal:   eval "$(cobalt attach)"        which sets

{exports(state)}

Ctrl-C here stops the services.
"""


def _request(address: str, name: str, *, token: bool) -> str:
    """A request by curl; the token comes from its variable."""
    messages = [{"role": "user", "content": "Print the square of a number."}]
    body = json.dumps({"model": name, "messages": messages, "max_tokens": 64})
    header = ' -H "Authorization: Bearer $COBALT_VLLM_TOKEN"' if token else ""
    return f"curl {address}/chat/completions -H 'Content-Type: application/json'{header} -d {shlex.quote(body)}"


def exports(state: ServeState) -> str:
    """The shell's lines that set the variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in state.variables.items())
