"""`cobalt serve`: run the judge and an engine until Ctrl-C, and say how other terminals use them."""

import json
import os
import shlex
import signal
import sys
from dataclasses import dataclass

from cobalt.serving import services
from cobalt.stage.serve_state import ServeState, recorded_state

_HOLD = "import sys; from cobalt.commands.serve import hold; hold(*sys.argv[1:])"


@dataclass(frozen=True)
class Arguments(services.ServiceFlags):
    """Run the judge and, with --model, a vLLM engine on a private Ray on this machine, until Ctrl-C.

    In other terminals, the commands sample, repair, evaluate and select find the two services by themselves; `cobalt
    attach` runs any other command with them.
    """


def main(arguments: Arguments) -> int:
    """Run the services until Ctrl-C, and return the exit code."""
    from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX
    from cobalt.serving.engine_settings import EngineServiceSettings
    from cobalt.stage.settings import read_settings

    command = [sys.executable, "-c", _HOLD]
    engine = arguments.engine_settings()
    if engine is not None:
        settings = read_settings(EngineServiceSettings, engine, os.environ, ENVIRONMENT_PREFIX)
        command += [engine["model"], settings.served_model_name or "", "token" if settings.token else ""]
    return services.run_beside_services(services.Arguments(command, **vars(arguments)))


def hold(model: str | None = None, served_name: str = "", token: str = "") -> None:
    """Say how to use the services of this process's environment, and wait until it is told to end.

    It runs as the command of `cobalt.services`, whose process is its parent.

    Args:
        model: Model of the engine; None if only the judge runs.
        served_name: The setting `served_model_name` of the engine; "" if it is not set.
        token: Anything but "" if requests need the engine's token.
    """
    from cobalt.engine.model_name import model_name

    name = served_name or (model_name(model) if model else "")
    numbers = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # so that none comes before or after the wait
    with recorded_state(os.getppid(), model, os.environ) as state:
        sys.stdout.write(explanation(state, name, token=bool(token)))
        sys.stdout.flush()
        signal.sigwait(numbers)


def explanation(state: ServeState, name: str, *, token: bool) -> str:
    """What `cobalt serve` prints when the services answer.

    Args:
        state: The services.
        name: The model's name on OpenAI's routes; "" without an engine.
        token: Whether requests to the engine need its token.
    """
    http = state.variables.get("COBALT_HTTP", "")
    engine = [
        f"engine  {http}/vllm_actor  ({state.model}, served as {name})",
        "",
        "Any client of OpenAI's API can ask the engine, for instance:",
        "",
        *_requests(f"{http}/vllm_actor/v1", name, token=token),
    ]
    return "\n".join(
        [
            "",
            f"judge   {http}/evaluator",
            *(engine if name else []),
            "",
            "In another terminal, `cobalt sample`, `repair`, `evaluate` and `select` use these services by themselves.",
            "For any other command:  cobalt attach -- COMMAND",
            'For a whole terminal:   eval "$(cobalt attach)"        which sets',
            "",
            exports(state),
            "",
            "Ctrl-C here stops the services.",
            "",
        ]
    )


def _requests(address: str, name: str, *, token: bool) -> list[str]:
    """The same request by curl and by the package openai; the token comes from its variable."""
    messages = [{"role": "user", "content": "Print the square of a number."}]
    body = json.dumps({"model": name, "messages": messages, "max_tokens": 64})
    header = ' -H "Authorization: Bearer $COBALT_VLLM_TOKEN"' if token else ""
    key = 'os.environ["COBALT_VLLM_TOKEN"]' if token else '"none"'
    code = (
        f"{'import os; ' if token else ''}from openai import OpenAI;"
        f" client = OpenAI(base_url={json.dumps(address)}, api_key={key});"
        f" print(client.chat.completions.create(model={json.dumps(name)}, messages={json.dumps(messages)},"
        " max_tokens=64).choices[0].message.content)"
    )
    return [
        f"curl {address}/chat/completions -H 'Content-Type: application/json'{header} -d {shlex.quote(body)}",
        f"python -c {shlex.quote(code)}",
    ]


def exports(state: ServeState) -> str:
    """The shell's lines that set the variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in state.variables.items())
