"""The judge under attack, run by root and by another user: verdicts are right, and nothing of an attack remains.

The programs are in `data/attacks`. Where the tests run as root, each is tried against a judge of root's and against one
of a user without privileges.
"""

import contextlib
import ctypes
import errno
import os
from pathlib import Path

import attacks
import pytest
from attacks_lab import MEMORY_SETTINGS, MIB, PAIR_SETTINGS, SETTINGS, USERS, Lab, kinds

from cobalt.judge.verdict import VerdictKind

pytestmark = pytest.mark.sandbox

PASSED, WRONG, WAITING = VerdictKind.PASSED, VerdictKind.WRONG_ANSWER, VerdictKind.WALL_LIMIT
FAT, LOUD = VerdictKind.MEMORY_LIMIT, VerdictKind.OUTPUT_LIMIT
PROBE, SEARCH = attacks.SINGLE["probe"].code, attacks.SINGLE["search"].code
SEARCH_FINDS_ITS_OWN = "['arena', 'block', 'heap']"
LONG = SETTINGS | {"cpu_seconds": 9.0, "wall_seconds": 9.0}  # for the search of memory, on a busy machine as well
ASSERTED = {"fn_name": "f", "asserts": True}

# Attacks with cgroups are for `scripts/test_long.sh`.
ACCOUNTINGS = [{"memory_accounting": name} for name in ("sum", "cgroup")[: 1 + ("COBALT_LONG_TESTS" in os.environ)]]
accountings = pytest.mark.parametrize("accounting", ACCOUNTINGS, ids=lambda one: one["memory_accounting"])


@pytest.fixture(scope="module", params=USERS)
def lab(request):
    with contextlib.ExitStack() as opened:
        yield Lab(request.param, opened)


def limits_of(attack):
    """Limits on time that come soon where one is expected, and else late, on a slow machine as well."""
    soon = {VerdictKind.TIME_LIMIT, WAITING}.intersection(attack.expected)
    return SETTINGS | ({"cpu_seconds": 0.5, "wall_seconds": 1.0} if soon else {"cpu_seconds": 9.0, "wall_seconds": 9.0})


ATTACKS = [(name, one, SETTINGS) for name, one in attacks.HELD.items()]
ATTACKS += sorted(
    ((name, one, limits_of(one)) for name, one in attacks.ENDS.items()), key=lambda row: row[2]["cpu_seconds"]
)
ATTACKS += [(n, one, MEMORY_SETTINGS | accounting) for accounting in ACCOUNTINGS for n, one in attacks.MEMORY.items()]
ATTACKS = [pytest.param(one, limits, id=name) for name, one, limits in ATTACKS]


@pytest.mark.parametrize(("attack", "settings"), ATTACKS)
def test_isolation_holds_and_the_verdict_is_right_for_a_program_that(lab, attack, settings):
    outcome = lab.run(attack.code, settings=settings)
    cost = lab.restarts
    after = lab.run(PROBE, ("dleh",), settings=settings)  # the sandbox outlives it unchanged
    assert kinds(outcome) in [(kind,) for kind in attack.expected], outcome.feedback
    assert kinds(after) == (PASSED,), after.feedback
    assert cost + lab.restarts == 0


@pytest.mark.parametrize("name", attacks.ASSERTED)
def test_assertion_is_not_fooled_by_a_function_that(lab, name):
    test = ("f(3)",) * 2, "assert f(3) == 7919"  # twice: the second time after the check has run
    outcome = lab.run(attacks.ASSERTED[name].code, *test, **ASSERTED)
    cost = lab.restarts
    after = lab.run("def f(x): return 1", *test, **ASSERTED)
    assert kinds(outcome) and set(kinds(outcome)) <= set(attacks.ASSERTED[name].expected), outcome.feedback
    assert kinds(after) == (WRONG,) * 2, after.feedback
    assert cost + lab.restarts == 0


@pytest.mark.parametrize("name", attacks.HONEST)
def test_honest_program_is_judged_by_what_the_sandbox_offers(lab, name):
    outcome = lab.run(attacks.HONEST[name].code, ("dleh\n",), settings={"concurrency": 1})
    assert kinds(outcome) == attacks.HONEST[name].expected, outcome.feedback


