"""The errors that cross module borders, and what each means for a run."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

INTERRUPTED = "interrupted: what is finished is kept; run the same command again to complete it\n"
"""Message of a command that Ctrl-C or SIGTERM ends."""


class CobaltError(Exception):
    """Base of all errors that this project raises on purpose."""


class UserError(CobaltError):
    """A mistake in the user's input; the message says what, where and what to do. Scripts exit with code 2."""


class InfrastructureError(CobaltError):
    """A part of the system failed (sandbox, replica, engine): retry, and never make a verdict of it."""


class ServiceDown(InfrastructureError):
    """A service does not answer, so no problem of a run can continue; the message says how to start it."""


class RequestRefused(ServiceDown, UserError):
    """A service refuses all requests of this user (key, model, quota): the run ends until the user fixes the cause."""


class SpendLimitReached(ServiceDown):
    """The run's spending limit is reached: the run ends and can be resumed with a higher limit."""


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Say in the message of a `UserError` where the mistake is: a file, or a record of one."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


@contextlib.contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Say by a `UserError` what could not be done, such as "cannot write x", and why the system refused it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror}") from None


def last_line(said: str) -> str:
    """The last line that is not blank, where programs and remote tracebacks name the cause; "" where there is none."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def tally(counts: Mapping[str, Any]) -> str:
    """Counts of a run in words, for a message: only those above zero, nested counts under their group's name."""
    phrases = []
    for name, count in counts.items():
        if isinstance(count, Mapping):
            phrases.append(f"{name}: {tally(count)}")
        elif count:
            phrases.append(f"{count} {name}")
    return ", ".join(phrases) or "nothing read"
