"""`cobalt serve`: run the judge and an engine until Ctrl-C, and say how other terminals use them."""

import os
import shlex
import signal
import sys
from dataclasses import dataclass, field

import tyro

from cobalt.serve_state import ServeState, recorded_state

_HOLD = "import sys; from cobalt.commands.serve import hold; hold(*sys.argv[1:])"


@dataclass(frozen=True)
class Arguments:
    """Run the judge and, with --model, a vLLM engine on a private Ray on this machine, until Ctrl-C.

    In other terminals, the commands sample, repair, evaluate and select find the two services by themselves; `cobalt
    attach` runs any other command with them.
    """

    model: str | None = None
    """Model folder or hub name for the engine; without it only the judge runs."""
    http_port: int | None = None
    """Port of both apps on 127.0.0.1 (/evaluator, /vllm_actor); a free port by default."""
    judge: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the judge, as key=value, such as comparison=float; may be given several times. The message about an
    unknown key lists all keys."""
    engine: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the engine, as key=value, such as max_model_len=4096; as for --judge."""


def main(arguments: Arguments) -> int:
    """Run the services until Ctrl-C, and return the exit code."""
    from cobalt import services

    command = [sys.executable, "-c", _HOLD, *([arguments.model] if arguments.model else [])]
    return services.run_beside_services(
        services.Arguments(
            command=command,
            model=arguments.model,
            http_port=arguments.http_port,
            judge=arguments.judge,
            engine=arguments.engine,
        )
    )


def hold(model: str | None = None) -> None:
    """Say how to use the services of this process's environment, and wait until it is told to end.

    It runs as the command of `cobalt.services`, whose process is its parent.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # so that none comes before or after the wait
    with recorded_state(os.getppid(), model, os.environ) as state:
        sys.stdout.write(explanation(state))
        sys.stdout.flush()
        signal.sigwait(numbers)


def explanation(state: ServeState) -> str:
    """What `cobalt serve` prints when the services answer."""
    http = state.variables.get("COBALT_HTTP", "")
    apps = [f"judge   {http}/evaluator", *([f"engine  {http}/vllm_actor  ({state.model})"] if state.model else [])]
    return "\n".join(
        [
            "",
            *apps,
            "",
            "In another terminal, `cobalt sample`, `repair` and `evaluate` use these services by themselves.",
            "For any other command:  cobalt attach -- COMMAND",
            'For a whole terminal:   eval "$(cobalt attach)"        which sets',
            "",
            exports(state),
            "",
            "Ctrl-C here stops the services.",
            "",
        ]
    )


def exports(state: ServeState) -> str:
    """The shell's lines that set the variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in state.variables.items())
