"""The settings of the judge as a Ray Serve app. Ray is not imported, so that a wrong setting is found at once."""

from typing import Literal

from pydantic import Field

from cobalt.judge.settings import JudgeSettings
from cobalt.serving.http_settings import HttpSettings


class ServiceSettings(HttpSettings, JudgeSettings):
    """The judge's settings, the deployment's size, and what requests may ask for.

    Attributes:
        num_replicas: Processes that hold sandboxes; None: one for every eight usable cores, of all judging nodes of
            a cluster (`cobalt.serving.nodes`).
        replica_cpus: CPUs that Ray reserves for each replica. Small, because the sandboxes share the
            machine with engines by the kernel's scheduler rather than by Ray's count. Nodes that are marked for
            judging reserve none.
        max_ongoing_requests: Programs a replica takes at once. The default is large, so that programs wait in the
            replica, where the wait is measured and reported as queue time. In Serve's router they would wait by
            polling for a free replica, which costs more CPU than the tests.
        log_level: What replicas log, as JSON lines in Serve's log folder. "WARNING": failures of the judge and
            replaced sandboxes. "INFO": one more line for each program.
        max_tests: The most tests that a suite may have, over HTTP and over the handle. A request with more JSON values
            than such a suite can need is refused before it is decoded.
        max_run_seconds: Largest `run_timeout` of SandboxFusion's route, in seconds.
        max_request_bytes: Larger than the engine's, because suites of public data sets have tens of MiB.
    """

    max_request_bytes: int = Field(128 * 2**20, ge=1024)

    num_replicas: int | None = Field(None, ge=1)
    replica_cpus: float = Field(0.1, ge=0)
    max_ongoing_requests: int = Field(1000, ge=1)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "WARNING"
    max_tests: int = Field(10_000, ge=1)
    max_run_seconds: float = Field(300.0, gt=0, le=3600)

    def of_the_judge(self) -> JudgeSettings:
        """The settings of the judge alone."""
        return JudgeSettings(**self.model_dump(include=set(JudgeSettings.model_fields)))
