"""Write the viewer's page: shell, index, scripts and compressed pieces in one file.

The pieces lie in data blocks as base64 of zlib streams, one for each problem and run, which the page's script decodes
when a problem is opened; base64 holds no `<`, so that no text of a model can end a block. They come last, so that the
page can be used while the browser still reads them. A content security policy allows only the scripts written here to
run (by their digests), and nothing to be loaded. Each run is read one record at a time. The scripts are the files in
`web/`: the libraries of `web/vendor/` are one script, and the page's own files, in the order of `_SCRIPTS`, another.
"""

import base64
import hashlib
import html
import json
import re
import shutil
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cobalt.hacking.events import HackingEvent, read_events
from cobalt.problems.problem import ProblemId
from cobalt.report.comparison import problem_difference
from cobalt.report.runs import evaluation_file, named_paths, problem_digest, recorded_model
from cobalt.report.viewer.data import KINDS, problem_data
from cobalt.rollout.evaluate_single import read_evaluated
from cobalt.stage.atomic import replacing
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_replaceable
from cobalt.stage.manifest import file_digest, open_manifest

MOST_RUNS = 2
_FOLDER = Path(__file__).parent / "web"
_SCRIPTS = (
    *("dom.js", "blocks.js", "state.js", "filters.js", "figures.js", "inside.js"),
    *("code.js", "changes.js", "trajectory.js", "problem.js", "list.js", "start.js"),
)


def write_viewer(
    runs: Mapping[str, Path], output: Path, *, hacking: Mapping[str, Path] | None = None, programs_only: bool = False
) -> int:
    """Write one HTML file that shows every trajectory of one or two evaluated runs, replacing one that is there.

    Args:
        runs: By name, folders that scripts/multi_turn.sh wrote, evaluated files, or single-turn results; two must have
            the same problems.
        output: The page; what made it goes beside it, as `.run.json`.
        hacking: Files of hacking events, by the name of the run.
        programs_only: Show only the programs of responses, without thinking and explanations; the page gets smaller.

    Returns:
        How many problems it holds.

    Raises:
        UserError: a run is not evaluated or malformed, the runs have different problems, or the page cannot be written.
    """
    hacking = hacking or {}
    if not 1 <= len(runs) <= MOST_RUNS:
        raise UserError(f"the viewer shows one run or two side by side: {len(runs)} are named")
    unknown = [name for name in hacking if name not in runs]
    if unknown:
        raise UserError(f"hacking events are given for run {unknown[0]!r}: the runs are {', '.join(runs)}")
    evaluations = {name: evaluation_file(path) for name, path in runs.items()}
    if output.suffix not in (".html", ".htm"):
        raise UserError(f"viewer {output}: give a file that ends in .html")
    check_replaceable(output, "viewer", [])
    with replacing(output) as page, tempfile.TemporaryFile(dir=output.parent) as file:
        pieces = _Pieces(file, with_responses=not programs_only)
        digests = {
            name: pieces.add_run(name, path, read_events(hacking[name]) if name in hacking else [])
            for name, path in evaluations.items()
        }
        models = {name: recorded_model(path) for name, path in evaluations.items()}
        _write_page(page, models, list(pieces.problems.values()), file)
        page.flush()  # what a full disk refuses shows while the earlier page is still there
        output.unlink(missing_ok=True)  # a page is made anew, not resumed
        arguments = {
            "stage": "viewer",
            "evaluations": digests,
            "hacking": {name: file_digest(path) for name, path in hacking.items()},
            "programs_only": programs_only,
        }
        open_manifest(output, arguments)
    return len(pieces.problems)


def hacking_files(runs: Mapping[str, Path], texts: Sequence[str]) -> dict[str, Path]:
    """Files of hacking events by the name of their run: NAME=FILE, or FILE alone if there is one run.

    Raises:
        UserError: two files for one run, or a FILE alone with several runs.
    """
    if len(runs) == 1 and len(texts) == 1 and (Path(texts[0]).exists() or "=" not in texts[0]):
        return {next(iter(runs)): Path(texts[0])}
    return named_paths(tuple(texts))


