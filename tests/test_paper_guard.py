"""The setting `paper_guard`: the verdicts of the authors' judge on programs that its guard refuses, and on others."""

import pytest
from test_judge_programs import bench as bench

from cobalt.judge import JudgeSettings, VerdictKind
from cobalt.judge.doctor import examine

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


def judged(bench, code, **settings):
    """The verdict of a program on an empty input for which 7 is expected, and its feedback."""
    result = bench.judge(code + "\n", {"": "7"}, **settings)
    return result.verdicts[0].kind, result.feedback[0]


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_guard_refuses_fails_with_it_and_passes_without(bench, name):
    kind, feedback = judged(bench, REFUSED[name], paper_guard=True)
    assert kind in (VerdictKind.RUNTIME_ERROR, VerdictKind.COMPILE_ERROR)
    assert "Stderr:" in feedback and "inside" not in feedback and "paper_guard" not in feedback
    assert judged(bench, REFUSED[name]) == (VerdictKind.PASSED, "")


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("name", ALLOWED)
def test_what_the_guard_leaves_alone_passes(bench, name, guard):
    assert judged(bench, ALLOWED[name], paper_guard=guard) == (VerdictKind.PASSED, "")


def test_lines_keep_their_numbers_and_a_future_import_its_place(bench):
    assert 'File "main.py", line 3, in <module>' in judged(bench, "\n\nexit()", paper_guard=True)[1]
    future = "# one\nfrom __future__ import annotations"
    assert 'File "main.py", line 2\n' in judged(bench, future, paper_guard=True)[1]


async def test_isolation_is_examined_without_the_guard():
    assert [finding async for finding in examine(JudgeSettings(paper_guard=True)) if not finding.holds] == []


def test_the_guard_is_off_by_default_and_part_of_what_decides_a_verdict():
    assert JudgeSettings().decisive()["paper_guard"] is False
    assert JudgeSettings(paper_guard=True).decisive()["paper_guard"] is True
