"""The system call filter of a sandbox: which calls are refused, and the seccomp program that refuses them.

One filter is installed on all processes of a sandbox when it starts. The sandbox's own processes still mount, unmount
and make PID namespaces; the kernel refuses these calls to programs, which have no capabilities. This module only makes
the filter; `linux.install_filter` installs it.
"""

import errno
import os
import struct

# Calls that are refused with EPERM. Programs that solve problems on standard input do not need them; a kernel exploit
# or a leak from one test to the next might. Numbers are for x86_64 and aarch64; None: the architecture has no such
# call. tests/test_syscall_filter.py compares them with the kernel's headers.
REFUSED_CALLS: dict[str, tuple[int | None, int | None]] = {
    # The kernel, the machine and its clock.
    "acct": (163, 89),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "lookup_dcookie": (212, 18),
    "modify_ldt": (154, None),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "landlock_add_rule": (445, 445),  # rules cost the kernel memory, as filters do
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "seccomp": (317, 277),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "syslog": (103, 116),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    # Namespaces and mounts. The sandbox itself uses `mount` and `umount2`; the kernel refuses them to programs.
    "chroot": (161, 51),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "listmount": (458, 458),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "statmount": (457, 457),
    "unshare": (272, 97),
    # Other processes. The signal calls can forge a signal of the kernel's. By one, the first process of a namespace
    # could kill itself, which would look like a machine that is short of memory.
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    # Kernel objects that outlive their test, or hold memory that is in no process.
    "add_key": (248, 217),
    "epoll_create": (213, None),  # its watch list is in no process's memory; `selectors` uses `poll` instead
    "epoll_create1": (291, 20),
    "io_setup": (206, 0),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "mbind": (237, 235),  # a policy for each mapping, which is charged to no cgroup
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mknod": (133, None),  # a named pipe can exist without a descriptor by which it could be counted
    "mknodat": (259, 33),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "request_key": (249, 218),
    "semget": (64, 190),
    "sendfile": (40, 71),  # one byte of a file in a socket keeps a whole page in memory
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "shmget": (29, 194),
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
    # Calls that show what other processes do with the system's files, or that let other processes notice a program.
    "cachestat": (451, 451),
    "fadvise64": (221, 223),
    "mincore": (27, 232),
    "fanotify_init": (300, 262),
    "flock": (73, 32),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "readahead": (187, 213),
    # A file that is executed gives its process its name, which the kernel writes into its log when the process crashes.
    "symlink": (88, None),
    "symlinkat": (266, 36),
    # Sockets, except pairs, which have no names. A message could carry descriptors, and sockets that carry one another
    # in a ring would outlive their processes. Options could enlarge buffers.
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "connect": (42, 203),
    "listen": (50, 201),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "setsockopt": (54, 208),
}
# Reported to the compiler where the sandboxes' programs have one user. The kernel limits the pipe buffers of each user
# together: one program's pipes would make those of another sandbox's program small.
PIPE_CALLS: dict[str, tuple[int | None, int | None]] = {"pipe": (22, None), "pipe2": (293, 59)}
# Calls that succeed without an effect, because honest programs make them, too. The first ones write to the machine's
# disk, through the system's files. By the others a program could leave the processor to others and starve, and so hold
# its sandbox for longer than its own limits say.
FAKED_CALLS: dict[str, tuple[int | None, int | None]] = {
    "fdatasync": (75, 83),
    "fsync": (74, 82),
    "msync": (26, 227),
    "sync_file_range": (277, 84),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
}
# Numbers that no call had when this table was made: from the first of each pair up to the second. Here new calls would
# appear, and above, on x86_64, are second sets of numbers for every call.
UNKNOWN_NUMBERS = ((335, 424), (295, 424))
FIRST_UNKNOWN = 470
# Calls that are refused for some of their arguments.
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_FCNTL = (72, 25)
_IOCTL = (16, 29)
_MADVISE = (28, 233)
_MMAP = (9, 222)
_PRCTL = (157, 167)
_PREADV2 = (327, 286)
_PRLIMIT64 = (302, 261)
_PWRITEV2 = (328, 287)
_SETRLIMIT = (160, 164)
_SIGACTION = (13, 134)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
CHECKED_CALLS: dict[str, tuple[int | None, int | None]] = {
    "clone": _CLONE,
    "clone3": _CLONE3,
    "fcntl": _FCNTL,
    "ioctl": _IOCTL,
    "madvise": _MADVISE,
    "mmap": _MMAP,
    "prctl": _PRCTL,
    "preadv2": _PREADV2,
    "prlimit64": _PRLIMIT64,
    "pwritev2": _PWRITEV2,
    "rt_sigaction": _SIGACTION,
    "setrlimit": _SETRLIMIT,
    "socket": _SOCKET,
    "socketpair": _SOCKETPAIR,
}

