"""Prompt templates: three files a set, rendered by Jinja as plain text.

A set is a folder with `system.jinja` (no variable), `first_turn.jinja` (`question`, `fn_name`) and `feedback.jinja`
(`feedback`). Three sets come with the package: `paper` (the paper's structure, in our words), `pocket` (short, for the
seed model) and `program` (asks for a program without reasoning, for offline training). Any other folder can be named
instead. A variable that a template uses and does not get is an error, not a blank. The files may come from anybody, and
so a template computes text and nothing else: Jinja's sandbox refuses what leads from a value to Python's own objects.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cobalt.stage.errors import UserError
from cobalt.stage.manifest import file_digest

BUILT_IN = Path(__file__).parent / "prompts"
DEFAULT = "paper"
"""The set that is used where none is named."""

FILES = ("system.jinja", "first_turn.jinja", "feedback.jinja")


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The three texts of one prompt set; build it with `load_prompts`.

    `digests` has the SHA-256 of each file, by file name: a run's manifest names the texts, not the set.
    """

    system: str
    first_turn_template: jinja2.Template
    feedback_template: jinja2.Template
    digests: Mapping[str, str]

    def first_turn(self, question: str, fn_name: str | None = None) -> str:
        """The first user message for a problem statement; `fn_name` is the function to write, None: a whole program.

        Raises UserError: the template does not render these texts; the message names its file.
        """
        with _naming(self.first_turn_template.filename):
            return self.first_turn_template.render(question=question, fn_name=fn_name)

    def feedback(self, feedback: str) -> str:
        """The user message that hands the judge's feedback back to the model."""
        with _naming(self.feedback_template.filename):
            return self.feedback_template.render(feedback=feedback)


def templates(folder: Path) -> jinja2.Environment:
    """The templates of a folder by their file names; lines that hold only a statement leave no line behind."""
    return ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )


@contextmanager
def _naming(file: object) -> Iterator[None]:
    """Make an error in the use of a template a UserError that names its file."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a template is a program of its authors, and raises anything
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"the template {file}{line} does not render: {lines[0]}") from None


def load_prompts(name: str | None) -> PromptSet:
    """Load a built-in set by name (`paper`, `pocket`, `program`) or any folder by path; None: `paper`.

    Raises UserError: there is no such set, a file of it is missing, or a template does not render.
    """
    name = DEFAULT if name is None else name
    folder = BUILT_IN / name if (BUILT_IN / name).is_dir() else Path(name)
    if not folder.is_dir():
        built_in = ", ".join(sorted(path.name for path in BUILT_IN.iterdir() if path.is_dir()))
        raise UserError(f"no prompt set {name!r}: give one of {built_in}, or a folder with system.jinja,"
                        " first_turn.jinja and feedback.jinja")  # fmt: skip
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise UserError(f"{folder}: the file {missing[0]} is missing")
    loaded: list[jinja2.Template] = []
    for file in FILES:
        with _naming(folder / file):
            loaded.append(templates(folder).get_template(file))
    with _naming(folder / FILES[0]):
        system = loaded[0].render().strip()
    digests = {file: file_digest(folder / file) for file in FILES}
    prompts = PromptSet(system, loaded[1], loaded[2], digests)
    prompts.first_turn("")
    prompts.feedback("")
    return prompts
