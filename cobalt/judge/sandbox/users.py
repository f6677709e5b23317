"""The users that programs run as, and the pipes that the kernel lets one user have.

The kernel exempts the real root from the limit on processes, so programs of a judge that runs as root need another
user. It counts pipes, signals and more by user, so each sandbox's programs have one of their own.
"""

import os
import secrets
from pathlib import Path

PROGRAM_UID = 1000  # the user of programs inside, if the judge runs as root
# No distribution assigns user ids from here to 2^31. An id is drawn from all of them, because judges in other
# containers of the machine draw from the same.
FIRST_USER = 0x70000000
_USERS = 1 << 28
_FIRST_SPARE_USER = 1000  # the first id to use in a container that has only a range of users
_PIPE_PAGES = 16
_FEWEST_PIPES, _MOST_PIPES = 4, 256


def spare_users() -> dict[str, range]:
    """Ids that programs may run as, of users ("uid") and groups ("gid"); empty if this process cannot map any."""
    if os.geteuid() != 0:
        return {}
    spare = {kind: _spare_ids(kind) for kind in ("uid", "gid")}
    return spare if all(spare.values()) else {}


def map_users(pid: int, spare: dict[str, range]) -> None:
    """Give the user namespace of a process its root and `PROGRAM_UID`, which is one of the spare ids outside."""
    for kind, ids in spare.items():
        # In a small range, process ids differ more surely than drawn ones.
        own = ids[secrets.randbelow(_USERS) if len(ids) == _USERS else pid % len(ids)]
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 0 1\n{PROGRAM_UID} {own} 1\n", encoding="ascii")


def pipes_of_a_test(sandboxes: int) -> int:
    """Limit on a test's pipes where all sandboxes have one user: together half of what the kernel gives a user."""
    try:
        pages = int(Path("/proc/sys/fs/pipe-user-pages-soft").read_text(encoding="ascii"))
    except (OSError, ValueError):
        pages = 0
    pipes = (pages or 1 << 14) // _PIPE_PAGES
    return max(_FEWEST_PIPES, min(_MOST_PIPES, pipes // 2 // sandboxes))


def _spare_ids(kind: str) -> range:
    ranges = []
    for line in Path(f"/proc/self/{kind}_map").read_text(encoding="ascii").splitlines():
        first, _, count = map(int, line.split())
        ranges.append(range(max(first, _FIRST_SPARE_USER), first + count))
    widest = max(ranges, key=len)
    if FIRST_USER in widest and FIRST_USER + _USERS - 1 in widest:
        return range(FIRST_USER, FIRST_USER + _USERS)
    return widest
