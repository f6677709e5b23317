"""The system call filter: its numbers are the kernel's, and its program does what its tables say."""

import errno
import os
import re
import signal
import struct
from pathlib import Path

import pytest

from cobalt.judge import JudgeSettings
from cobalt.judge.inside.syscall_filter import (
    ARCHITECTURES,
    CHECKED_CALLS,
    FAKED_CALLS,
    FIRST_UNKNOWN,
    PIPE_CALLS,
    REFUSED_CALLS,
    UNKNOWN_NUMBERS,
    filter_program,
)
from cobalt.judge.sandbox.isolation import bwrap_command
from cobalt.stage.errors import UserError

ALLOW, KILL, NOTIFY = 0x7FFF0000, 0x80000000, 0x7FC00000
# aarch64 uses the table that all newer architectures share.
HEADERS = {"x86_64": ("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h"), "aarch64": ("asm-generic/unistd.h",)}
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# The generic table's names for what is one call on 64 bits.
GENERIC_NAMES = {name: f"__NR3264_{name}" for name in ("fadvise64", "fcntl", "mmap", "sendfile")}
ALL_CALLS = REFUSED_CALLS | PIPE_CALLS | FAKED_CALLS | CHECKED_CALLS
COLUMNS = pytest.mark.parametrize("column", range(len(ARCHITECTURES)), ids=ARCHITECTURES)


def numbers_of(architecture):
    """Names and numbers in the kernel's headers on this machine (Debian: linux-libc-dev); none without them."""
    for name in HEADERS[architecture]:
        header = Path("/usr/include", name)
        if header.is_file():
            defined = re.findall(r"^#define\s+(__NR(?:3264)?_\w+)\s+(\d+)", header.read_text(), re.MULTILINE)
            return {name: int(number) for name, number in defined if name != "__NR_syscalls"}  # their count
    return {}


@COLUMNS
def test_numbers_are_those_of_the_kernel_s_headers(column):
    known = numbers_of(ARCHITECTURES[column])
    if not known:
        pytest.skip("the kernel's headers for this architecture are not installed (Debian: linux-libc-dev)")
    newest = max(known.values())
    checked = 0
    for name, numbers in ALL_CALLS.items():
        number = numbers[column]
        expected = known.get(f"__NR_{name}", known.get(GENERIC_NAMES.get(name, "")))
        if expected is None and number is not None:
            assert number > newest, f"{name} is missing in the headers"  # which are older than the call
            continue
        assert number == expected, name
        checked += number is not None
    assert checked > 60
    of_32_bits = range(403, 424)  # calls with 64-bit times, which 64-bit architectures do not have
    unknown = set(range(*UNKNOWN_NUMBERS[column])) - set(of_32_bits)
    assert not [name for name, number in known.items() if number in unknown]


def test_no_two_names_share_a_number_and_calls_newer_than_the_headers_have_one_everywhere():
    newer = {name: numbers for name, numbers in ALL_CALLS.items() if max(number or 0 for number in numbers) >= 424}
    assert len(newer) > 10
    assert all(first == second for first, second in newer.values())
    for numbers in zip(*ALL_CALLS.values(), strict=True):
        known = [number for number in numbers if number is not None]
        assert len(known) == len(set(known))


def answer(program, number, arguments=(), audit=None, *, column=0):
    """Run a filter as the kernel does, on one call."""
    values = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("iIQ6Q", number, audit or AUDIT[ARCHITECTURES[column]], 0, *values)
    code = [struct.unpack_from("HBBI", program, counter) for counter in range(0, len(program), 8)]
    loaded, counter = 0, 0
    while True:
        operation, met, unmet, value = code[counter]
        counter += 1
        match operation:
            case 0x20:
                loaded = struct.unpack_from("I", data, value)[0]
            case 0x54:
                loaded &= value
            case 0x15:
                counter += met if loaded == value else unmet
            case 0x35:
                counter += met if loaded >= value else unmet
            case 0x06:
                return value
            case _:
                raise AssertionError(f"an operation that the filter should not have: {operation:#x}")


def refusal(error):
    return 0x00050000 | error