@accountings
def test_program_that_is_expensive_to_measure_ends_in_time(lab, accounting):
    settings = MEMORY_SETTINGS | accounting | {"memory_bytes": 1024 * MIB}
    outcome = lab.run(attacks.SINGLE["expensive to measure"].code, settings=settings)
    # Where the kernel keeps no account, so many mappings are more than any memory.
    assert kinds(outcome) == ((WAITING,) if "cgroup" in accounting.values() else (FAT,)), outcome.feedback
    # A busy machine takes nothing from a program.
    assert outcome.verdicts[0].wall_seconds < 6 * settings["wall_seconds"]


@accountings
def test_program_whose_compiler_is_large_ends_in_each_of_its_tests(lab, accounting):
    limits = {"memory_bytes": 256 * MIB, "cpu_seconds": 3.0, "wall_seconds": 3.0, "processes": 32}
    settings = MEMORY_SETTINGS | accounting | limits
    outcome = lab.run(attacks.SINGLE["small beside its compiler"].code, ("a", "b"), settings=settings)
    assert kinds(outcome) and set(kinds(outcome)) <= {FAT, WAITING}, outcome.feedback
    assert kinds(lab.run(PROBE, ("dleh",), settings=settings)) == (PASSED,)


@accountings
@pytest.mark.parametrize("name", attacks.PAIRS)
def test_program_notices_nothing_of_one_in_another_sandbox_that(lab, name, accounting):
    lab.send(attacks.PAIRS[name], settings=PAIR_SETTINGS | accounting)
    attack, other = lab.receive()
    # What a program takes may also be more memory than it has.
    assert kinds(attack) in ((PASSED,), (FAT,)), attack.feedback
    assert kinds(other) == (PASSED,), other.feedback


@pytest.mark.parametrize("name", attacks.TRACES)
def test_test_sees_nothing_of_the_previous_test(lab, name):
    outcome = lab.run(attacks.TRACES[name].code, ("leave", "look", "look"))
    assert kinds(outcome) == (PASSED,) * 3, outcome.feedback


def test_disk_priority_is_each_program_s_own(lab):
    lab.run(attacks.HELD["lowers the disk priority of its group and user"].code)
    outcome = lab.run(attacks.SINGLE["disk priority"].code)
    assert kinds(outcome) == (PASSED,), outcome.feedback


def test_memory_holds_nothing_of_earlier_programs_and_tests(lab):
    first = "# source-of-another\nprint('output-of-' + input().replace('input-of-', '').replace('b', 'another'))"
    check = "assert f(1) == 'output-of-another'  # " + "input-of-another output-of-another " * 200
    right = "def f(x): return 'output-of-' + 'b'.replace('b', 'another')"
    for _ in range(2):
        lab.run(first, ("input-of-another\n" * 200, "b\n", "c\n"), settings=LONG)
        outcome = lab.run(SEARCH, ("input-of-another\n", "b\n", "c\n"), SEARCH_FINDS_ITS_OWN, settings=LONG)
        assert kinds(outcome) == (PASSED,) * 3, outcome.feedback
        assert kinds(lab.run(right, ("f(1)",) * 2, check, settings=LONG, **ASSERTED)) == (PASSED,) * 2
        outcome = lab.run(SEARCH, ("b\n", "c\n"), SEARCH_FINDS_ITS_OWN, settings=LONG)
        assert kinds(outcome) == (PASSED,) * 2, outcome.feedback


def test_search_of_memory_finds_what_is_there(lab):
    # The word is one that it looks for, made where it does not look at its own source.
    program = SEARCH.replace(
        "found, pages = set(), []",
        "left = bytearray(('tupni'[::-1] + '-of-' + 'another').encode() * 9)\nfound, pages = set(), []",
    )
    outcome = lab.run(program, ("b\n",), "['arena', 'block', 'heap', 'input']", settings=LONG)
    assert kinds(outcome) == (PASSED,), outcome.feedback


