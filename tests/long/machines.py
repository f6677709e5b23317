"""Two machines on one: each has a network, process ids, a host name, a /tmp and a /dev/shm of its own; no tests.

The two are connected by a switch (10.77.0.1 and 10.77.0.2 at the interface `eth0`) and share the file system, as the
nodes of a cluster do. Ending the first process of a machine ends all of its processes and its network, as a loss of
power does. Needs root, or user namespaces.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from support import ROOT

_READY = "ready\n"
_SET_UP = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
exec 3<"$3" # a checkout below /tmp stays where it is
mount -t tmpfs -o size=4g tmpfs /tmp
[ -e "$3" ] || { mkdir -p "$3" && mount --no-canonicalize --bind /proc/self/fd/3 "$3"; }
exec 3<&-
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
echo ready
sleep infinity &
wait # and collect the processes whose parents have ended
"""
_ALONE = ["setpriv", "--pdeathsig", "KILL"]  # so that nothing is left where the tests are killed
_OWN = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Machine:
    """One machine.

    Args:
        host: Its name.
        address: Its address in the network.
        home: The users' home folder, which all machines share.
        inside: The beginning of a command that is to run where machines can be made.
        switch: Runs a command of iproute2 where the switch is.
    """

    def __init__(
        self, host: str, address: str, home: Path, inside: Sequence[str], switch: Callable[[str], None]
    ) -> None:
        self.host = host
        self._address = address
        self._home = home
        self._inside = inside
        self._switch = switch
        self.begin()

    def begin(self) -> None:
        """Switch the machine on: at first, or after its loss, which has left nothing in its memory."""
        hosts = str(self._home / "hosts")
        command = [*self._inside, *_ALONE, "unshare", *_OWN, "sh", "-c", _SET_UP, "sh", self.host, hosts, str(ROOT)]
        self._outer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert self._outer.stdout is not None
        assert self._outer.stdout.readline() == _READY, f"{self.host} was not made"
        (self.first,) = map(int, Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split())
        # The end of a cable that lies in a lost machine takes the other end with it, which is the switch's.
        self._switch(f"link add {self.host} type veth peer name eth0 netns {self.first}")
        self._switch(f"link set {self.host} master switch up")
        self.network("addr", "add", f"{self._address}/24", "dev", "eth0")
        self.network("link", "set", "eth0", "up")
        self.network("route", "add", "default", "via", "10.77.0.254")

    def command(self, command: Sequence[str], **variables: str) -> list[str]:
        """A command line that runs a command on this machine, in the checkout, as a user who has logged in there."""
        environment = {
            "HOME": str(self._home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            **variables,
        }
        pairs = [f"{name}={value}" for name, value in environment.items()]
        enter = ["nsenter", "--target", str(self.first), "--net", "--mount", "--uts", "--ipc", "--pid"]
        return [*self._inside, *enter, "env", "-i", "-C", str(ROOT), *pairs, *map(str, command)]

    def run(self, *command: object, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess:
        """Run a command to its end."""
        line = self.command([str(part) for part in command], **variables)
        return subprocess.run(
            line, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, start_new_session=True
        )

    @contextlib.contextmanager
    def running(self, *command: object, log: Path, **variables: str) -> Iterator[subprocess.Popen]:
        """Run a command for the length of a block; it gets SIGINT at the end of it."""
        line = self.command([str(part) for part in command], **variables)
        with log.open("ab") as output:
            process = subprocess.Popen(
                line, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                self.run("kill", "-INT", *self._pids_below(process.pid))
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def lose(self) -> None:
        """End the machine without a warning."""
        if self._outer.poll() is None:
            os.kill(self.first, signal.SIGKILL)
            self._outer.wait()
        self._outer.stdout.close()

    def network(self, *command: str) -> None:
        """Run a command of iproute2 in the machine's network."""
        subprocess.run(
            [*self._inside, "nsenter", "--target", str(self.first), "--net", "ip", *command], check=True, timeout=30
        )

    @staticmethod
    def _pids_below(pid: int) -> list[int]:
        """The machine's own ids of the processes that another machine's process `pid` has started and waits for."""
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{children[0] if children else pid}/status").read_text().splitlines()
        return [int(line.split()[-1]) for line in lines if line.startswith("NSpid:")]


@contextlib.contextmanager
def two_machines(home: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two connected machines; nothing of them is left after the block.

    Args:
        home: A new folder outside /tmp, which becomes the home folder of both.
    """
    (home / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 node-a\n10.77.0.2 node-b\n")
    with contextlib.ExitStack() as stack:
        inside: list[str] = []
        if os.geteuid():
            # One user namespace for both: only then can a cable lead from one to the other.
            owner = subprocess.Popen(["unshare", "--map-root-user", "cat"], stdin=subprocess.PIPE)
            stack.callback(owner.wait)
            stack.callback(owner.stdin.close)
            inside = ["nsenter", "--target", str(owner.pid), "--user", "--preserve-credentials"]
        switch = stack.enter_context(_switch(inside))
        machines = []
        for host, address in (("node-a", "10.77.0.1"), ("node-b", "10.77.0.2")):
            machine = Machine(host, address, home, inside, switch)
            stack.callback(machine.lose)
            machines.append(machine)
        first, second = machines
        yield first, second


@contextlib.contextmanager
def _switch(inside: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """A network of its own with a bridge named `switch`; yields what runs a command of iproute2 in it."""
    made = "ip link add switch type bridge && ip link set switch up && echo ready && exec sleep infinity"
    command = [*inside, *_ALONE, "unshare", "--net", "sh", "-c", made]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == _READY, "the switch was not made"
        enter = [*inside, "nsenter", "--target", str(process.pid), "--net", "ip"]
        yield lambda line: subprocess.run([*enter, *line.split()], check=True, timeout=30)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
