"""Keys of model providers: how they are read, and how they are kept out of messages and files.

A key is taken from a flag, a file or the environment, in this order. This module sends nothing.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cobalt.stage.environment import names_a_secret
from cobalt.stage.errors import UserError

logger = logging.getLogger(__name__)

_PUBLIC = ("AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE")  # settings, not secrets
_SHORTEST_SECRET = 4  # to hide shorter values (placeholders such as "x") would put stars into ordinary text


@dataclass(frozen=True)
class Credentials:
    """Variables that a provider reads (`OPENAI_API_KEY`, `AWS_ACCESS_KEY_ID`, ...) and their values.

    Attributes:
        given: Variables from flags and the key file; a provider's client finds those of the environment itself.
        environment: The process's environment variables.
    """

    given: Mapping[str, str] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)

    def get(self, variable: str) -> str | None:
        """A variable's value; None if it is not set or empty.

        Raises:
            UserError: the value cannot be a key (it holds blanks, control characters or characters outside ASCII).
        """
        value = (self.given.get(variable) or self.environment.get(variable) or "").strip()
        if not all("!" <= character <= "~" for character in value):
            raise UserError(f"{variable} holds blanks or characters that no key has: copy it again")
        return value or None

    def scrub(self, text: str) -> str:
        """`text` with every key, and every variable that has the name of a secret, replaced by stars."""
        secrets = [value for name, value in self.given.items() if name not in _PUBLIC]
        secrets += [value for name, value in self.environment.items() if names_a_secret(name)]
        for secret in sorted({secret.strip() for secret in secrets}, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text


def read_credentials(flags: Mapping[str, str], key_file: Path | None) -> Credentials:
    """Collect keys from flags, a file and the environment; warns of keys in flags, which other users can see.

    Args:
        flags: Values of flags by variable; empty values count as not set.
        key_file: A text file with one key, or with lines `NAME=value`.

    Raises:
        UserError: the key file cannot be read or is malformed.
    """
    values = {variable: value for variable, value in flags.items() if value}
    if keys := sorted(values.keys() - set(_PUBLIC)):
        logger.warning("keys in flags can be seen by other users of this machine: set %s instead", ", ".join(keys))
    return Credentials(({} if key_file is None else _read_key_file(key_file)) | values, os.environ)


def _read_key_file(path: Path) -> dict[str, str]:
    """The variables of a key file; a single key without a name is OpenAI's."""
    try:
        lines = [line.strip().removeprefix("export ") for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the key file {path}: {getattr(error, 'strerror', 'not a text file')}") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if len(pairs) == 1 and not (pairs[0][1] and pairs[0][0].strip().isidentifier()):
        return {"OPENAI_API_KEY": "".join(pairs[0])}
    if not pairs or not all(equals and name.strip().isidentifier() for name, equals, _ in pairs):
        raise UserError(f"the key file {path} must hold one key, or lines NAME=value")
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}
