"""Programs that attack the sandbox, from `data/attacks`: a name, a program, and the verdicts that show that it held.

An entry is a program, or a mapping with its `code`, the part (of `parts.yaml`) that it `uses`, and the verdicts that
are `expected`. A program prints "held" when the isolation that it attacked held, which is what every test expects. Each
bounds what it does, so that a sandbox that fails costs the machine some hundred MiB or processes and no more. System
calls have the numbers of x86_64; `{secret!r}` and the like stand for what `attacks_lab` puts there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cobalt.judge import VerdictKind


@dataclass(frozen=True)
class Attack:
    """A program, and the verdicts that show that isolation holds."""

    code: str
    expected: tuple[VerdictKind, ...]


def read(name: str) -> dict[str, Any]:
    """The entries of a file, by name."""
    return yaml.safe_load((Path(__file__).parent / "data" / "attacks" / f"{name}.yaml").read_text(encoding="utf-8"))


def attack(entry: str | dict[str, Any], uses: str | None = None) -> Attack:
    """The attack of an entry, with the part that it uses."""
    described = {"uses": uses, "expected": ["passed"]} | (entry if isinstance(entry, dict) else {"code": entry})
    part = attack(PARTS[described["uses"]]).code if described["uses"] else ""
    return Attack(part + described["code"], tuple(map(VerdictKind, described["expected"])))


def attempts(kind: str, expressions: dict[str, str]) -> Attack:
    """A program that tries all expressions of a kind; each is a text only if something got through."""
    tried = ",\n".join(f"named({name!r}, {expression.strip()})" for name, expression in expressions.items())
    return attack(
        {"uses": "pair" if kind == "socket pair" else "syscall", "code": f"{PARTS['named']}verdict(\n{tried})"}
    )


PARTS = read("parts")
HELD = {f"attempts ({kind})": attempts(kind, expressions) for kind, expressions in read("attempts").items()}
HELD |= {name: attack(entry, uses="syscall") for name, entry in read("held").items()}
ENDS, MEMORY, ASSERTED, HONEST, TRACES, SINGLE = (
    {name: attack(entry) for name, entry in read(file).items()}
    for file in ("ends", "memory", "asserted", "honest", "traces", "single")
)
PAIRS = {name: [attack(one).code for one in pair] for name, pair in read("pairs").items()}
