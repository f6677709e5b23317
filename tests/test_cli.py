"""What every command does at its end: a refused file is a user's mistake, and a SIGTERM is an interrupt."""

import errno
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest
from support import ROOT

from cobalt.stage.cli import run_script
from cobalt.stage.errors import INTERRUPTED

WAITING = """
import asyncio, signal, sys
from dataclasses import dataclass
from cobalt.stage.cli import run_script
signal.signal(signal.SIGINT, signal.SIG_IGN)
@dataclass
class Arguments:
    '''Waits.'''
async def work():
    print("ready", flush=True)
    await asyncio.sleep(60)
run_script(Arguments, lambda arguments: asyncio.run(work()))
"""


@dataclass
class Arguments:
    """No flags."""


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG, errno.EROFS, errno.EBADF])
def test_a_file_that_the_system_refuses_is_one_sentence_with_its_name_and_other_errors_are_bugs(capsys, number):
    def refused(arguments):
        raise OSError(number, "no", "the/file")

    with pytest.raises(OSError if number == errno.EBADF else SystemExit) as ended:
        run_script(Arguments, refused, [])
    if number != errno.EBADF:
        assert ended.value.code == 2 and "the/file" in capsys.readouterr().err


def test_an_output_on_a_full_disk_is_one_sentence():
    program = "from dataclasses import dataclass\nfrom cobalt.stage.cli import run_script\n@dataclass\nclass A: 'A'\n"
    program += "run_script(A, lambda a: print('x' * 100_000, flush=True) or 0, [])"
    with open("/dev/full", "w") as full:  # noqa: PTH123
        finished = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert finished.returncode == 2
    assert "output" in finished.stderr and "Traceback" not in finished.stderr


def test_a_termination_ends_a_command_as_ctrl_c_does_also_where_interrupts_are_ignored():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, said) == (130, INTERRUPTED)