ARCHITECTURES = ("x86_64", "aarch64")
_AUDIT = (0xC000003E, 0xC00000B7)

NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
_RLIMIT_CORE = 4
_CLONE_NEWUSER = 0x10000000
_MAP_SHARED_ANONYMOUS = 0x21
_MAP_HUGETLB = 0x40000
# PR_SET_SECCOMP and PR_FUTEX_HASH make filters and tables in the kernel's memory. PR_SET_CHILD_SUBREAPER gives
# orphans another parent than the first process. PR_SCHED_CORE decides what may run on the other half of a core.
_PRCTL_OPTIONS = (22, 36, 62, 78)
_PR_SET_NAME = 15  # succeeds without an effect: the kernel writes the name of a process that crashes into its log
# Allowed: to duplicate descriptors, to read and set flags, to read the size of a pipe. Not allowed: locks, leases and
# notices, which reach beyond the sandbox through the system's files, and larger pipes.
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030, 1032)
# Allowed: to ask for a terminal or its size, for the bytes that can be read, and to set flags of descriptors; and what
# the compiler asks of the listener of its filter, which programs do not have.
_IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, NOTIF_RECV, NOTIF_SEND)
# Allowed: what allocators, threads and forks need. Not allowed: advice that removes a file's pages from memory, or
# merges equal pages of different processes, either of which others can measure.
_MADVISE_ADVICE = (0, 1, 2, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19)
_AF_UNIX = 1
_SIGCHLD = 17

# Offsets in `struct seccomp_data`; for arguments, of the low half, where both architectures have flags.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO, _NOTIFY = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
_SUCCESS = 0  # as an error: the call returns 0, and does nothing
_FARTHEST_JUMP = 255


def filter_program(*, pipes: bool = True) -> bytes | None:
    """The filter as an array of `struct sock_filter`; None if this machine's call numbers are not in the tables.

    Args:
        pipes: Whether programs may make pipes without being asked; if not, each such call is reported to the listener.
    """
    machine = os.uname().machine
    return filter_program_for(ARCHITECTURES.index(machine), pipes=pipes) if machine in ARCHITECTURES else None


def filter_program_for(column: int, *, pipes: bool = True) -> bytes:
    """The filter for the architecture in a column of the tables; see `filter_program`."""
    code = _Assembler()
    code.load(_ARCHITECTURE)
    code.unless_equal(_AUDIT[column], "other architecture")
    code.load(_NUMBER)
    first, end = UNKNOWN_NUMBERS[column]
    code.if_at_least(FIRST_UNKNOWN, "unknown")
    code.if_at_least(end, "calls")
    code.if_at_least(first, "unknown")
    code.jump("calls")
    code.label("other architecture")
    code.give(_KILL)
    code.label("unknown")
    code.refuse(errno.ENOSYS)
    code.label("calls")
    for calls, error in (
        (REFUSED_CALLS, errno.EPERM),
        (FAKED_CALLS, _SUCCESS),
        # clone3 has its flags in memory, which a filter cannot read; libc falls back to clone.
        ({"clone3": _CLONE3}, errno.ENOSYS),
        ({"socket": _SOCKET}, errno.EAFNOSUPPORT),
    ):
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                code.refuse_if_equal(number, error)
    for numbers in () if pipes else PIPE_CALLS.values():
        number = numbers[column]
        if number is not None:
            with code.call(number):
                code.give(_NOTIFY)
    _check_arguments(code, column)
    code.give(_ALLOW)
    return code.assembled()


