"""`cobalt serve`: run the judge and an engine until Ctrl-C, and say how other terminals use them."""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from cobalt.engine.model_name import model_name
from cobalt.serving.children import check_settings, ending, variables
from cobalt.serving.services import ServiceFlags, first_to_end
from cobalt.stage.errors import InfrastructureError
from cobalt.stage.settings import pairs


@dataclass(frozen=True)
class Arguments(ServiceFlags):
    """Run the judge and, with --model, a vLLM engine on this machine, until Ctrl-C.

    It prints the variables by which the commands of other terminals use the two services.
    """


def main(arguments: Arguments) -> int:
    """Run the services until Ctrl-C, and return the exit code.

    Raises:
        InfrastructureError: a service did not start, or has ended by itself.
    """
    _, engine = check_settings(pairs(arguments.judge), arguments.engine_settings())
    with arguments.started() as servers:
        name = "" if engine is None else engine.served_model_name or model_name(engine.model)
        token = engine is not None and engine.token is not None
        sys.stdout.write(explanation(variables(servers), name, token=token))
        sys.stdout.flush()
        try:
            died = first_to_end(servers)
        except KeyboardInterrupt:
            return 0
    assert died is not None
    raise InfrastructureError(f"{ending(died)}: start the services again")


def explanation(urls: Mapping[str, str], name: str, *, token: bool) -> str:
    """What `cobalt serve` prints; `name` is the model's on OpenAI's routes, "" without an engine."""
    engine = ""
    if name:
        url = urls["COBALT_ENGINE_URL"]
        requests = "\n".join(_requests(f"{url}/v1", name, token=token))
        engine = f"""
engine  {url}  (the model is served as {name})

Any client of OpenAI's API can ask the engine, for instance:

{requests}"""
    exports = "\n".join(f"export {variable}={shlex.quote(value)}" for variable, value in urls.items())
    return f"""
judge   {urls["COBALT_JUDGE_URL"]}{engine}

In another terminal, every command uses these services after

{exports}

Ctrl-C here stops the services.
"""


def _requests(address: str, name: str, *, token: bool) -> list[str]:
    """The same request by curl and by the package openai; the token comes from its variable."""
    messages = [{"role": "user", "content": "Print the square of a number."}]
    body = json.dumps({"model": name, "messages": messages, "max_tokens": 64})
    header = ' -H "Authorization: Bearer $COBALT_VLLM_TOKEN"' if token else ""
    key = 'os.environ["COBALT_VLLM_TOKEN"]' if token else '"none"'
    code = (
        f"{'import os; ' if token else ''}from openai import OpenAI;"
        f" client = OpenAI(base_url={json.dumps(address)}, api_key={key});"
        f" print(client.chat.completions.create(model={json.dumps(name)}, messages={json.dumps(messages)},"
        " max_tokens=64).choices[0].message.content)"
    )
    return [
        f"curl {address}/chat/completions -H 'Content-Type: application/json'{header} -d {shlex.quote(body)}",
        f"python -c {shlex.quote(code)}",
    ]
