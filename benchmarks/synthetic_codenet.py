"""A folder in the form of Project CodeNet, with made-up submissions, for the benchmark of its preprocessing.

Programs compile, have a median of about 500 characters, and repeat each other: a tenth are copies, and a fifth differ
from another one in a line. A tenth of the rows are of other languages. Pages are real ones if there are any, otherwise
made up. The programs are made up, too, and their statuses are drawn at random, so preproc/check_groups.py will find the
statuses contradicted.
"""

import random
import tarfile
from pathlib import Path

HEADER = (
    "submission_id,problem_id,user_id,date,language,original_language,filename_ext,status,cpu_time,memory,code_size,"
    "accuracy\n"
)
# Shares as in the whole data set, where they are known.
STATUSES = (
    ["Accepted"] * 54 + ["Wrong Answer"] * 29 + ["Runtime Error"] * 8 + ["Time Limit Exceeded"] * 6
    + ["Compile Error"] * 2 + ["Memory Limit Exceeded"]
)  # fmt: skip
_NAMES = ["n", "m", "a", "b", "x", "y", "total", "count", "best", "left", "right", "items", "queue", "graph", "seen"]


def write_codenet(root: Path, problems: int, submissions: int, pages: Path | None = None) -> None:
    """Write a data set; the same arguments give the same files.

    Args:
        root: Folder to make.
        problems: Number of problems.
        submissions: Number of Python submissions of each problem.
        pages: Archive of real problem pages (`problem_descriptions/pNNNNN.html`).
    """
    rng = random.Random(0)
    texts = _real_pages(pages, problems) if pages is not None else [_page(rng, number) for number in range(problems)]
    (root / "metadata").mkdir(parents=True)
    (root / "problem_descriptions").mkdir()
    for number in range(problems):
        name = f"p{number:05}"
        (root / "problem_descriptions" / f"{name}.html").write_text(texts[number % len(texts)], encoding="utf-8")
        folder = root / "data" / name / "Python"
        folder.mkdir(parents=True)
        rows = [HEADER]
        programs: list[tuple[str, str]] = []
        for place in range(submissions):
            submission = f"s{number * submissions + place:09}"
            program, status = _program(rng, programs)
            programs.append((program, status))
            (folder / f"{submission}.py").write_text(program, encoding="utf-8")
            time = rng.randrange(10, 2000)
            rows.append(f"{submission},{name},u1,1500000000,Python,PyPy3 (7.3.0),py,{status},{time},9000,500,\n")
            if place % 9 == 0:
                rows.append(f"t{submission},{name},u2,1500000000,C++,C++14,cpp,{status},{time},9000,500,\n")
        (root / "metadata" / f"{name}.csv").write_text("".join(rows), encoding="utf-8")


def _real_pages(archive: Path, number: int) -> list[str]:
    with tarfile.open(archive) as tar:
        members = sorted((member for member in tar if member.name.endswith(".html")), key=lambda member: member.name)
        step = max(1, len(members) // number)
        chosen = members[::step][:number]
        return [tar.extractfile(member).read().decode("utf-8", "replace") for member in chosen]  # type: ignore[union-attr]


def _page(rng: random.Random, number: int) -> str:
    words = " ".join(rng.choice(_NAMES) for _ in range(200))
    return (
        f"<h1>Problem {number}</h1><p>{words}</p><h2>Constraints</h2><ul><li><var>1 \\leq N</var></li></ul>"
        "<h3>Sample Input 1</h3><pre>1 2\n</pre><h3>Sample Output 1</h3><pre>3\n</pre>"
    )


def _program(rng: random.Random, earlier: list[tuple[str, str]]) -> tuple[str, str]:
    """A program and its status."""
    kind = rng.random()
    if earlier and kind < 0.1:
        return rng.choice(earlier)
    status = rng.choice(STATUSES)
    if earlier and kind < 0.3:
        lines = rng.choice(earlier)[0].split("\n")
        lines[rng.randrange(len(lines) - 1)] = _line(rng)
        return "\n".join(lines), status
    length = rng.lognormvariate(6.2, 0.7)
    lines = ["import sys", "input = sys.stdin.readline", "n, m = map(int, input().split())  # read"]
    while sum(map(len, lines)) < length:
        lines.append(_line(rng))
    return "\n".join([*lines, f"print({rng.choice(_NAMES)})", ""]), status


def _line(rng: random.Random) -> str:
    one, other, third = rng.choices(_NAMES, k=3)
    number = rng.randrange(1000)
    return rng.choice(
        [
            f"{one} = [int({other}) for {other} in input().split()]",
            f"{one} = {other} + {third} * {number}",
            f"for {one} in range({number}): {other} = max({third}, {one})  # step",
            f"if {one} > {number}: {other} = {third} % 1000000007",
            f"{one} = sorted({other}, key=lambda {third}: {third} * {number})",
            f"print({one}, '{other}', {number})",
        ]
    )
