"""Try again after an infrastructure failure. A user's mistake and a service that is down end the work at once."""

from collections.abc import Callable

import tenacity

from cobalt.stage.errors import InfrastructureError, ServiceDown


def is_transient(error: BaseException) -> bool:
    """Whether another attempt can help: an infrastructure failure, and not of a service that does not answer at all."""
    return isinstance(error, InfrastructureError) and not isinstance(error, ServiceDown)


def retrying(
    attempts: int,
    *,
    first_pause: float,
    longest_pause: float,
    retry: Callable[[BaseException], bool] = is_transient,
) -> tenacity.AsyncRetrying:
    """Calls an async function up to `attempts` times, while it raises an error for which `retry` holds.

    Pauses are drawn at random, so that callers that failed together do not come back together. Their upper end is
    `first_pause` seconds, doubles each time, and stays at `longest_pause`. The last call's error is raised as it is.
    """
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(retry),
        stop=tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_random_exponential(multiplier=first_pause, max=longest_pause),
        reraise=True,
    )
