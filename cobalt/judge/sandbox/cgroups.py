"""Memory and process limits that the kernel enforces: a cgroup for each sandbox, where this process may make one.

It can as root, in a cgroup that was delegated (systemd's `Delegate=yes`), or in one made writable for this user. Where
it cannot, sandboxes have no cgroup, and `cobalt.judge.inside.usage` adds memory up.
"""

import contextlib
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cobalt.stage.errors import InfrastructureError

# What a sandbox needs in addition to its program: interpreter, compiled program, page tables and its own processes.
OVERHEAD_BYTES = 64 << 20
OVERHEAD_PROCESSES = 8

_PREFIX = "cobalt-judge-"
_SUPERVISOR = "cobalt-supervisor"
_NEEDED = {"memory", "pids"}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """Folders in which cgroups for sandboxes can be made: one under v2, one for each controller under v1."""

    version: int
    memory: Path
    pids: Path


class SandboxCgroup:
    """A cgroup with a limit on memory, without swap, and a limit on processes.

    Raises:
        InfrastructureError: the cgroup could not be made.
    """

    def __init__(self, parent: CgroupParent) -> None:
        self._version = parent.version
        name = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        self._memory, self._pids = parent.memory / name, parent.pids / name
        self._limits = (-1, -1)
        try:
            for folder in self._folders:
                folder.mkdir()
            counter = "memory.events" if self._version == 2 else "memory.oom_control"
            self._counter = os.open(self._memory / counter, os.O_RDONLY)
        except OSError as error:
            self.remove()
            raise InfrastructureError(f"a sandbox's cgroup could not be made: {error}") from error

    @property
    def _folders(self) -> set[Path]:
        return {self._memory, self._pids}

    def add(self, pid: int) -> None:
        """Move a process into this cgroup; its later descendants start in it."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def raise_to(self, memory_bytes: int, processes: int) -> None:
        """As `limit`, but lower no limit: the kernel refuses a limit that is below what is in use."""
        self.limit(*map(max, self._limits, (memory_bytes, processes)))

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Set the limits of a program and what the sandbox itself needs.

        Raises:
            InfrastructureError: the kernel refuses the limits, because more memory is in use.
        """
        if (memory_bytes, processes) == self._limits:
            return
        memory = str(memory_bytes + OVERHEAD_BYTES)
        try:
            if self._version == 2:
                (self._memory / "memory.max").write_text(memory, encoding="ascii")
                _write_if_present(self._memory / "memory.swap.max", "0")
            else:
                # The limit on memory and swap together may never be below the limit on memory.
                _write_if_present(self._memory / "memory.memsw.limit_in_bytes", "-1")
                (self._memory / "memory.limit_in_bytes").write_text(memory, encoding="ascii")
                _write_if_present(self._memory / "memory.memsw.limit_in_bytes", memory)
            (self._pids / "pids.max").write_text(str(processes + OVERHEAD_PROCESSES), encoding="ascii")
        except OSError as error:
            raise InfrastructureError(f"the limits of a sandbox's cgroup could not be set: {error}") from error
        self._limits = (memory_bytes, processes)

    def kills(self) -> int:
        """Number of processes of this cgroup that the kernel has killed because memory ran out."""
        match = re.search(rb"^oom_kill (\d+)$", os.pread(self._counter, 4096, 0), re.MULTILINE)
        return int(match[1]) if match is not None else 0

    def remove(self) -> None:
        """Remove the cgroup; its processes must have ended. If it is still in use, a later `find_parent` removes it."""
        counter, self._counter = getattr(self, "_counter", -1), -1
        if counter >= 0:
            os.close(counter)
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def find_parent() -> CgroupParent | None:
    """A folder in which this process can make cgroups for sandboxes, by a trial; also removes those of dead judges."""
    for parent in _candidates():
        _remove_leftovers(parent)
        with contextlib.suppress(InfrastructureError):
            trial = SandboxCgroup(parent)
            try:
                trial.limit(1 << 30, 32)
                return parent
            finally:
                trial.remove()
    return None


def enter_delegated() -> bool:
    """Move this process into a child of its own v2 cgroup, if it is alone there; returns whether it did.

    Under v2 a cgroup that has processes cannot have children with controllers.
    """
    own = own_cgroup(None)
    if own is None or own.name == _SUPERVISOR:
        return False
    try:
        alone = _words(own / "cgroup.procs") == {str(os.getpid())}
        if not alone or not _NEEDED.issubset(_words(own / "cgroup.controllers")):
            return False
        (own / _SUPERVISOR).mkdir(exist_ok=True)
        (own / _SUPERVISOR / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        (own / "cgroup.subtree_control").write_text("+memory +pids", encoding="ascii")
    except OSError:
        return False
    return True


def _candidates() -> list[CgroupParent]:
    """Possible parents in order of preference; only a trial shows whether one is usable."""
    parents = []
    own = own_cgroup(None)
    if own is not None:
        # The parent, because the processes of a delegated cgroup have moved into a child of it.
        parents += [CgroupParent(2, folder, folder) for folder in (own, own.parent) if _gives_controllers(folder, own)]
    memory, pids = own_cgroup("memory"), own_cgroup("pids")
    if memory is not None and pids is not None:
        parents.append(CgroupParent(1, memory, pids))
    return parents


def _gives_controllers(folder: Path, own: Path) -> bool:
    """Whether children of a v2 cgroup have the controllers; turns them on in this process's own cgroup if possible."""
    try:
        if _NEEDED.issubset(_words(folder / "cgroup.subtree_control")):
            return True
        if folder == own and _NEEDED.issubset(_words(folder / "cgroup.controllers")):
            (folder / "cgroup.subtree_control").write_text("+memory +pids", encoding="ascii")
            return True
    except OSError:
        pass  # not writable for this user, or there are processes in it
    return False


def own_cgroup(controller: str | None) -> Path | None:
    """The folder of this process's cgroup: in the v1 hierarchy of `controller`, or for None in the v2 hierarchy."""
    path = None
    for line in _read_lines(Path("/proc/self/cgroup")):
        _, controllers, name = line.split(":", 2)
        if controller in controllers.split(",") if controller is not None else controllers == "":
            path = name
    if path is None:
        return None
    for line in _read_lines(Path("/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        root, target = before.split()[3:5]
        kind, _, options = after.split()[:3]
        fits = kind == "cgroup2" if controller is None else kind == "cgroup" and controller in options.split(",")
        # Cgroups above the root of this mount are not visible in it.
        if fits and (path == root or path.startswith(root.rstrip("/") + "/")):
            return Path(target) / path[len(root) :].lstrip("/")
    return None


def _remove_leftovers(parent: CgroupParent) -> None:
    for folder in {parent.memory, parent.pids}:
        for child in folder.glob(f"{_PREFIX}*"):
            owner = child.name.removeprefix(_PREFIX).partition("-")[0]
            if owner.isdigit() and not Path("/proc", owner).exists():
                with contextlib.suppress(OSError):  # another judge may be removing it at the same time
                    child.rmdir()


def _words(path: Path) -> set[str]:
    return set(path.read_text(encoding="ascii").split())


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _write_if_present(path: Path, text: str) -> None:
    if path.exists():
        with contextlib.suppress(OSError):
            path.write_text(text, encoding="ascii")
