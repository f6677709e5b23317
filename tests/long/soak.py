"""The soak test: programs of every kind for a long time, to see whether anything grows, leaks or fails.

    python tests/long/soak.py direct --tests 200000    # the judge in this process
    python tests/long/soak.py http --minutes 60        # a judge service on loopback, with bad and slow clients as well

The verdict of every test is known and checked. Samples are appended to OUTPUT_DIR/direct.jsonl or http.jsonl as they
are taken. The same command continues a stopped soak with a new judge, and prints the summary of a finished one. The
summary compares the first third of the samples with the last third, by their smallest values, which depend least on the
tests that happen to be running and on connections that stay open for minutes. The exit code is 1 if a verdict was
wrong, a request was not answered as documented, or something drifts.
"""

import asyncio
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import httpx
import tyro
from tqdm import tqdm
from watched import Process, adopt_orphans, below, check_flags, descriptors, held_services, named, private_memory

from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError

SETTINGS: dict[str, Any] = {
    "cpu_seconds": 1,
    "wall_seconds": 1.5,
    "memory_bytes": 128 << 20,
    "output_bytes": 1 << 16,
    "file_bytes": 16 << 20,
}
LONGEST_ANSWER = 120.0
"""Seconds until a request without an answer counts as an error."""
GROWTH = {"memory_mib": (1.10, 16.0), "descriptors": (1.0, 2.0), "processes": (1.0, 2.0)}
"""Excess of the last third over the first that is allowed: a factor and an additional amount."""


@dataclass(frozen=True)
class Arguments:
    """Run programs of every kind for a long time and watch memory, descriptors, processes and verdicts."""

    part: Annotated[Literal["direct", "http"], tyro.conf.Positional]
    """The soak to run."""
    tests: int = 200_000
    """Number of tests in the direct soak."""
    minutes: float = 60
    """Length of the HTTP soak in minutes."""
    rate: float = 15
    """Largest number of requests per second in the HTTP soak."""
    concurrency: int = 16
    """Largest number of requests at once in the HTTP soak."""
    sample_seconds: float = 10
    """Seconds between two samples."""
    seed: int = 0
    """Seed of the order of programs."""
    output_dir: Path = Path("runs/soak")
    """Folder for samples and errors."""


def main(arguments: Arguments) -> int:
    """Soak, and return the exit code."""
    names = ("tests", "minutes", "rate", "concurrency", "sample_seconds")
    check_flags(arguments.output_dir, **{name: getattr(arguments, name) for name in names})
    record = Record(arguments)
    if arguments.part == "direct":
        if record.tests < arguments.tests:
            asyncio.run(_direct(arguments, record))
    elif record.seconds < 60 * arguments.minutes:
        adopt_orphans()
        with held_services(arguments.output_dir / "services.log", settings=_as_flags(SETTINGS)) as (
            process,
            environment,
        ):
            asyncio.run(_http(arguments, record, process.pid, environment))
    return record.sum_up()


def _as_flags(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items()}


# --- programs whose verdicts are known ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A program, its suite, and the kind of each test's verdict; `weight` is its relative frequency."""

    name: str
    code: str
    suite: TestSuite
    kinds: tuple[str, ...]
    weight: float
    stop: bool = False


def _case(name: str, code: str, kinds: Sequence[str], weight: float, *, stop: bool = False) -> Case:
    """A case whose tests have the inputs 0, 1, 2 and so on, and expect their doubles."""
    numbers = range(len(kinds))
    suite = TestSuite(tuple(f"{n}\n" for n in numbers), tuple(f"{2 * n}\n" for n in numbers))
    return Case(name, code, suite, tuple(kinds), weight, stop)


def _calls(name: str, code: str, kinds: Sequence[str], weight: float) -> Case:
    """A case whose tests call a function with two numbers and expect their sum."""
    numbers = range(len(kinds))
    suite = TestSuite(tuple(f"{n}\n{n + 1}\n" for n in numbers), tuple(str(2 * n + 1) for n in numbers), "add")
    return Case(name, code, suite, tuple(kinds), weight)


def _mixed(n: int) -> str:
    """The verdict of the program "mixed" on the number n."""
    if n % 5 and n % 3 == 0:
        return "runtime_error"
    return "passed" if n % 5 and n % 3 == 1 else "wrong_answer"


