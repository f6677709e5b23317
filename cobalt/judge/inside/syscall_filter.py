"""The system call filter of a sandbox: which calls are refused, and the seccomp program that refuses them.

One filter is installed on all processes of a sandbox when it starts. The sandbox's own processes still mount, unmount
and make PID namespaces; the kernel refuses these calls to programs, which have no capabilities. This module only makes
the filter; `linux.install_filter` installs it.
"""

import errno
import struct

# A call's numbers on x86_64 and aarch64; None: the architecture has no such call. tests/test_syscall_filter.py compares
# them with the kernel's headers.
Calls = dict[str, tuple[int | None, int | None]]

# Calls that are refused with EPERM. Programs that solve problems on standard input do not need them; a kernel exploit
# or a leak from one test to the next might.
REFUSED_CALLS: Calls = {
    # The kernel, the machine and its clock. Landlock's rules cost the kernel memory, as filters do.
    "acct": (163, 89), "adjtimex": (159, 171), "bpf": (321, 280), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "delete_module": (176, 106), "finit_module": (313, 273), "init_module": (175, 105),
    "ioperm": (173, None), "iopl": (172, None), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "lookup_dcookie": (212, 18), "modify_ldt": (154, None), "perf_event_open": (298, 241), "personality": (135, 92),
    "landlock_add_rule": (445, 445), "landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142), "seccomp": (317, 277),
    "setdomainname": (171, 162), "sethostname": (170, 161), "settimeofday": (164, 170), "swapoff": (168, 225),
    "swapon": (167, 224), "sync": (162, 81), "syncfs": (306, 267), "syslog": (103, 116), "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    # Namespaces and mounts. The sandbox itself uses `mount` and `umount2`; the kernel refuses them to programs.
    "chroot": (161, 51), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "listmount": (458, 458), "mount_setattr": (442, 442), "move_mount": (429, 429), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467), "pivot_root": (155, 41),
    "setns": (308, 268), "statmount": (457, 457), "unshare": (272, 97),
    # Other processes. The signal calls can forge a signal of the kernel's. By one, the first process of a namespace
    # could kill itself, which would look like a machine that is short of memory.
    "kcmp": (312, 272), "migrate_pages": (256, 238), "move_pages": (279, 239), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "process_madvise": (440, 440), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    # Kernel objects that outlive their test, or hold memory that is in no process: a named pipe need have no
    # descriptor by which it is counted, a byte of a file that is sent keeps a page. `selectors` uses `poll`, not epoll.
    "add_key": (248, 217), "epoll_create": (213, None), "epoll_create1": (291, 20), "io_setup": (206, 0),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "keyctl": (250, 219),
    "mbind": (237, 235), "memfd_create": (319, 279), "memfd_secret": (447, 447), "mknod": (133, None),
    "mknodat": (259, 33), "mq_open": (240, 180), "msgget": (68, 186), "request_key": (249, 218), "semget": (64, 190),
    "sendfile": (40, 71), "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450), "shmget": (29, 194),
    "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75),
    # Calls that show what other processes do with the system's files, or that let other processes notice a program.
    "cachestat": (451, 451), "fadvise64": (221, 223), "mincore": (27, 232), "fanotify_init": (300, 262),
    "flock": (73, 32), "inotify_init": (253, None), "inotify_init1": (294, 26), "readahead": (187, 213),
    # A file that is executed gives its process its name, which the kernel writes into its log when the process crashes.
    "symlink": (88, None), "symlinkat": (266, 36),
    # Sockets, except pairs, which have no names. A message could carry descriptors, and sockets that carry one another
    # in a ring would outlive their processes. Options could enlarge buffers.
    "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200), "connect": (42, 203), "listen": (50, 201),
    "sendmmsg": (307, 269), "sendmsg": (46, 211), "setsockopt": (54, 208),
}  # fmt: skip
# Reported to the compiler where the sandboxes' programs have one user. The kernel limits the pipe buffers of each user
# together: one program's pipes would make those of another sandbox's program small.
PIPE_CALLS: Calls = {"pipe": (22, None), "pipe2": (293, 59)}
# Calls that succeed without an effect, because honest programs make them, too. The first ones write to the machine's
# disk, through the system's files. By the others a program could leave the processor to others and starve, and so hold
# its sandbox for longer than its own limits say.
FAKED_CALLS: Calls = {
    "fdatasync": (75, 83), "fsync": (74, 82), "msync": (26, 227), "sync_file_range": (277, 84),
    "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "setpriority": (141, 140),
}  # fmt: skip
# Numbers that no call had when this table was made: from the first of each pair up to the second. Here new calls would
# appear, and above, on x86_64, are second sets of numbers for every call.
UNKNOWN_NUMBERS = ((335, 424), (295, 424))
FIRST_UNKNOWN = 470
# Calls that are refused for some of their arguments.
CHECKED_CALLS: Calls = {
    "clone": (56, 220), "clone3": (435, 435), "fcntl": (72, 25), "ioctl": (16, 29), "madvise": (28, 233),
    "mmap": (9, 222), "prctl": (157, 167), "preadv2": (327, 286), "prlimit64": (302, 261), "pwritev2": (328, 287),
    "rt_sigaction": (13, 134), "setrlimit": (160, 164), "socket": (41, 198), "socketpair": (53, 199),
}  # fmt: skip

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