def _check_arguments(code: "_Assembler", column: int) -> None:
    with code.call(_CLONE[column]):
        code.load_argument(0)
        code.mask(_CLONE_NEWUSER)
        code.refuse_if_equal(_CLONE_NEWUSER, errno.EPERM)
    with code.call(_MMAP[column]):  # shared memory, which may stay allocated without being in any process
        code.load_argument(3)
        code.mask(_MAP_SHARED_ANONYMOUS)
        code.refuse_if_equal(_MAP_SHARED_ANONYMOUS, errno.EPERM)
        code.load_argument(3)
        code.mask(_MAP_HUGETLB)  # large pages, of which the whole machine has one pool
        code.refuse_if_equal(_MAP_HUGETLB, errno.EPERM)
    with code.call(_PRCTL[column]):
        code.load_argument(0)
        for option in _PRCTL_OPTIONS:
            code.refuse_if_equal(option, errno.EPERM)
        code.refuse_if_equal(_PR_SET_NAME, _SUCCESS)
    # A limit on core dumps other than 1 would hand crashes to the machine's handler. To set one has no effect.
    with code.call(_SETRLIMIT[column]):
        code.load_argument(0)
        code.refuse_if_equal(_RLIMIT_CORE, _SUCCESS)
    with code.call(_PRLIMIT64[column]):
        code.load_argument(1)
        code.unless_equal(_RLIMIT_CORE, "other limits")
        for half in (0, 4):  # of the address of the new limit
            code.load(_ARGUMENTS + 8 * 2 + half)
            code.unless_equal(0, "new limit")
        code.jump("other limits")
        code.label("new limit")
        code.refuse(_SUCCESS)
        code.label("other limits")
    for call, argument, allowed, error in (
        (_IOCTL, 1, _IOCTL_REQUESTS, errno.ENOTTY),
        (_MADVISE, 2, _MADVISE_ADVICE, errno.EINVAL),
        (_FCNTL, 1, _FCNTL_COMMANDS, errno.EPERM),
        (_SOCKETPAIR, 0, (_AF_UNIX,), errno.EAFNOSUPPORT),
        # One of the flags tells whether a page of a file is in memory, where another process may have put it.
        (_PREADV2, 5, (0,), errno.EOPNOTSUPP),
        (_PWRITEV2, 5, (0,), errno.EOPNOTSUPP),
    ):
        with code.call(call[column]):
            code.load_argument(argument)
            for value in allowed:
                code.allow_if_equal(value)
            code.refuse(error)
    # If a program ignores this signal, the kernel discards its ended children, and the CPU time that they used is lost.
    with code.call(_SIGACTION[column]):
        code.load_argument(0)
        code.refuse_if_equal(_SIGCHLD, errno.EPERM)


class _Assembler:
    """A classic BPF program with labels to jump to; jumps only go forward."""

    def __init__(self) -> None:
        # Operation, value, label to jump to if the comparison holds, and label if it does not; None: next instruction.
        self._code: list[tuple[int, int, str | None, str | None]] = []
        self._places: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Name the place of the next instruction."""
        self._places[name] = len(self._code)

    def load(self, offset: int) -> None:
        """Load a word of `struct seccomp_data`."""
        self._add(_LOAD, offset)

    def load_argument(self, index: int) -> None:
        """Load the low half of one of the call's arguments."""
        self.load(_ARGUMENTS + 8 * index)

    def mask(self, bits: int) -> None:
        """Keep only these bits of the loaded word."""
        self._add(_AND, bits)

    def give(self, action: int) -> None:
        """End the filter with an action."""
        self._add(_RETURN, action)

    def refuse(self, error: int) -> None:
        """End the filter with an error for the call."""
        self.give(_ERRNO | error)

    def jump(self, target: str) -> None:
        """Jump to a label."""
        self._add(_AT_LEAST, 0, target)

    def unless_equal(self, value: int, target: str) -> None:
        """Jump unless the loaded word is `value`."""
        self._add(_EQUAL, value, None, target)

    def if_at_least(self, value: int, target: str) -> None:
        """Jump if the loaded word is `value` or more."""
        self._add(_AT_LEAST, value, target)

    def refuse_if_equal(self, value: int, error: int) -> None:
        """Refuse the call if the loaded word is `value`."""
        after = self._new_name()
        self.unless_equal(value, after)
        self.refuse(error)
        self.label(after)

    def allow_if_equal(self, value: int) -> None:
        """Allow the call if the loaded word is `value`."""
        after = self._new_name()
        self.unless_equal(value, after)
        self.give(_ALLOW)
        self.label(after)

    def call(self, number: int) -> "_Call":
        """A block of instructions for one system call, which is allowed at the block's end."""
        return _Call(self, number, self._new_name())

    def assembled(self) -> bytes:
        """The program as the kernel reads it.

        Raises:
            ValueError: a jump is too long for an instruction, or goes backwards.
        """
        return b"".join(
            struct.pack("HBBI", operation, self._distance(place, met), self._distance(place, unmet), value)
            for place, (operation, value, met, unmet) in enumerate(self._code)
        )

    def _distance(self, place: int, target: str | None) -> int:
        if target is None:
            return 0
        distance = self._places[target] - place - 1
        if not 0 <= distance <= _FARTHEST_JUMP:
            raise ValueError(f"a jump to {target!r} over {distance} instructions; 0 to {_FARTHEST_JUMP} are possible")
        return distance

    def _add(self, operation: int, value: int, met: str | None = None, unmet: str | None = None) -> None:
        self._code.append((operation, value, met, unmet))

    def _new_name(self) -> str:
        return f"after {len(self._code)}"


class _Call:
    """The block of `_Assembler.call`."""

    def __init__(self, code: _Assembler, number: int, after: str) -> None:
        self._code, self._number, self._after = code, number, after

    def __enter__(self) -> None:
        self._code.unless_equal(self._number, self._after)

    def __exit__(self, *_: object) -> None:
        self._code.give(_ALLOW)
        self._code.label(self._after)
