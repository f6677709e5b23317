"""One Parquet file of rows for veRL: its columns, its row groups, and the prompts that are too long for it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from cobalt.episode.token_count import PromptTokenCounter
from cobalt.stage.tally import Tally

# A row group is in memory, with the tests of its rows, when it is written and when it is read; pyarrow reads none whose
# texts have more than 2 GiB.
ROWS_IN_A_GROUP = 128
CHARACTERS_IN_A_GROUP = 32 << 20


def rows_schema(*, episodes: bool) -> Any:
    """The Arrow schema of the rows; with `episodes`, `extra_info` has what begins an episode of several turns."""
    import pyarrow as pa

    text, number, flag = pa.string(), pa.int64(), pa.bool_()
    extra = {"index": number, "split": text, "id": text, "problem_id": text, "sample": number, "turn": number}
    extra |= {"prev_best_pass_rate": pa.float64(), "perturbed": flag, "difficulty": text}
    if episodes:
        rules = {"enable_thinking": flag, "truncated_thinking": text}
        extra["episode"] = pa.struct({"public_tests": pa.list_(number), "prompts": text} | rules)
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct(extra),
        }
    )


@dataclass(slots=True)
class Split:
    """Writes the rows of one split, of prompts up to a `limit` in tokens, and counts."""

    name: str
    data_source: str
    counter: PromptTokenCounter
    limit: int
    read: int = 0
    rows: int = 0
    longest: int = 0
    problems: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)

    def write(self, rows: Iterable[dict[str, Any]], file: IO[bytes], schema: Any) -> None:
        """Measure the prompts of rows, and write those that fit, numbered from 0."""
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        with ParquetWriter(file, schema, compression="zstd") as parquet:
            for group in _groups(rows):
                fitting = list(self._fitting(group))
                if fitting:
                    parquet.write_table(pyarrow.Table.from_pylist(fitting, schema=schema))

    def _fitting(self, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        self.read += len(rows)
        for row, length in zip(rows, self.counter.count([row["prompt"] for row in rows]), strict=True):
            about = row["extra_info"]
            if length > self.limit:
                self.tally.leave_out(f"over max_prompt_length ({self.name})", about["id"])
                continue
            self.longest = max(self.longest, length)
            self.problems.add(about["problem_id"])
            yield row | {
                "data_source": self.data_source,
                "extra_info": about | {"index": self.rows, "split": self.name},
            }
            self.rows += 1

    def summary(self) -> dict[str, int]:
        """The counts of this split."""
        return {
            "prompts read": self.read,
            "dropped: over max_prompt_length": self.tally.total(),
            "rows": self.rows,
            "problems": len(self.problems),
            "longest prompt, tokens": self.longest,
        }


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Rows in groups, each for one row group."""
    group: list[dict[str, Any]] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += len(row["reward_model"]["ground_truth"])
        if len(group) >= ROWS_IN_A_GROUP or characters >= CHARACTERS_IN_A_GROUP:
            yield group
            group, characters = [], 0
    if group:
        yield group
