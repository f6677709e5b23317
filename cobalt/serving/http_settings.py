"""The settings that the engine's and the judge's app share: who may send HTTP requests, and how large they may be."""

from pydantic import BaseModel, Field, SecretStr, field_validator

from cobalt.stage.settings import check_token


class HttpSettings(BaseModel):
    """Access to an app, and limits on its requests.

    Attributes:
        token: The token that HTTP requests must send as `Authorization: Bearer TOKEN`, 16 printable ASCII characters
            or more. Set it as a variable rather than on a command line, which other users can see. None: requests
            from the machine itself need no token, and all others are refused.
        allow_open_cluster: Serve even on a Ray cluster that anybody can join; every result of the judge, and the
            engine's description with the manifest of every run, then has `"private": false`.
        max_request_bytes: Longest body of an HTTP request. A replica holds at most eight times as many bytes of bodies
            at a time.
        max_body_seconds: Longest time in which the body of an HTTP request must arrive, in seconds. A slower one is
            answered 408.
        max_request_seconds: Longest time that an HTTP request may take, the judge's wait for a sandbox included, in
            seconds. A request that takes longer is answered 503 (504 on SandboxFusion's route).
    """

    token: SecretStr | None = None
    allow_open_cluster: bool = False
    max_request_bytes: int = Field(16 * 2**20, ge=1024)
    max_body_seconds: float = Field(30.0, gt=0, allow_inf_nan=False)
    max_request_seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)

    @field_validator("token")
    @classmethod
    def _fit_a_header(cls, token: SecretStr | None) -> SecretStr | None:
        return check_token(token)
