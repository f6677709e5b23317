"""A plan as command lines: each step is a line with the names of paths, which says itself what the step needs."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from studies.plan import Services, Step


class Lines:
    """Steps in order.

    Args:
        names: What stands for each name in braces in a line, such as a path for `{train}`.
        given: Files and folders that are there before.
        engine: Settings of the engine of every step that has one.
        judge: Settings of the judge of these steps.
    """

    def __init__(
        self, names: Mapping[str, object], given: Iterable[Path], engine: tuple[str, ...], judge: tuple[str, ...] = ()
    ) -> None:
        self.steps: list[Step] = []
        self._names, self._made, self._services = names, list(given), (engine, judge)

    def add(self, name: str, purpose: str, line: str, files: str, model: Path | None = None) -> None:
        """A step, which needs all of the words of its line, and all that lies in them, that earlier steps have made.

        Args:
            name: Of the step.
            purpose: What it does, in a sentence.
            line: Its command. It is split into words before names are replaced, so that paths may have blanks.
            files: The files that it makes, as words with names.
            model: Of the engine that it needs, with a judge; None: it needs neither.
        """
        words, made = self._words(line), tuple(map(Path, self._words(files)))
        read = [Path(word) for word in words] + ([model] if model else [])
        needs = tuple(path for path in self._made if any(path.is_relative_to(word) for word in read if word.name))
        services = Services(model, *self._services) if model else None
        self.append(Step(name, purpose, words, made, needs, services))

    def append(self, step: Step) -> None:
        """A step that is made elsewhere."""
        self.steps.append(step)
        self._made += step.files

    def _words(self, line: str) -> tuple[str, ...]:
        return tuple(word.format(**self._names) for word in line.split())
