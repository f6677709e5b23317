"""The setting `paper_guard`: the verdicts of the authors' judge on programs that its guard refuses, and on others."""

import asyncio

import pytest

from cobalt.judge import JudgeSettings, LocalJudge, VerdictKind
from cobalt.judge.doctor import examine
from cobalt.problems.problem import TestSuite

pytestmark = pytest.mark.sandbox

# Each prints 7 without the guard, and fails with it.
REFUSED = {
    "exit": "print(7)\nexit()",
    "quit in a branch": "if True:\n    print(7)\n    quit(0)",
    "future": "from __future__ import annotations\nprint(7)",
    "future after a comment": "# one\n'''two'''\nfrom __future__ import print_function, division\nprint(7)",
    "resource": "import resource\nprint(7)",
    "system": "import os\nos.system('true')\nprint(7)",
    "getcwd": "import os\nos.getcwd()\nprint(7)",
    "chdir": "import os\nos.chdir('.')\nprint(7)",
    "fork": "import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\nprint(7)",
    "kill": "import os\nos.kill(os.getpid(), 0)\nprint(7)",
    "multiprocessing": "import multiprocessing\nprint(7)",
    "process pool": "from concurrent.futures import ProcessPoolExecutor\nprint(7)",
    "subprocess": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])\nprint(7)",
    "temporary file": "import tempfile\ntempfile.TemporaryFile()\nprint(7)",
    "tmp": "open('/tmp/x', 'w').write('x')\nprint(7)",
    "tmp, as bytes": "open(b'/tmp/../tmp/x', 'ab')\nprint(7)",
    "tmp, by a descriptor": "import os\nos.open('/tmp/x', os.O_WRONLY | os.O_CREAT)\nprint(7)",
    "tmp, by pathlib": "from pathlib import Path\nPath('/tmp/x').write_text('x')\nprint(7)",
    "folder in tmp": "import os\nos.mkdir('/tmp/x')\nprint(7)",
    "remove": "import os\nopen('x', 'w').close()\nos.remove('x')\nprint(7)",
    "move": "import shutil\nopen('x', 'w').close()\nshutil.move('x', 'y')\nprint(7)",
    "environment": "import os\nos.environ['A'] = 'b'\nprint(7)",
}
# Each prints 7 with the guard and without it.
ALLOWED = {
    "sys.exit": "import sys\nprint(7)\nsys.exit()",
    "os._exit": "import os\nprint(7, flush=True)\nos._exit(0)",
    "raise SystemExit": "print(7)\nraise SystemExit",
    "threads": "import threading\nt = threading.Thread(target=print, args=(7,))\nt.start()\nt.join()",
    "thread pool": "from concurrent.futures import ThreadPoolExecutor as Pool\nprint(Pool().submit(int, 7).result())",
    "recursion": "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
    "def f(n): return n and f(n - 1)\nt = threading.Thread(target=lambda: print(f(10**4) + 7))\nt.start()\nt.join()",
    "own folder": "open('x', 'w').write('7')\nprint(open('x').read())",
    "streams": "import os\nprint(open(0).read().strip() or open('/dev/stdin').read().strip() or 7)",
    "the word": "s = '__future__'\nprint(7)",
    "libraries": "import heapq, collections, itertools, math, random, re, bisect, json, decimal, fractions\nprint(7)",
    "asyncio": "import asyncio\nasync def f(): print(7)\nasyncio.run(f())",
    "standard input": "import os\nos.read(0, 9)\nprint(7)",
    "hook of its own": "import sys\nsys.addaudithook(lambda *a: None)\nprint(7)",
}


def judged(programs, **settings):
    """The verdicts of some programs, each on one empty input for which 7 is expected, and their feedback."""

    async def run():
        async with LocalJudge(JudgeSettings(concurrency=1, **settings)) as judge:
            suite = TestSuite(("",), ("7",))
            return [await judge.judge(code + "\n", suite) for code in programs]

    results = asyncio.run(run())
    return [result.verdicts[0].kind for result in results], [result.feedback[0] for result in results]


def test_what_the_guard_refuses_fails_with_it_and_passes_without():
    with_guard, feedback = judged(REFUSED.values(), paper_guard=True)
    failed = {VerdictKind.RUNTIME_ERROR, VerdictKind.COMPILE_ERROR}
    assert [name for name, kind in zip(REFUSED, with_guard, strict=True) if kind not in failed] == []
    assert all("Stderr:" in text and "inside" not in text and "paper_guard" not in text for text in feedback)
    without, feedback = judged(REFUSED.values())
    assert dict(zip(REFUSED, without, strict=True)) == dict.fromkeys(REFUSED, VerdictKind.PASSED), feedback


@pytest.mark.parametrize("guard", [False, True])
def test_what_the_guard_leaves_alone_passes(guard):
    kinds, feedback = judged(ALLOWED.values(), paper_guard=guard)
    assert dict(zip(ALLOWED, kinds, strict=True)) == dict.fromkeys(ALLOWED, VerdictKind.PASSED), feedback


def test_lines_keep_their_numbers_and_a_future_import_its_place():
    _, [exits, future] = judged(["\n\nexit()", "# one\nfrom __future__ import annotations"], paper_guard=True)
    assert 'File "main.py", line 3, in <module>' in exits
    assert 'File "main.py", line 2\n' in future


def test_isolation_is_examined_without_the_guard():
    async def failed():
        return [finding async for finding in examine(JudgeSettings(paper_guard=True)) if not finding.holds]

    assert asyncio.run(failed()) == []


def test_the_guard_is_off_by_default_and_part_of_what_decides_a_verdict():
    assert JudgeSettings().decisive()["paper_guard"] is False
    assert JudgeSettings(paper_guard=True).decisive()["paper_guard"] is True
