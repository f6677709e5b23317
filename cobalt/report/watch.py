"""`cobalt watch RUN`: curves and rollouts of a training run in a browser. Flags in, one call of the page."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.stage.cli import run_script
from cobalt.stage.run import Outcome


@dataclass(frozen=True)
class Arguments:
    """Show a training run, also one that is under way: curves and rollouts, from its folder alone, until Ctrl-C."""

    run: tyro.conf.Positional[Path]
    """Folder of a training run, online or offline (its --output_dir)."""
    output_file: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Write the page as it is now to this HTML file, which needs no server, and stop."""
    port: int = 8765
    """Port of the page on the loopback interface; 0: any that is free."""


def main(arguments: Arguments) -> Outcome:
    """Write the page, or serve it until Ctrl-C."""
    from cobalt.report.viewer.watching import serving, write_watch

    if arguments.output_file is not None:
        write_watch(arguments.run, arguments.output_file)
        return Outcome(wrote=str(arguments.output_file), next="open it in a browser")
    with contextlib.suppress(KeyboardInterrupt), serving(arguments.run, arguments.port) as (server, address):
        port = server.server_port
        sys.stdout.write(
            f"{arguments.run} is at {address}\nfrom another machine: ssh -L {port}:127.0.0.1:{port} HOST, and the same"
            " address there; Ctrl-C ends it\n"
        )
        sys.stdout.flush()
        server.serve_forever()
    return Outcome()


if __name__ == "__main__":
    run_script(Arguments, main)
