"""Write the viewer's page: shell, index, script and compressed pieces in one file.

The pieces lie in data blocks as base64 of zlib streams, one for each problem, which the page's script decodes when a
problem is opened; base64 holds no `<`, so that no text of a model can end a block. They come last, so that the page
can be used while the browser still reads them. A content security policy allows only the script written here to run
(by its digest), and nothing to be loaded. The run is read one record at a time.
"""

import base64
import hashlib
import html
import json
import shutil
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from cobalt.atomic import replacing
from cobalt.errors import UserError
from cobalt.files import check_replaceable
from cobalt.hacking.events import HackingEvent, read_events
from cobalt.manifest import file_digest, open_manifest
from cobalt.problem import ProblemId
from cobalt.report.runs import evaluation_file
from cobalt.report.viewer.data import KINDS, problem_data
from cobalt.trajectory import ProblemTrajectories
from cobalt.trajectory_codec import read_trajectories

_FOLDER = Path(__file__).parent


def write_viewer(run: Path, output: Path, *, hacking: Path | None = None, programs_only: bool = False) -> int:
    """Write one HTML file that shows every trajectory of an evaluated run, replacing one that is there.

    Args:
        run: Folder that scripts/multi_turn.sh wrote, or an evaluated file.
        output: The page; what made it goes beside it, as `.run.json`.
        hacking: Hacking events of the run.
        programs_only: Show only the programs of responses, without thinking and explanations; the page gets smaller.

    Returns:
        How many problems it holds.

    Raises:
        UserError: the run is not evaluated or malformed, or the page cannot be written.
    """
    evaluation = evaluation_file(run)
    if output.suffix not in (".html", ".htm"):
        raise UserError(f"viewer {output}: give a file that ends in .html")
    check_replaceable(output, "viewer", [])
    events: dict[ProblemId, list[HackingEvent]] = defaultdict(list)
    for event in read_events(hacking) if hacking else ():
        events[event.problem].append(event)
    digest = hashlib.sha256()  # of the evaluation, which is read once
    with replacing(output) as page, tempfile.TemporaryFile(dir=output.parent) as pieces:
        groups = read_trajectories(evaluation, digest=digest)
        problems = _write_pieces(pieces, evaluation, groups, events, with_responses=not programs_only)
        _write_page(page, evaluation.resolve().parent.name, problems, pieces)
        page.flush()  # what a full disk refuses shows while the earlier page is still there
        output.unlink(missing_ok=True)  # a page is made anew, not resumed
        arguments = {
            "stage": "viewer",
            "evaluation": digest.hexdigest(),
            "hacking": file_digest(hacking) if hacking else None,
            "programs_only": programs_only,
        }
        open_manifest(output, arguments)
    return len(problems)


def _write_pieces(
    pieces: IO[bytes],
    evaluation: Path,
    groups: Iterable[ProblemTrajectories],
    events: dict[ProblemId, list[HackingEvent]],
    *,
    with_responses: bool,
) -> list[dict[str, Any]]:
    """Write each problem's piece, and return the problems' summaries."""
    summaries = []
    for number, group in enumerate(groups):
        identifier = group.problem.id
        try:
            summary, piece = problem_data(group, events.pop(identifier, ()), with_responses=with_responses)
        except UserError as error:
            raise UserError(f"{evaluation}: record {identifier!r}: {error}") from None
        summaries.append(summary)
        pieces.write(_block(f"piece-{number}", piece).encode("ascii"))
    if events:
        raise UserError(f"a hacking event names problem {next(iter(events))!r}, which is not in {evaluation}")
    return summaries


def _write_page(page: IO[bytes], name: str, problems: list[dict[str, Any]], pieces: IO[bytes]) -> None:
    script, style, shell = (_asset(file) for file in ("page.js", "page.css", "page.html"))
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    title = html.escape(name).encode("ascii", "xmlcharrefreplace").decode()
    head, _, rest = shell.partition("{{index}}")
    middle, _, tail = rest.partition("{{pieces}}")
    # The run's name comes last: nothing in it is substituted.
    head = head.replace("{{policy}}", policy).replace("{{style}}", style).replace("{{title}}", title)
    index = _block("index", {"kinds": KINDS, "problems": problems})
    page.write((head + index + middle.replace("{{script}}", script)).encode("ascii"))
    pieces.seek(0)
    shutil.copyfileobj(pieces, page)
    page.write(tail.encode("ascii"))


def _block(identifier: str, content: Any) -> str:
    """A data block of the page: base64 of a zlib stream of JSON in ASCII."""
    packed = base64.b64encode(zlib.compress(json.dumps(content, separators=(",", ":")).encode("ascii"), 9))
    return f'<script type="text/plain" id="{identifier}">{packed.decode("ascii")}</script>\n'


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="ascii")


def _digest(text: str) -> str:
    """The digest of an inline block as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
