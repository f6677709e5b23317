"""Templates of prompts: Jinja files of a folder, as plain text. A variable that is used and not given is an error."""

from pathlib import Path

import jinja2


def templates(folder: Path) -> jinja2.Environment:
    """The templates of a folder by their file names; lines that hold only a statement leave no line behind."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
