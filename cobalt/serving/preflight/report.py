"""What is asked of a node, and what it answers. Plain data, which Ray carries between the launcher and the nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cobalt.judge.settings import JudgeSettings


@dataclass(frozen=True, slots=True)
class Question:
    """What a node is asked to look at.

    Attributes:
        paths: Files and folders that every node must see at the same path, by what they are ("data", "model", ...).
        hub_model: A hub name that must be in the node's cache; "": none.
        token_folder: A new folder in the run's output, which holds the file `token`; "": the output is not checked.
        token: The content of that file.
        variables: Names of variables to report.
        secrets: Names of variables of which only a digest is reported.
        salt: A random text for the digests.
        judge: The settings under which isolation is checked; None: the node does not judge programs.
    """

    paths: Mapping[str, str]
    hub_model: str = ""
    token_folder: str = ""
    token: str = ""
    variables: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    salt: str = ""
    judge: JudgeSettings | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """Free and total bytes of a file system."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node says of itself.

    Attributes:
        python: Version of Python.
        environment: The folder of the Python environment (`sys.prefix`).
        code: Where the package `cobalt` is imported from, and a digest of its files and of those added to veRL.
        packages: Version of each installed package.
        isolation: Why programs cannot be isolated; "": they can; None: not checked.
        gpus: Name of each GPU; empty if there is no driver.
        driver: Version of the GPU driver; "" if there is none.
        compiler: Why kernels for the GPUs cannot be compiled; "": they can, or there are no GPUs.
        paths: Digest of each path of the question; "" where there is nothing.
        hub_model: Whether the cache has the hub model; None: not asked.
        output: Why the output cannot be shared; "": it can; None: not asked.
        disks: Free space at "output" (if asked), "/tmp" and "/dev/shm".
        interface: The network interface that has the node's address; "" if none has it.
        interfaces: All network interfaces.
        values: Values of the variables that are set, by name.
        digests: Digests of the secrets that are set, by name.
    """

    python: str
    environment: str
    code: tuple[str, str]
    packages: Mapping[str, str]
    isolation: str | None
    gpus: tuple[str, ...]
    driver: str
    compiler: str
    paths: Mapping[str, str]
    hub_model: bool | None
    output: str | None
    disks: Mapping[str, Disk]
    interface: str
    interfaces: tuple[str, ...]
    values: Mapping[str, str]
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's row.

    Attributes:
        id: Ray's name for the node.
        host: Host name.
        address: IP address for the other nodes.
        cpus, gpus: What Ray counts there.
        object_store: Bytes of shared memory for Ray's objects.
        judges: Whether the node judges programs.
        answer: What the node says; None: it did not answer.
        failure: Why it did not answer.
        clock: Seconds by which the node's clock is ahead of the launcher's.
        clock_error: The most seconds by which `clock` may be wrong.
        unreachable: Hosts whose ports this node cannot connect to.
        seen_by_launcher: Whether the launcher sees the file that the node wrote; None: none was asked for.
    """

    id: str
    host: str
    address: str
    cpus: float
    gpus: float
    object_store: int
    judges: bool
    answer: Answer | None = None
    failure: str = ""
    clock: float = 0.0
    clock_error: float = 0.0
    unreachable: tuple[str, ...] = ()
    seen_by_launcher: bool | None = None


@dataclass(slots=True)
class Verdict:
    """What was found: `errors` would stop a run, `notes` would not. Each is a host and a sentence about it."""

    errors: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