@COLUMNS
def test_refused_calls_are_refused_and_no_others(column):
    expected = dict.fromkeys(range(600), ALLOW)
    expected |= dict.fromkeys(range(*UNKNOWN_NUMBERS[column]), refusal(errno.ENOSYS))
    expected |= dict.fromkeys(range(FIRST_UNKNOWN, 600), refusal(errno.ENOSYS))
    for calls, error in ((REFUSED_CALLS, errno.EPERM), (FAKED_CALLS, 0)):
        expected |= {numbers[column]: refusal(error) for numbers in calls.values()}
    program, without_pipes = filter_program(ARCHITECTURES[column]), filter_program(ARCHITECTURES[column], pipes=False)
    for number in set(expected) - {numbers[column] for numbers in CHECKED_CALLS.values()} - {None}:
        assert answer(program, number, column=column) == expected[number], number
        pipe = number in {numbers[column] for numbers in PIPE_CALLS.values()}
        assert answer(without_pipes, number, column=column) == (NOTIFY if pipe else expected[number])


@COLUMNS
def test_calls_of_another_architecture_end_the_process_and_x32_calls_do_not_exist(column):
    program = filter_program(ARCHITECTURES[column])
    for audit in (0x40000003, 0x40000028, AUDIT[ARCHITECTURES[1 - column]]):  # those of 32 bits, and the other one
        assert answer(program, 1, audit=audit, column=column) == KILL
    for number in (0x40000000, 0x40000000 | 319, 0x7FFFFFFF):
        assert answer(program, number, column=column) == refusal(errno.ENOSYS)


CHECKED = [
    ("clone", errno.EPERM, [(0x10000000 | signal.SIGCHLD,)]),
    # The second is the sandbox's own, which the kernel refuses to programs; the third a thread.
    ("clone", None, [(signal.SIGCHLD,), (0x20000000 | signal.SIGCHLD,), (0x3D0F00,)]),
    ("clone3", errno.ENOSYS, [()]),
    ("socket", errno.EAFNOSUPPORT, [(1, 1), (2, 1)]),
    ("socketpair", None, [(1, 1), (1 | 1 << 32, 1)]),  # the kernel takes the low half only
    ("socketpair", errno.EAFNOSUPPORT, [(2, 1)]),
    ("mmap", None, [(0, 4096, 3, 0x22), (0, 4096, 1, 0x01)]),
    ("mmap", errno.EPERM, [(0, 4096, 3, 0x21), (0, 4096, 3, 0x23), (0, 4096, 3, 0x40022)]),
    ("fcntl", None, [(1, 2), (1, 1030)]),
    ("fcntl", errno.EPERM, [(1, 6), (1, 37), (1, 1024), (1, 1031)]),
    ("rt_sigaction", errno.EPERM, [(signal.SIGCHLD,)]),
    ("rt_sigaction", None, [(signal.SIGALRM,)]),
    ("prctl", errno.EPERM, [(22, 2), (36, 1), (78, 1)]),
    ("prctl", 0, [(15,)]),
    ("prctl", None, [(4, 1)]),
    ("setrlimit", 0, [(4, 1)]),
    ("setrlimit", None, [(7, 1)]),
    ("prlimit64", None, [(0, 4, 0, 1), (0, 7, 1, 0)]),
    ("prlimit64", 0, [(0, 4, 1, 0), (0, 4, 1 << 32, 0)]),
    ("ioctl", None, [(0, 0x5401), (0, 0x541B)]),
    ("ioctl", errno.ENOTTY, [(0, 0x5452), (0, 0xC020660B)]),
    ("madvise", None, [(0, 4096, 4)]),
    ("madvise", errno.EINVAL, [(0, 4096, 20), (0, 4096, 21), (0, 4096, 12)]),
]


@COLUMNS
@pytest.mark.parametrize(("name", "error", "calls"), CHECKED)
def test_calls_are_refused_by_their_arguments(column, name, error, calls):
    number, expected = CHECKED_CALLS[name][column], ALLOW if error is None else refusal(error)
    program = filter_program(ARCHITECTURES[column])
    for arguments in calls:
        assert answer(program, number, arguments, column=column) == expected, arguments


def test_another_architecture_is_refused(monkeypatch):
    class Machine:
        machine = "riscv64"

    monkeypatch.setattr(os, "uname", Machine)
    with pytest.raises(UserError, match="riscv64"):
        bwrap_command(JudgeSettings())
