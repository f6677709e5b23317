"""Write the viewer's page: shell, compressed pieces, index and script in one file.

The pieces lie in data blocks as base64 of zlib streams, one for each problem, which the page's script decodes when a
problem is opened; base64 holds no `<`, so that no text of a model can end a block. A content security policy lets run
the one script that was written here (by its digest) and nothing be loaded. The run is read one record at a time.
"""

import base64
import hashlib
import html
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from cobalt.errors import UserError
from cobalt.manifest import file_digest, open_manifest
from cobalt.problem import ProblemId
from cobalt.records import iterate_records
from cobalt.report.hacking import HackingEvent, read_events
from cobalt.report.runs import evaluation_file
from cobalt.report.viewer.data import KINDS, problem_data

_FOLDER = Path(__file__).parent


def write_viewer(run: Path, output: Path, *, hacking: Path | None = None, programs_only: bool = False) -> int:
    """Write one HTML file that shows every trajectory of an evaluated run, replacing one that is there.

    Args:
        run: Folder that scripts/multi_turn.sh wrote, or an evaluated file.
        output: The page; what made it goes beside it, as `.run.json`.
        hacking: Hacking events of the run.
        programs_only: Leave out what responses say around their programs; the page gets smaller.

    Returns:
        How many problems it holds.

    Raises:
        UserError: the run is not evaluated or malformed, or the page cannot be written.
    """
    evaluation = evaluation_file(run)
    if output.suffix not in (".html", ".htm"):
        raise UserError(f"viewer {output}: give a file that ends in .html")
    events: dict[ProblemId, list[HackingEvent]] = defaultdict(list)
    for event in read_events(hacking) if hacking else ():
        events[event.problem].append(event)
    arguments = {
        "stage": "viewer",
        "evaluation": file_digest(evaluation),
        "hacking": file_digest(hacking) if hacking else None,
        "programs_only": programs_only,
    }
    part = output.with_name(output.name + ".part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="ascii", newline="\n") as page:
            problems = _write_page(page, evaluation, events, with_responses=not programs_only)
        output.unlink(missing_ok=True)  # a page is made anew, not resumed
        open_manifest(output, arguments)
        part.replace(output)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return problems


def _write_page(
    page: TextIO, evaluation: Path, events: dict[ProblemId, list[HackingEvent]], *, with_responses: bool
) -> int:
    script, style, shell = (_asset(name) for name in ("page.js", "page.css", "page.html"))
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    name = evaluation.resolve().parent.name
    title = html.escape(name).encode("ascii", "xmlcharrefreplace").decode()
    head, tail = shell.split("{{pieces}}")
    # The run's name comes last: nothing in it is substituted.
    head = head.replace("{{policy}}", policy).replace("{{style}}", style).replace("{{title}}", title)
    page.write(head)
    summaries = []
    for number, record in enumerate(iterate_records(evaluation)):
        try:
            summary, piece = problem_data(record, events.pop(record["id"], ()), with_responses=with_responses)
        except UserError as error:
            raise UserError(f"{evaluation}: record {record['id']!r}: {error}") from None
        summaries.append(summary)
        page.writelines(_block(f"piece-{number}", piece))
    if not summaries:
        raise UserError(f"{evaluation}: no evaluated record")
    if events:
        raise UserError(f"a hacking event names problem {next(iter(events))!r}, which is not in {evaluation}")
    page.writelines(_block("index", {"run": name, "kinds": KINDS, "problems": summaries}))
    page.write(tail.replace("{{script}}", script))
    return len(summaries)


def _block(identifier: str, content: Any) -> Iterable[str]:
    """A data block of the page: base64 of a zlib stream of JSON in ASCII."""
    packed = base64.b64encode(zlib.compress(json.dumps(content, separators=(",", ":")).encode("ascii"), 9))
    return f'<script type="text/plain" id="{identifier}">', packed.decode("ascii"), "</script>\n"


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="ascii")


def _digest(text: str) -> str:
    """The digest of an inline block as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