def test_concurrent_tests_have_their_own_session_group_and_autogroup(lab):
    lab.send(["import time\ntime.sleep(2)\nprint('held')"] * 2)
    try:
        tests = lab.tests(2)
        others = {pid: fact for pid, fact in lab.processes().items() if pid not in tests}
    finally:
        outcomes = lab.receive()
    assert [kinds(outcome) for outcome in outcomes] == [(PASSED,)] * 2
    for kind in ("session", "group", "autogroup"):
        values = [fact[kind] for fact in tests.values()]
        if any(values):  # autogroups are not in every kernel
            assert len(set(values)) == 2
            assert not set(values) & {fact[kind] for fact in others.values()}
    fixed = dict.fromkeys(("CapEff", "CapPrm", "CapInh", "CapAmb"), "0" * 16) | {"NoNewPrivs": "1", "Seccomp": "2"}
    for kind, value in fixed.items():
        assert {fact[kind] for fact in tests.values()} == {value}, kind
    users, groups = ([fact[kind].split() for fact in tests.values()] for kind in ("Uid", "Gid"))
    if lab.user == "root":
        assert users[0] != users[1]
        assert all(len(set(one)) == 1 and one[0] != "0" for one in users + groups)
    else:
        assert all(set(user) == {str(Path(f"/proc/{lab.pid}").stat().st_uid)} for user in users)
    assert all(fact["Groups"].strip() in ("", *fact["Gid"].split(), "65534") for fact in tests.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter the namespaces of a sandbox")
def test_nobody_in_a_sandbox_can_make_its_mounts_writable(lab):
    # As whoever has taken over its compiler: with all capabilities, without the filter of system calls.
    lab.send(["import time\ntime.sleep(3)\nprint('held')"])
    try:
        [test] = lab.tests(1).values()
        compiler = int(test["parent"])
        settings = [f for f in Path(f"/proc/{compiler}/fd").iterdir() if (f / "sys" / "kernel").exists()]
        outcomes = {target: remounted(compiler, target) for target in ("/usr/lib", "/dev/null", "/", "/tmp")}
    finally:
        lab.receive()
    assert settings == []  # no descriptor of it leads to the kernel's settings
    assert outcomes.pop("/tmp") == 0  # the test's own file system: it has the capabilities
    assert set(outcomes.values()) == {errno.EPERM}


def remounted(pid: int, target: str) -> int:
    """The error of an attempt to make a mount writable that a process with all capabilities beside `pid` makes."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")]
    child = os.fork()
    if child == 0:
        status = 255
        try:
            if all(libc.setns(namespace, 0) == 0 for namespace in namespaces):
                remount, bind, nosuid, nodev = 32, 4096, 2, 4
                flags = ctypes.c_ulong(remount | bind | nosuid | (0 if target == "/dev/null" else nodev))
                status = ctypes.get_errno() if libc.mount(None, target.encode(), None, flags, None) else 0
        finally:
            os._exit(status)
    for namespace in namespaces:
        os.close(namespace)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_priority_of_the_sandbox_stays_as_it_was(lab):
    def niceness():
        return {pid: fact["autogroup"].partition("nice")[2] for pid, fact in lab.processes().items()}

    lab.run(PROBE, ("dleh",))
    before = niceness()
    lab.run(attacks.HELD["lowers the priority of its session"].code)
    after = niceness()
    assert {pid: value for pid, value in after.items() if before.get(pid, value) != value} == {}
    assert set(before) & set(after)


def test_flood_leaves_the_judge_s_memory_flat(lab):
    def resident() -> int:
        return int(Path(f"/proc/{lab.pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    lab.run("print('x')")
    before = resident()
    for _ in range(5):
        assert kinds(lab.run("while True: print('x' * 65536)")) == (LOUD,)
    assert resident() - before < 50 * MIB


def test_nothing_remains_after_a_judge_is_closed(lab):
    def traces() -> tuple[set[int], set[str], set[Path | str], str]:
        processes = {pid for pid, fact in lab.processes().items() if not fact["State"].startswith("Z")}
        open_files = {path.name for path in Path(f"/proc/{lab.pid}/fd").iterdir()}
        shared = Path("/dev/shm")
        left = {*lab.temporary.iterdir(), *shared.glob("*judge*"), *shared.glob("sem.*")}
        left |= {name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if str(lab.pid) in name}
        return processes, open_files, left, Path(f"/proc/{lab.pid}/mountinfo").read_text(encoding="utf-8")

    lab.run("print('held')")  # what a first program loads stays
    lab.close_judges()
    before = traces()
    for name in ("leaves a daemon", "plants a module", "makes a named semaphore", "forks without end"):
        lab.run(attacks.HELD[name].code)
    for name in ("sleeps", "fills memory in many processes"):
        lab.run(attacks.ENDS[name].code)
    lab.send(attacks.PAIRS["tells another by a lock on a library file"])
    lab.receive()
    lab.close_judges()
    assert traces() == before
