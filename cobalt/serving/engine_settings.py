"""The settings of the engine as a service: the engine's own, its replicas, and what requests may ask for."""

from pydantic import ConfigDict, Field

from cobalt.engine.vllm_settings import VllmSettings
from cobalt.serving.http_settings import HttpSettings


class EngineServiceSettings(HttpSettings, VllmSettings):
    """The engine's settings, the deployment's size, and the limits of requests.

    Attributes:
        num_replicas: Number of engines (paper: 2); only Ray Serve has more than one.
        max_ongoing_requests: Calls that a replica takes at once.
        max_completions: Largest number of completions (`n`) of an HTTP request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    num_replicas: int = Field(1, ge=1)
    max_ongoing_requests: int = Field(4096, ge=1)
    max_completions: int = Field(1024, ge=1)