# Instructions of classic BPF: operation, value, and how many instructions to skip if a comparison holds and if not.
_Code = list[tuple[int, int, int, int]]


def filter_program(machine: str, *, pipes: bool = True) -> bytes:
    """The filter for one of `ARCHITECTURES` as an array of `struct sock_filter`.

    Without `pipes`, each call that makes a pipe is reported to the listener.
    """
    column = ARCHITECTURES.index(machine)
    first, end = UNKNOWN_NUMBERS[column]
    code = [
        _load(_ARCHITECTURE),
        (_EQUAL, _AUDIT[column], 1, 0),
        _end(_KILL),
        _load(_NUMBER),
        (_AT_LEAST, FIRST_UNKNOWN, 2, 0),
        (_AT_LEAST, end, 2, 0),
        (_AT_LEAST, first, 0, 1),
        _end(_ERRNO | errno.ENOSYS),
    ]
    answers = [
        *((numbers, [_end(_ERRNO | errno.EPERM)]) for numbers in REFUSED_CALLS.values()),
        *((numbers, [_end(_ERRNO | _SUCCESS)]) for numbers in FAKED_CALLS.values()),
        *((numbers, [_end(_NOTIFY)]) for numbers in PIPE_CALLS.values() if not pipes),
        *((CHECKED_CALLS[name], body) for name, body in _checks().items()),
    ]
    for numbers, body in answers:
        number = numbers[column]
        if number is not None:
            code += _if_equal(number, body)
    code.append(_end(_ALLOW))
    return b"".join(struct.pack("HBBI", operation, met, unmet, value) for operation, value, met, unmet in code)


def _checks() -> dict[str, _Code]:
    """Code that decides about each of the checked calls, by name."""
    refused = [_end(_ERRNO | errno.EPERM)]
    without_effect = [_end(_ERRNO | _SUCCESS)]
    new_core_limit = [
        *(part for half in (0, 4) for part in (_load(_ARGUMENTS + 8 * 2 + half), (_EQUAL, 0, 1, 0), *without_effect)),
        _end(_ALLOW),
    ]
    checks = {
        # clone3 has its flags in memory, which a filter cannot read; libc falls back to clone.
        "clone3": [_end(_ERRNO | errno.ENOSYS)],
        "socket": [_end(_ERRNO | errno.EAFNOSUPPORT)],
        "clone": [_argument(0), *_if_flags(_CLONE_NEWUSER, refused)],
        # Shared memory may stay allocated without being in any process; of large pages the machine has one pool.
        "mmap": [
            *(_argument(3), *_if_flags(_MAP_SHARED_ANONYMOUS, refused)),
            *(_argument(3), *_if_flags(_MAP_HUGETLB, refused)),
        ],
        "prctl": [
            _argument(0),
            *(part for option in _PRCTL_OPTIONS for part in _if_equal(option, refused)),
            *_if_equal(_PR_SET_NAME, without_effect),
        ],
        # A limit on core dumps other than 1 would hand crashes to the machine's handler. To set one has no effect.
        "setrlimit": [_argument(0), *_if_equal(_RLIMIT_CORE, without_effect)],
        "prlimit64": [_argument(1), *_if_equal(_RLIMIT_CORE, new_core_limit)],
        # If a program ignores this signal, the kernel discards its ended children, and their CPU time is lost.
        "rt_sigaction": [_argument(0), *_if_equal(_SIGCHLD, refused)],
    }
    for name, argument, allowed, error in (
        ("ioctl", 1, _IOCTL_REQUESTS, errno.ENOTTY),
        ("madvise", 2, _MADVISE_ADVICE, errno.EINVAL),
        ("fcntl", 1, _FCNTL_COMMANDS, errno.EPERM),
        ("socketpair", 0, (_AF_UNIX,), errno.EAFNOSUPPORT),
        # One of the flags tells whether a page of a file is in memory, where another process may have put it.
        ("preadv2", 5, (0,), errno.EOPNOTSUPP),
        ("pwritev2", 5, (0,), errno.EOPNOTSUPP),
    ):
        accepted = [part for value in allowed for part in _if_equal(value, [_end(_ALLOW)])]
        checks[name] = [_argument(argument), *accepted, _end(_ERRNO | error)]
    return {name: [*body, _end(_ALLOW)] for name, body in checks.items()}


def _load(offset: int) -> tuple[int, int, int, int]:
    """Load a word of `struct seccomp_data`."""
    return _LOAD, offset, 0, 0


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the low half of one of the call's arguments."""
    return _load(_ARGUMENTS + 8 * index)


def _end(action: int) -> tuple[int, int, int, int]:
    """End the filter with an action."""
    return _RETURN, action, 0, 0


def _if_equal(value: int, body: _Code) -> _Code:
    """Skip the body unless the loaded word is `value`."""
    return [(_EQUAL, value, 0, len(body)), *body]


def _if_flags(bits: int, body: _Code) -> _Code:
    """Skip the body unless the loaded word has all these bits; the word is lost."""
    return [(_AND, bits, 0, 0), *_if_equal(bits, body)]
