"""Try again after an infrastructure failure. A user's mistake and a service that is down end the work at once."""

import tenacity

from cobalt.stage.errors import InfrastructureError, ServiceDown


def retrying(
    attempts: int,
    *,
    first_pause: float,
    longest_pause: float,
    retry: type[InfrastructureError] = InfrastructureError,
) -> tenacity.AsyncRetrying:
    """Calls an async function up to `attempts` times, while it raises a `retry` that is no `ServiceDown`.

    Pauses are drawn at random, so that callers that failed together do not come back together. Their upper end is
    `first_pause` seconds, doubles each time, and stays at `longest_pause`. The last call's error is raised as it is.
    """
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, retry) and not isinstance(error, ServiceDown)
        ),
        stop=tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_random_exponential(multiplier=first_pause, max=longest_pause),
        reraise=True,
    )
