"""Settings of a service from `key=value` arguments and environment variables.

Arguments override the environment. Unknown names are errors, except in the environment, which other programs share.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cobalt.stage.errors import UserError

Settings = TypeVar("Settings", bound=BaseModel)


def read_settings(
    model: type[Settings], arguments: Mapping[str, Any], environment: Mapping[str, str], prefix: str
) -> Settings:
    """Build `model` from arguments and `<prefix><NAME>` variables.

    Raises:
        UserError: a name is unknown or a value is bad; the message names it.
    """
    names = [name for name in model.model_fields if prefix + name.upper() in environment]
    try:
        return model(**{name: environment[prefix + name.upper()] for name in names} | dict(arguments))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields)
            raise UserError(f"there is no setting {name!r}; there are {known}") from None
        # An error of the whole model has no name here: its message names the settings.
        raise UserError(f"setting {name!r}: {reason}" if name else f"settings: {reason}") from None


def pairs(settings: Sequence[str]) -> dict[str, Any]:
    """Settings of the form key=value by their keys.

    Raises:
        UserError: one has another form.
    """
    values = {}
    for item in settings:
        name, separator, value = item.partition("=")
        if not separator:
            raise UserError(f"setting {item!r} must have the form key=value")
        values[name] = value
    return values