_READ = "n = int(input())\n"
_FORK = """
import os
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, str(2 * n).encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode())
"""
_ORPHANS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        time.sleep(60)
print(2 * n)
"""
_EATERS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        kept = b'x' * (60 << 20)
        time.sleep(60)
time.sleep(60)
"""
CASES = (
    _case("passed", _READ + "print(2 * n)", ["passed"] * 20, 60),
    _case("mixed", _READ + "print(2 * n // (n % 3) if n % 5 else 'no')", [_mixed(n) for n in range(20)], 20),
    _case("early stop", _READ + "print(2 * n if n < 2 else 'no')",
          ["passed"] * 2 + ["wrong_answer"] + ["not_run"] * 5, 6, stop=True),
    _case("exit status", "import sys; sys.exit(3)", ["runtime_error"] * 4, 4),
    _case("compile error", "def f(:\n", ["compile_error"] * 6, 4),
    _case("threads", _READ + "import threading\nt = threading.Thread(target=print, args=(2 * n,))\nt.start()\nt.join()",
          ["passed"] * 4, 3),
    _case("processes", _READ + _FORK, ["passed"] * 4, 4),
    _case("orphans", _READ + _ORPHANS, ["passed"] * 2, 1),
    _case("files", _READ + "open('f', 'w').write('x' * 5_000_000)\nprint(2 * n)", ["passed"] * 4, 2),
    _calls("function", "def add(a, b):\n    return a + b", ["passed"] * 8, 6),
    _calls("wrong function", "def add(a, b):\n    return a + b + (a == 3)",
           ["passed"] * 3 + ["wrong_answer"] + ["passed"] * 2, 2),
    _calls("no function", "def sub(a, b):\n    return a - b", ["runtime_error"] * 3, 1),
    _case("output limit", "while True: print('x' * 1000)", ["output_limit"], 0.5),
    _case("memory limit", "kept = bytearray(400 << 20)", ["memory_limit"], 0.5),
    _case("memory limit, together", _EATERS, ["memory_limit"], 0.2),
    _case("time limit", "while True: pass", ["time_limit"], 0.25),
    _case("wall limit", "import time; time.sleep(60)", ["wall_limit"], 0.15),
)  # fmt: skip


def _draw(rng: random.Random) -> Case:
    return rng.choices(CASES, [case.weight for case in CASES])[0]


def _unlike_any(code: str, rng: random.Random) -> str:
    """The program with a unique comment, so that no cache can hold its result."""
    return f"# {rng.randrange(1 << 60)}\n{code}"


# --- samples ------------------------------------------------------------------------------------------------------


