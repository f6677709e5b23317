"""Prompt templates: three files a set, rendered by Jinja.

A set is a folder with `system.jinja` (no variable), `first_turn.jinja` (`question`, `fn_name`) and `feedback.jinja`
(`feedback`). Three sets come with the package: `paper` (the paper's structure, in our words), `pocket` (short, for the
seed model) and `program` (asks for a program without reasoning, for offline training). Any other folder can be named
instead. A variable that a template uses and does not get is an error, not a blank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2

from cobalt.episode.templates import load, render
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
        """The first user message for a problem statement.

        Args:
            question: The statement.
            fn_name: The function to write; None where a whole program is asked for.

        Raises:
            UserError: the template does not render these texts; the message names its file.
        """
        return render(self.first_turn_template, question=question, fn_name=fn_name)

    def feedback(self, feedback: str) -> str:
        """The user message that hands the judge's feedback back to the model."""
        return render(self.feedback_template, feedback=feedback)


def load_prompts(name: str | None) -> PromptSet:
    """Load a built-in set by name (`paper`, `pocket`, `program`) or any folder by path; None: `paper`.

    Raises:
        UserError: no such set, a file of it is missing, or a template does not render.
    """
    name = DEFAULT if name is None else name
    folder = BUILT_IN / name
    if not folder.is_dir():
        folder = Path(name)
    if not folder.is_dir():
        built_in = ", ".join(sorted(path.name for path in BUILT_IN.iterdir() if path.is_dir()))
        raise UserError(f"no prompt set {name!r}: give one of {built_in}, or a folder with system.jinja,"
                        " first_turn.jinja and feedback.jinja")  # fmt: skip
    prompts = PromptSet(
        system=render(load(folder, "system.jinja")).strip(),
        first_turn_template=load(folder, "first_turn.jinja"),
        feedback_template=load(folder, "feedback.jinja"),
        digests={name: file_digest(folder / name) for name in FILES},
    )
    prompts.first_turn("")
    prompts.feedback("")
    return prompts