class _Pieces:
    """Writes each problem's piece of one run after the other, and keeps what the page's list holds of each problem."""

    def __init__(self, file: IO[bytes], *, with_responses: bool) -> None:
        self.problems: dict[ProblemId, dict[str, Any]] = {}
        self._file = file
        self._with_responses = with_responses
        self._first: tuple[str, dict[ProblemId, str]] | None = None  # whose problems the second run must have

    def add_run(self, name: str, evaluation: Path, all_events: Sequence[HackingEvent]) -> str:
        """Add a run, and return the digest of its file."""
        events: dict[ProblemId, list[HackingEvent]] = defaultdict(list)
        for event in all_events:
            events[event.problem].append(event)
        positions = {identifier: position for position, identifier in enumerate(self.problems)}
        problems: dict[ProblemId, str] = {}
        for group in read_evaluated(evaluation):
            identifier = group.problem.id
            problems[identifier] = problem_digest(group.problem)
            try:
                data = problem_data(group, events.pop(identifier, ()), with_responses=self._with_responses)
            except UserError as error:
                raise UserError(f"{evaluation}: record {identifier!r}: {error}") from None
            if self._first is None:
                positions[identifier] = len(self.problems)
                self.problems[identifier] = data.facts | {"runs": []}
            elif identifier not in positions:
                continue  # a difference, which is named when all problems are known
            self.problems[identifier]["runs"].append(data.figures)
            number = 0 if self._first is None else 1
            self._file.write(_block(f"piece-{number}-{positions[identifier]}", data.piece).encode("ascii"))
        if events:
            raise UserError(f"a hacking event names problem {next(iter(events))!r}, which is not in {evaluation}")
        first, self._first = self._first, self._first or (name, problems)
        if first and (difference := problem_difference(*first, name, problems)):
            raise UserError(
                f"{first[0]} and {name} cannot be shown side by side: {difference}. Give runs on the same problems"
            )
        return file_digest(evaluation)


def _write_page(page: IO[bytes], models: Mapping[str, str], problems: list[dict[str, Any]], pieces: IO[bytes]) -> None:
    libraries, script = _libraries(), "\n".join(_asset(name) for name in _SCRIPTS)
    style, shell = _asset("page.css"), _asset("page.html")
    policy = f"default-src 'none'; script-src '{_digest(libraries)}' '{_digest(script)}'; style-src '{_digest(style)}'"
    title = html.escape(" and ".join(models)).encode("ascii", "xmlcharrefreplace").decode()
    head, _, rest = shell.partition("{{index}}")
    middle, _, tail = rest.partition("{{pieces}}")
    # The runs' names come last: nothing in them is substituted.
    head = head.replace("{{policy}}", policy).replace("{{style}}", style).replace("{{title}}", title)
    runs = {"runs": list(models), "models": list(models.values())}
    index = _block("index", {"kinds": KINDS, **runs, "problems": problems})
    before, _, after = middle.partition("{{libraries}}")
    page.write((head + index + before + libraries + after.replace("{{script}}", script)).encode("ascii"))
    pieces.seek(0)
    shutil.copyfileobj(pieces, page)
    page.write(tail.encode("ascii"))


def _libraries() -> str:
    """The libraries as one script that defines `hljs` and `Diff`, with their licences."""
    # The core of highlight.js is published as a module, which an inline script cannot import.
    core = re.sub(r"export\{(\w+) as default\};?\s*$", r"return \1", _asset("vendor/highlight.core.min.js"))
    return "\n".join(
        (
            f"/*!\n{_asset('vendor/LICENSES.txt')}*/",
            f"const hljs = (() => {{{core}}})();",
            _asset("vendor/highlight.python.min.js"),
            _asset("vendor/diff.min.js"),
        )
    )


def _block(identifier: str, content: Any) -> str:
    """A data block of the page: base64 of a zlib stream of JSON in ASCII."""
    packed = base64.b64encode(zlib.compress(json.dumps(content, separators=(",", ":")).encode("ascii"), 9))
    return f'<script type="text/plain" id="{identifier}">{packed.decode("ascii")}</script>\n'


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="ascii")


def _digest(text: str) -> str:
    """The digest of an inline block as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