class Record:
    """The samples and errors of one soak, written to the disk as they arise.

    Attributes:
        tests, requests: Numbers so far, those of earlier starts included.
        seconds: Duration of the soak so far.
        errors: Number of wrong or missing answers so far.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.part = arguments.part
        self.path = arguments.output_dir / f"{arguments.part}.jsonl"
        self._errors_path = arguments.output_dir / f"{arguments.part}_errors.jsonl"
        self.samples = _read(self.path)
        last = self.samples[-1] if self.samples else {}
        if last.get("seed", arguments.seed) != arguments.seed:
            raise UserError(
                f"{self.path} was sampled with --seed {last['seed']}: give that seed, or another --output_dir"
            )
        self._seed = arguments.seed
        self.tests, self.requests, self.errors = (int(last.get(name, 0)) for name in ("tests", "requests", "errors"))
        self._before = float(last.get("seconds", 0.0))
        self._start = int(last.get("start", -1)) + 1
        self._began = time.monotonic()
        self._waits: list[float] = []
        self.kinds: Counter[str] = Counter()

    @property
    def seconds(self) -> float:
        """Duration of the soak so far, earlier starts included."""
        return self._before + time.monotonic() - self._began

    def begin(self) -> None:
        """Start the clock, when the judge is ready."""
        self._began = time.monotonic()

    def answered(self, kind: str, seconds: float) -> None:
        """Count a right answer."""
        self.kinds[kind] += 1
        self._waits.append(seconds)

    def failed(self, kind: str, what: str) -> None:
        """Count an error and write it down."""
        self.errors += 1
        with self._errors_path.open("a", encoding="utf-8", errors="backslashreplace") as handle:
            handle.write(json.dumps({"seconds": self.seconds, "kind": kind, "error": what[:2000]}) + "\n")

    def sample(self, values: Mapping[str, Any]) -> None:
        """Append a sample."""
        waits, self._waits = sorted(self._waits), []
        row = {
            "seconds": round(self.seconds, 1),
            "start": self._start,
            "seed": self._seed,
            "tests": self.tests,
            "requests": self.requests,
            "errors": self.errors,
            **values,
            "median_ms": round(1000 * statistics.median(waits), 1) if waits else None,
            "slowest_ms": round(1000 * waits[-1], 1) if waits else None,
        }
        self.samples.append(row)
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")

    def sum_up(self) -> int:
        """Print the summary; returns the exit code."""
        for kind, count in sorted(self.kinds.items()):
            print(f"  {kind}: {count}")
        last = self.samples[-1]
        rate = last["tests"] / last["seconds"]
        print(
            f"{self.part}: {last['tests']} tests, {last['requests']} requests, {last['seconds'] / 60:.1f} min in "
            f"{last['start'] + 1} starts, {rate:.0f} tests/s, {last['errors']} errors"
        )
        starts = [[row for row in self.samples if row["start"] == start] for start in range(last["start"] + 1)]
        longest = max(starts, key=len)
        rows = drift(longest)
        if not rows:
            print(f"{len(longest)} samples without a stop: too few to see a drift")
        else:
            minutes = (longest[-1]["seconds"] - longest[0]["seconds"]) / 60
            print(f"In {minutes:.1f} min without a stop:")
            print("| smallest value of | first third | last third | drifts |")
            print("|---|---|---|---|")
        for name, before, after, drifts in rows:
            print(f"| {name} | {before:.0f} | {after:.0f} | {'YES' if drifts else 'no'} |")
        return 1 if last["errors"] or any(drifts for *_, drifts in rows) else 0


def drift(samples: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, float, bool]]:
    """Name, smallest value in the first and in the last third, and whether that is a drift; [] for too few samples.

    The first sample is left out, because it is taken during the warm-up.
    """
    third = (len(samples) - 1) // 3
    if third < 6:
        return []
    rows = []
    first, last = samples[1 : 1 + third], samples[-third:]
    for name, value in samples[-1].items():
        kind = next((kind for kind in GROWTH if name.endswith(kind)), None)
        if kind is None or value is None:
            continue
        before, after = (min(row[name] for row in rows_of) for rows_of in (first, last))
        factor, more = GROWTH[kind]
        rows.append((name, before, after, after > factor * before + more))
    return rows


def _read(path: Path) -> list[dict[str, Any]]:
    """The samples of a file; a torn last line, left by a killed process, is cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]


async def _sample_on(seconds: float, take: Callable[[], Mapping[str, Any]], record: Record) -> None:
    """Take a sample every `seconds` seconds, until cancelled."""
    while True:
        record.sample(await asyncio.to_thread(take))
        await asyncio.sleep(seconds)


# --- directly -----------------------------------------------------------------------------------------------------


async def _direct(arguments: Arguments, record: Record) -> None:
    rng = random.Random(f"{arguments.seed} {record.tests}")
    settings = JudgeSettings(**SETTINGS)
    with _own_temporary_folder() as folder:
        async with LocalJudge(settings) as judge:

            def take() -> dict[str, Any]:
                processes = below(os.getpid())
                return {
                    "memory_mib": round(private_memory([_this(), *processes]), 1),
                    "descriptors": descriptors(os.getpid()),
                    "processes": len(processes),
                    "files": len(list(folder.iterdir())),
                    "sandboxes_replaced": judge.restarts,
                }

            async def one(case: Case) -> None:
                began = time.monotonic()
                try:
                    code = _unlike_any(case.code, rng)
                    result = await judge.judge(code, case.suite, stop_at_first_failure=case.stop)
                except Exception as error:  # noqa: BLE001 - any exception means that there is no verdict
                    record.failed(case.name, repr(error))
                    return
                kinds = tuple(verdict.kind.value for verdict in result.verdicts)
                if kinds == case.kinds and _consistent(result.passing, result.feedback, kinds):
                    record.answered(case.name, time.monotonic() - began)
                else:
                    record.failed(case.name, f"{kinds} in place of {case.kinds}: {result.feedback}")

            with tqdm(total=arguments.tests, initial=record.tests, unit="test", disable=None) as progress:

                async def worker() -> None:
                    while record.tests < arguments.tests:
                        case = _draw(rng)
                        record.tests += len(case.suite)
                        record.requests += 1
                        await one(case)
                        progress.update(len(case.suite))

                record.begin()
                sampler = asyncio.create_task(_sample_on(arguments.sample_seconds, take, record))
                await asyncio.gather(*(worker() for _ in range(2 * settings.sandboxes)))
                sampler.cancel()
                record.sample(take())


