"""How far a training run is, from the signs of work that its processes write (`cobalt_verl.heartbeat`).

Each process has one file in the run's folder `heartbeat`, and replaces it when it gets on. The process that leads the
others says the step and the phase; what the others say of the same phase is added up. Whether a run hangs is decided
elsewhere (`cobalt.training.watching`).
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEARTBEAT_VARIABLE = "COBALT_HEARTBEAT"
"""Environment variable: the folder of the files."""

_COUNTS = (
    "pid",
    "step",
    "steps",
    "batch",
    "batches",
    "micro_batch",
    "micro_batches",
    "samples",
    "samples_of",
    "tokens",
)


@dataclass(frozen=True, slots=True)
class Sign:
    """What one process says, or several together. Numbers that were not given are 0, words are empty.

    Attributes:
        host: The node of the process.
        pid: The process.
        gpus: The GPUs that it sees, as `CUDA_VISIBLE_DEVICES` has them.
        phase: What it does.
        leads: Whether it is the process that leads the others.
        step: The training step; 0: before the first.
        steps: Steps of the run.
        batch: The mini-batch that it works on, counted from 1.
        batches: Mini-batches of the phase.
        micro_batch: Micro-batches done of this mini-batch.
        micro_batches: Micro-batches of this mini-batch.
        samples: Samples done.
        samples_of: Samples of the phase.
        tokens: Tokens done in the phase.
    """

    host: str = ""
    pid: int = 0
    gpus: str = ""
    phase: str = ""
    leads: bool = False
    step: int = 0
    steps: int = 0
    batch: int = 0
    batches: int = 0
    micro_batch: int = 0
    micro_batches: int = 0
    samples: int = 0
    samples_of: int = 0
    tokens: int = 0

    @property
    def where(self) -> str:
        """The step and the phase, in words."""
        if not self.phase:
            return "start"
        return f"step {self.step} of {self.steps}, {self.phase}" if self.steps else self.phase

    @property
    def done(self) -> str:
        """What is done of the phase, in words; "" if nothing is counted there."""
        if self.samples_of and not self.micro_batches:
            return f"{self.samples:,} of {self.samples_of:,} samples"
        if not self.micro_batches:
            return ""
        words = [f"{self.samples:,} of {self.samples_of:,} samples"] if self.samples_of else []
        if self.batches > 1:
            words.append(f"mini-batch {self.batch} of {self.batches}")
        return ", ".join([*words, f"micro-batch {self.micro_batch:,} of {self.micro_batches:,}"])


def heartbeat_folder(output: Path) -> Path:
    """Where the processes of a run write their signs."""
    return output / "heartbeat"


def parse(content: bytes) -> Sign | None:
    """The sign in a file; None if the file has none: it is torn, or of something else."""
    try:
        fields: Any = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    words = {name: fields.get(name, "") for name in ("host", "gpus", "phase")}
    counts = {name: fields.get(name, 0) for name in _COUNTS}
    if not all(isinstance(word, str) for word in words.values()):
        return None
    if not all(isinstance(count, int) and count >= 0 for count in counts.values()):
        return None
    return Sign(**words, **counts, leads="steps" in fields)


class Heartbeat:
    """The signs of one run, as they were at the last `look`.

    Attributes:
        state: The leader's sign, with the counts of the others in the same phase. Nothing is known before there is one.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without any sign: those of an earlier run are removed.

        Args:
            folder: Where the files lie; it is made if the disk allows.
            clock: Seconds.
        """
        self._folder = folder
        self._clock = clock
        self._files: dict[str, bytes] = {}
        self._signs: list[Sign] = []
        self.state = Sign()
        self._since = clock()
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for old in (*folder.glob("*.json"), *folder.glob("*.part")):
                old.unlink()

    def look(self) -> bool:
        """Read the files; returns whether any process got on since the last time."""
        files = {}
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.json"):
                with contextlib.suppress(OSError):
                    files[path.name] = path.read_bytes()
        signs = {name: sign for name, content in files.items() if (sign := parse(content)) is not None}
        fresh = any(files[name] != self._files.get(name) for name in signs)
        self._files |= {name: files[name] for name in signs}
        self._signs = list(signs.values())
        state = _together(self._signs)
        if (state.step, state.phase) != (self.state.step, self.state.phase):
            self._since = self._clock()
        self.state = state
        return fresh

    @property
    def seconds(self) -> float:
        """How long the phase has lasted."""
        return self._clock() - self._since

    @property
    def pids(self) -> set[int]:
        """The processes on this node that have written signs."""
        return {sign.pid for sign in self._signs if sign.host == socket.gethostname()}

    @property
    def gpus(self) -> set[str]:
        """The GPUs of this node that the run uses, by index or name; empty if no process said."""
        own = [sign.gpus for sign in self._signs if sign.host == socket.gethostname()]
        return {gpu.strip() for names in own for gpu in names.split(",") if gpu.strip()}

    @property
    def elsewhere(self) -> bool:
        """Whether processes of the run are on other nodes."""
        return any(sign.host != socket.gethostname() for sign in self._signs)

    def line(self) -> str:
        """The step, the phase, what is done of it, how fast, and for how long.

        Such as "step 3 of 16, generate: 512 of 2,048 samples, 1,830 tokens/s, 2 min".
        """
        speed = f"{self.state.tokens / self.seconds:,.0f} tokens/s" if self.state.tokens and self.seconds >= 1 else ""
        return f"{self.state.where}: {', '.join(filter(None, (self.state.done, speed, duration(self.seconds))))}"


def _together(signs: list[Sign]) -> Sign:
    """The leader's sign with the sums of its phase; several leaders: the one that is furthest."""
    leader = max((sign for sign in signs if sign.leads), key=lambda sign: sign.step, default=Sign())
    same = [sign for sign in signs if sign.phase == leader.phase and sign.step == leader.step]
    names = ("micro_batch", "micro_batches", "samples", "samples_of", "tokens")
    return Sign(
        phase=leader.phase,
        leads=leader.leads,
        step=leader.step,
        steps=leader.steps,
        batch=max((sign.batch for sign in same), default=0),
        batches=leader.batches,
        **{name: sum(getattr(sign, name) for sign in same) for name in names},
    )


def duration(seconds: float) -> str:
    """A length of time in words: "40 s", "2 min", "1 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
