"""The settings of the two apps: what they serve, who may send requests, and what requests may ask for."""

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from cobalt.engine.vllm_settings import VllmSettings
from cobalt.judge.settings import JudgeSettings

_SHORTEST_TOKEN = 16


class HttpSettings(BaseModel):
    """Access to an app, and limits on its requests.

    Attributes:
        token: The token that HTTP requests must send as `Authorization: Bearer TOKEN`, 16 printable ASCII characters
            or more. Set it as a variable rather than on a command line, which other users can see. None: requests
            from the machine itself need no token, and all others are refused.
        allow_open_cluster: Serve even on a Ray cluster that anybody can join; every result of the judge, and the
            engine's description with the manifest of every run, then has `"private": false`.
        max_request_bytes: Longest body of an HTTP request. At a time a replica holds eight of up to 16 MiB, and of
            longer ones as many as fit into 128 MiB, or one.
        max_body_seconds: Longest time in which the body of an HTTP request must arrive, in seconds. A slower one is
            answered 408.
        max_request_seconds: Longest time that an HTTP request may take, the judge's wait for a sandbox included, in
            seconds. A request that takes longer is answered 503.
    """

    token: SecretStr | None = None
    allow_open_cluster: bool = False
    max_request_bytes: int = Field(16 * 2**20, ge=1024)
    max_body_seconds: float = Field(30.0, gt=0, allow_inf_nan=False)
    max_request_seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)

    @field_validator("token")
    @classmethod
    def _fit_a_header(cls, token: SecretStr | None) -> SecretStr | None:
        text = token.get_secret_value() if token is not None else ""
        if token is not None and len(text) < _SHORTEST_TOKEN:
            raise ValueError(f"a token must have {_SHORTEST_TOKEN} characters or more")
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("a token must consist of printable ASCII characters, without blanks")
        return token


class ServiceSettings(HttpSettings, JudgeSettings):
    """The judge's settings, the deployment's size, and what requests may ask for.

    Attributes:
        num_replicas: Processes that hold sandboxes; None: one for every eight usable cores, of all judging nodes of
            a cluster (`cobalt.serving.nodes`).
        max_tests: The most tests that a suite may have, over HTTP and over the handle. A request with more JSON values
            than such a suite can need is refused before it is decoded.
        max_request_bytes: Larger than the engine's, because suites of public data sets have tens of MiB.
    """

    max_request_bytes: int = Field(128 * 2**20, ge=1024)

    num_replicas: int | None = Field(None, ge=1)
    max_tests: int = Field(10_000, ge=1)

    def of_the_judge(self) -> JudgeSettings:
        """The settings of the judge alone."""
        return JudgeSettings(**self.model_dump(include=set(JudgeSettings.model_fields)))


class EngineServiceSettings(HttpSettings, VllmSettings):
    """The engine's settings, the deployment's size, and the limits of requests.

    Attributes:
        num_replicas: Number of engines (paper: 2); only Ray Serve has more than one.
        max_completions: Largest number of completions (`n`) of an HTTP request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    num_replicas: int = Field(1, ge=1)
    max_completions: int = Field(1024, ge=1)
