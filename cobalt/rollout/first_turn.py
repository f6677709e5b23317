"""Whether a multi-turn run may continue a first turn that another run made.

Turn 0 of the result is then that run's, and the later turns are this run's. So both must have been made under the same
settings, as the manifests of the input say, or the user names those that may differ. Of an input without a manifest
nothing is known but how many samples it has.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.engine import GenerationSettings
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import changed_settings, is_named, made_by

logger = logging.getLogger(__name__)

_WITHOUT_EFFECT = (
    "generation.n",
    "generation.seed",
    "prompts.feedback.jinja",
    "engine.seed",
    "engine.private",
    "engine.device",
)
"""Settings that decide no response, or none of a first turn; the number of samples has a check of its own."""


def first_turn_arguments(input_file: Path) -> Mapping[str, Any] | None:
    """The arguments of the single-turn run that made a file, or made what the file was made from; None: not known.

    Raises:
        UserError: a manifest cannot be read.
    """
    return next((found for found in made_by(input_file) if found.get("stage") == "single_turn"), None)


def check_continues(
    input_file: Path, made: Mapping[str, Any], now: Mapping[str, Any], allowed: Sequence[str]
) -> dict[str, Any]:
    """Check that a first turn was made under the settings of the turns to come.

    Args:
        input_file: The file with the first turn, for messages.
        made: The arguments of the run that made it.
        now: Arguments of this run, by group: `generation`, `prompts`, `engine`. Other groups are not compared.
        allowed: Settings that may differ, by dotted name or a part of it.

    Returns:
        The settings that differ and may, with the values of the first turn.

    Raises:
        UserError: another setting differs; the message has both values.
    """
    changed = changed_settings({group: made.get(group, {}) for group in now}, now)
    changed = {name: values for name, values in changed.items() if name not in _WITHOUT_EFFECT}
    refused = [
        f"{name} has another content" if name.startswith("prompts.") else f"{name} was {old!r}, now {new!r}"
        for name, (old, new) in changed.items()
        if not is_named(name, allowed)
    ]
    if refused:
        raise UserError(
            f"the first turn in {input_file} was made with other settings ({'; '.join(refused)}): give the same"
            " settings, or name those that may differ with --allow"
        )
    return {name: old for name, (old, _) in changed.items()}


def number_of_samples(input_file: Path, recorded: Sequence[int], wanted: int) -> int:
    """How many samples a run has for each problem: as many as its input has, and `wanted` where that has none.

    Args:
        input_file: The file with the first turns, for messages.
        recorded: The number of recorded responses of each problem; 0: it has none.
        wanted: What the settings ask for; the default of `GenerationSettings` stands for "as many as are recorded".

    Returns:
        The recorded number; `wanted` if problems have different numbers, which then hold for each.

    Raises:
        UserError: another number is asked for.
    """
    numbers = sorted({number for number in recorded if number})
    if not numbers or numbers == [wanted]:
        return wanted
    if wanted != GenerationSettings().n:
        said = " to ".join(map(str, numbers[:1] + numbers[1:][-1:]))
        raise UserError(
            f"the first turn in {input_file} has {said} samples of a problem, and -n {wanted} asks for another number:"
            " leave -n out, or give a file of problems without responses"
        )
    if len(numbers) > 1:
        return wanted
    logger.info("the first turn in %s has %d samples of each problem, and so has this run", input_file, numbers[0])
    return numbers[0]
