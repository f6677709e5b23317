"""What several test modules use; no tests."""

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent


def square_problem(identifier, **fields):
    """A problem in the TACO-Cobalt schema: print the square of a number."""

    def suite(*numbers):
        return json.dumps({"inputs": [f"{i}\n" for i in numbers], "outputs": [f"{i * i}\n" for i in numbers]})

    return {
        "id": identifier,
        "difficulty": "EASY",
        "question": "Print the square of a number.",
        "test_cases": suite(2, 3, 4, 5),
        "public_test_cases": suite(2, 3),
        "hidden_test_cases": suite(4, 5),
    } | fields


def write_lines(path, records):
    """Write records as JSONL and return the path."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
