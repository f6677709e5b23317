"""The texts around the statements of benchmarks, most of them templates in `cobalt/datasets/prompts/`.

They make a problem's `question`; the prompt set of a run then makes the first message of it. A variable that a template
uses and does not get is an error.
"""

from pathlib import Path
from typing import Any

from cobalt.episode.templates import templates
from cobalt.stage.manifest import file_digest

_FOLDER = Path(__file__).parent / "prompts"


def render(name: str, **values: Any) -> str:
    """The text of the template `name`, without white space at its ends."""
    return templates(_FOLDER).get_template(f"{name}.jinja").render(**values).strip()


def with_starter_code(statement: str, starter: object) -> str:
    """The statement of a function problem with the data set's starter code, if it is a text that is not blank."""
    if not isinstance(starter, str) or not starter.strip():
        return statement
    return f"{statement}\n\nStarter code:\n```python\n{starter.strip()}\n```"


def digest(name: str) -> str:
    """SHA-256 of the template, for the manifest of a result."""
    return file_digest(_FOLDER / f"{name}.jinja")