def _this() -> Process:
    return Process(os.getpid(), os.getppid(), "R", "")


def _consistent(passing: Sequence[bool], feedback: Sequence[str], kinds: Sequence[str]) -> bool:
    """Whether the three columns of a result agree."""
    return list(passing) == [kind == "passed" for kind in kinds] and [not text for text in feedback] == list(passing)


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[Path]:
    """A folder for temporary files of this process alone, so that files that stay in it are found."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="cobalt-soak-") as folder:
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


# --- over HTTP ----------------------------------------------------------------------------------------------------


@dataclass
class Clients:
    """State that the clients of a soak share: the judge's address, the counts, and one connection pool."""

    address: str
    headers: dict[str, str]
    record: Record
    rng: random.Random
    http: httpx.AsyncClient = field(init=False)

    async def judge(self) -> None:
        """A judge request whose verdicts are known."""
        case = _draw(self.rng)
        body = self._judge_body(case)
        answer = await self.http.post("/evaluator", content=body, headers=self.headers)
        self._check_judged(case, answer.status_code, answer.content)
        self.record.tests += len(case.suite)

    async def malformed(self) -> None:
        """A request that must be refused with a known status."""
        method, path, body, status = self.rng.choice(_MALFORMED)
        answer = await self.http.request(method, path, content=body, headers=self.headers)
        if answer.status_code != status or "error" not in answer.json():
            raise AssertionError(f"{method} {path} {body[:100]!r}: {answer.status_code} {answer.text}")

    async def large(self) -> None:
        """A test with some megabytes of input and output."""
        text = "".join(self.rng.choices("abcdef", k=1000)) * self.rng.randrange(1000, 3000)
        body = {
            "code": _unlike_any("import sys\nprint(len(sys.stdin.read()))", self.rng),
            "test_cases": {"inputs": [text], "outputs": [str(len(text))]},
        }
        answer = await self.http.post("/evaluator", json=body, headers=self.headers)
        self.record.tests += 1
        if answer.status_code != 200 or answer.json()["passing"] != [True]:
            raise AssertionError(f"{answer.status_code}: {answer.text[:500]}")

    async def slow(self) -> None:
        """A client that takes seconds to send its request in pieces, and must still be answered."""
        case = CASES[0]
        reader, writer = await self._connect()
        try:
            message = self._message(self._judge_body(case))
            step = len(message) // 8 + 1
            for begin in range(0, len(message), step):
                writer.write(message[begin : begin + step])
                await writer.drain()
                await asyncio.sleep(0.25)  # this makes the client slow
            head, _, content = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.close()
        self.record.tests += len(case.suite)
        self._check_judged(case, int(head.split()[1]), content)

    async def vanishing(self) -> None:
        """A client that closes the connection during its request, or before the answer."""
        _, writer = await self._connect()
        message = self._message(self._judge_body(_draw(self.rng)))
        writer.write(message[: self.rng.choice((10, len(message) // 2, len(message)))])
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    def _judge_body(self, case: Case) -> bytes:
        body = {"code": _unlike_any(case.code, self.rng), "test_cases": case.suite.to_record()}
        return json.dumps(body | ({"stop_at_first_failure": True} if case.stop else {})).encode()

    def _check_judged(self, case: Case, status: int, content: bytes) -> None:
        if status != 200:
            raise AssertionError(f"{case.name}: {status} {content[:500]!r}")
        answer = json.loads(content)
        kinds = tuple(verdict["kind"] for verdict in answer["verdicts"])
        if kinds != case.kinds or not _consistent(answer["passing"], answer["feedback"], kinds):
            raise AssertionError(f"{case.name}: {kinds} in place of {case.kinds}: {answer['feedback']}")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.address)
        return await asyncio.open_connection(parts.hostname, parts.port)

    def _message(self, body: bytes) -> bytes:
        headers = {"Host": "127.0.0.1", "Content-Length": str(len(body)), "Connection": "close"} | self.headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST /evaluator HTTP/1.1\r\n{lines}\r\n".encode() + body


_SUITE = b'"test_cases": {"inputs": ["1"], "outputs": ["2"]}'
_MALFORMED: tuple[tuple[str, str, bytes, int], ...] = (
    ("GET", "/evaluator", b"", 405),
    ("POST", "/evaluator/nothing", b"{}", 404),
    ("POST", "/evaluator", b"{", 400),
    ("POST", "/evaluator", b"\xff", 400),
    ("POST", "/evaluator", b"[" * 100_000, 400),
    ("POST", "/evaluator", b'{"code": "\\ud800", ' + _SUITE + b"}", 400),
    ("POST", "/evaluator", b"[]", 422),
    ("POST", "/evaluator", b'{"code": 1, ' + _SUITE + b"}", 422),
    ("POST", "/evaluator", b'{"code": "", "tests": 1, ' + _SUITE + b"}", 422),
    ("POST", "/evaluator", b'{"code": "", "test_cases": {"inputs": ["1"], "outputs": []}}', 422),
)


async def _http(arguments: Arguments, record: Record, pid: int, environment: Mapping[str, str]) -> None:
    rng = random.Random(f"{arguments.seed} {record.requests}")
    token = environment.get("COBALT_JUDGE_TOKEN")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    clients = Clients(environment["COBALT_JUDGE_URL"].split()[0].removesuffix("/evaluator"), headers, record, rng)
    actions: dict[str, tuple[float, Callable[[], Awaitable[None]]]] = {
        "judged": (75, clients.judge),
        "malformed": (15, clients.malformed),
        "large": (1, clients.large),
        "slow client": (3, clients.slow),
        "vanishing client": (3, clients.vanishing),
    }
    weights = [weight for weight, _ in actions.values()]
    limits = httpx.Limits(max_connections=arguments.concurrency)

    async def one(name: str) -> None:
        began = time.monotonic()
        record.requests += 1
        try:
            async with asyncio.timeout(LONGEST_ANSWER):
                await actions[name][1]()
        except Exception as error:  # noqa: BLE001 - any exception means that there is no right answer
            record.failed(name, repr(error))
        else:
            record.answered(name, time.monotonic() - began)

    length = 60 * arguments.minutes
    async with httpx.AsyncClient(base_url=clients.address, timeout=LONGEST_ANSWER, limits=limits) as clients.http:
        record.begin()
        sampler = asyncio.create_task(_sample_on(arguments.sample_seconds, lambda: _service_sample(pid), record))
        running: set[asyncio.Task[None]] = set()
        with tqdm(total=round(length), initial=round(record.seconds), unit="s", disable=None) as progress:
            while record.seconds < length:
                due = time.monotonic() + 1 / arguments.rate
                if len(running) >= arguments.concurrency:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(one(rng.choices(list(actions), weights)[0]))
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(max(0.0, due - time.monotonic()))  # limits the rate
                progress.update(round(record.seconds) - progress.n)
        await asyncio.gather(*running)
        sampler.cancel()
        record.sample(_service_sample(pid))


_PARTS = {"replica": "ray::ServeReplica", "proxy": "ray::ProxyActor", "controller": "ray::ServeController"}


def _service_sample(pid: int) -> dict[str, Any]:
    """Memory and descriptors of the services' parts, and the size of Ray's files."""
    processes = below(pid)
    values: dict[str, Any] = {}
    for part, prefix in _PARTS.items():
        of_part = named(prefix, processes)
        # A replica's sandboxes count as part of the replica.
        everyone = (
            [*of_part, *(child for process in of_part for child in below(process.pid))]
            if part == "replica"
            else of_part
        )
        values[f"{part}_memory_mib"] = round(private_memory(everyone), 1)
        values[f"{part}_descriptors"] = sum(descriptors(process.pid) for process in of_part)
    folder = next(
        (word.partition("=")[2] for process in named("gcs_server", processes) for word in process.command.split()
         if word.startswith("--log_dir=")), None
    )  # fmt: skip
    return values | {
        "processes": len(processes),
        "ray_disk_mib": _size_mib(Path(folder).parent) if folder else None,
    }


def _size_mib(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return round(total / (1 << 20), 1)


if __name__ == "__main__":
    run_script(Arguments, main)
