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
    """Calls an async function until it returns, or raises what another attempt would not change, or too often.

    Args:
        attempts: Most calls; the last one's error is raised as it is.
        first_pause: Upper end of the first pause in seconds. Pauses are drawn at random, so that callers that failed
            together do not come back together; their upper end doubles each time.
        longest_pause: Longest pause in seconds.
        retry: Which errors are worth another attempt.
    """
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(retry),
        stop=tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_random_exponential(multiplier=first_pause, max=longest_pause),
        reraise=True,
    )
