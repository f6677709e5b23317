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

from cobalt.episode.record import read_trajectories
from cobalt.hacking.events import HackingEvent, read_events
from cobalt.problems.problem import ProblemId
from cobalt.report.comparison import problem_difference
from cobalt.report.runs import evaluation_file, problem_digest, recorded_model
from cobalt.report.viewer.data import KINDS, problem_data
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import file_digest
from cobalt.stage.run import whole

_FOLDER = Path(__file__).parent / "web"
_SCRIPTS = (
    *("dom.js", "blocks.js", "state.js", "filters.js", "figures.js", "inside.js"),
    *("code.js", "changes.js", "trajectory.js", "problem.js", "list.js", "start.js"),
)


def write_viewer(runs: Mapping[str, Path], output: Path, *, hacking: Mapping[str, Path] | None = None) -> int:
    """Write one HTML file that shows every trajectory of one or two evaluated runs, replacing one that is there.

    Args:
        runs: By name, folders that scripts/multi_turn.sh wrote, or evaluated files; two must have the same problems.
        output: The page; what made it goes beside it, as `.run.json`.
        hacking: Files of hacking events, by the name of the run.

    Returns:
        Number of problems that it holds.

    Raises:
        UserError: a run is not evaluated or malformed, the runs have different problems, or the page cannot be written.
    """
    hacking = hacking or {}
    if not 1 <= len(runs) <= 2:
        raise UserError(f"the viewer shows one run or two side by side: {len(runs)} are named")
    unknown = [name for name in hacking if name not in runs]
    if unknown:
        raise UserError(f"hacking events are given for run {unknown[0]!r}: the runs are {', '.join(runs)}")
    evaluations = {name: evaluation_file(path) for name, path in runs.items()}
    check_page_path(output)
    arguments = {
        "stage": "viewer",
        "evaluations": {name: file_digest(path) for name, path in evaluations.items()},
        "hacking": {name: file_digest(path) for name, path in hacking.items()},
    }
    listed: dict[ProblemId, dict[str, Any]] = {}
    with (
        whole(output, arguments, replaces=True) as page,
        tempfile.TemporaryFile(dir=output.parent) as pieces,
    ):
        first = next(iter(evaluations))
        of_first: dict[ProblemId, str] = {}
        for name, path in evaluations.items():
            events = read_events(hacking[name]) if name in hacking else []
            problems = _add_run(pieces, listed, path, events)
            of_first = of_first or problems
            if difference := problem_difference(first, of_first, name, problems):
                raise UserError(
                    f"{first} and {name} cannot be shown side by side: {difference}. Give runs on the same problems"
                )
        models = {name: recorded_model(path) for name, path in evaluations.items()}
        _write_page(page.file, models, list(listed.values()), pieces)
    return len(listed)


def check_page_path(output: Path) -> None:
    """Raise UserError if the path of a page is not of an HTML file."""
    if output.suffix not in (".html", ".htm"):
        raise UserError(f"page {output}: give a file that ends in .html")


def _add_run(
    pieces: IO[bytes],
    listed: dict[ProblemId, dict[str, Any]],
    evaluation: Path,
    all_events: Sequence[HackingEvent],
) -> dict[ProblemId, str]:
    """Write the piece of each problem of a run, and add what the page's list has of it; the problems' digests."""
    events: dict[ProblemId, list[HackingEvent]] = defaultdict(list)
    for event in all_events:
        events[event.problem].append(event)
    positions = {identifier: position for position, identifier in enumerate(listed)}
    number = 1 if listed else 0
    problems: dict[ProblemId, str] = {}
    for group in read_trajectories(evaluation):
        identifier = group.problem.id
        problems[identifier] = problem_digest(group.problem)
        with naming(f"{evaluation}: record {identifier!r}"):
            data = problem_data(group, events.pop(identifier, ()))
        if number == 0:
            positions[identifier] = len(listed)
            listed[identifier] = data.facts | {"runs": []}
        elif identifier not in positions:
            continue  # a difference, which is named when all problems are known
        listed[identifier]["runs"].append(data.figures)
        pieces.write(block(f"piece-{number}-{positions[identifier]}", data.piece).encode("ascii"))
    if events:
        raise UserError(f"a hacking event names problem {next(iter(events))!r}, which is not in {evaluation}")
    return problems


def _write_page(page: IO[bytes], models: Mapping[str, str], problems: list[dict[str, Any]], pieces: IO[bytes]) -> None:
    scripts = {"libraries": _libraries(), "script": "\n".join(map(asset, _SCRIPTS))}
    runs = {"runs": list(models), "models": list(models.values())}
    index = block("index", {"kinds": KINDS, **runs, "problems": problems})
    head, tail = asset("page.html").split("{{pieces}}")
    page.write(filled(head, " and ".join(models), asset("page.css"), scripts, index=index).encode("ascii"))
    pieces.seek(0)
    shutil.copyfileobj(pieces, page)
    page.write(tail.encode("ascii"))


def filled(shell: str, title: str, style: str, scripts: Mapping[str, str], more: str = "", **blocks: str) -> str:
    """A shell of `web/` with its parts for their names in braces; nothing in a part is taken for such a name.

    The policy lets only `scripts` run and lets nothing be loaded, beyond what `more` of it allows.
    """
    allowed = " ".join(f"'{_digest(script)}'" for script in scripts.values())
    policy = f"default-src 'none'; script-src {allowed}; style-src '{_digest(style)}'{more}"
    name = html.escape(title).encode("ascii", "xmlcharrefreplace").decode()
    parts = {"policy": policy, "style": style, "title": name, **scripts, **blocks}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], shell)


def _libraries() -> str:
    """The libraries as one script that defines `hljs` and `Diff`, with their licences."""
    # The core of highlight.js is published as a module, which an inline script cannot import.
    core = re.sub(r"export\{(\w+) as default\};?\s*$", r"return \1", asset("vendor/highlight.core.min.js"))
    return "\n".join(
        (
            f"/*!\n{asset('vendor/LICENSES.txt')}*/",
            f"const hljs = (() => {{{core}}})();",
            asset("vendor/highlight.python.min.js"),
            asset("vendor/diff.min.js"),
        )
    )


def block(identifier: str, content: Any) -> str:
    """A data block of the page: base64 of a zlib stream of JSON in ASCII."""
    packed = base64.b64encode(zlib.compress(json.dumps(content, separators=(",", ":")).encode("ascii"), 9))
    return f'<script type="text/plain" id="{identifier}">{packed.decode("ascii")}</script>\n'


def asset(name: str) -> str:
    """A file of `web/`."""
    return (_FOLDER / name).read_text(encoding="ascii")


def _digest(text: str) -> str:
    """The digest of an inline block as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
