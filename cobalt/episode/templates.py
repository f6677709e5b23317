"""Templates of prompts: Jinja files of a folder, as plain text. A variable that is used and not given is an error.

The files may come from anybody, and so a template computes text and nothing else: Jinja's sandbox refuses what leads
from a value to Python's own objects.
"""

from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cobalt.stage.errors import UserError

# What a template can raise beside Jinja's own errors: it may compute with any values, and call itself.
_FAULTS = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError),
    *(MemoryError, RecursionError, TypeError, ValueError),
)


def templates(folder: Path) -> jinja2.Environment:
    """The templates of a folder by their file names; lines that hold only a statement leave no line behind."""
    return ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )


def load(folder: Path, name: str) -> jinja2.Template:
    """A template of a folder.

    Raises:
        UserError: the file is missing or not a template; the message names it.
    """
    try:
        return templates(folder).get_template(name)
    except jinja2.TemplateNotFound:
        raise UserError(f"{folder}: the file {name} is missing") from None
    except _FAULTS as error:
        raise UserError(_sentence(folder / name, error)) from None


def render(template: jinja2.Template, **values: Any) -> str:
    """The text that a template makes of values.

    Raises:
        UserError: the template cannot be rendered, or does what no template may; the message names its file.
    """
    try:
        return template.render(values)
    except _FAULTS as error:
        raise UserError(_sentence(template.filename, error)) from None


def _sentence(file: object, error: Exception) -> str:
    line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    lines = str(error).splitlines() or [type(error).__name__]
    return f"the template {file}{line} does not render: {lines[0]}"
