"""A pretrained model through the whole chain on MBPP, on two CPU cores (`python -m studies.real_model`).

SmolLM2-135M-Instruct, which `scripts/smollm2.py` makes, is the base of four methods: SFT and offline RL (arXiv
2605.28409) on groups of MBPP's own programs and judged samples of the base; single-turn GRPO (FT), which goes on from
SFT; and Cobalt on FT's own trajectories, which goes on from FT. Training has the splits `train` and `validation`. Each
row is measured on the split `test`, with one program a problem and three rounds of feedback. docs/real_model.md has the
table.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from cobalt.report.comparison import change_between, check_comparable
from cobalt.report.curves import read_metrics
from cobalt.report.runs import EVALUATION, Run, read_run
from cobalt.report.tables import Table
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.stage.records import read_records
from studies.costs import batch_of, collected, command_seconds, training_seconds
from studies.flags import StudyFlags, TableFlags
from studies.lines import Lines, length
from studies.plan import Study
from studies.seed_tables import write_page

MODULE = "studies.real_model"


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of the study, chosen without a look at the problems of the test.

    Attributes:
        test: Problems that the rows are measured on.
        train: Problems that are trained on.
        sampled: Those of them that the base's programs are judged for.
        collected: Those of them that FT's trajectories are collected for.
        max_tokens: Of a response. 96.5 % of the programs of MBPP's split `train` have fewer than 192.
        samples: Programs of the base for each of these problems, and trajectories of FT.
        group: Programs of a group of offline training.
        groups: Of a step of offline training.
        ft_steps: Of training FT, each on four prompts with eight samples.
        cobalt_steps: Of training FT-Cobalt, alike.
    """

    test: int = 500
    train: int = 464
    sampled: int = 320
    collected: int = 80
    max_tokens: int = 192
    samples: int = 4
    group: int = 2
    groups: int = 8
    ft_steps: int = 20
    cobalt_steps: int = 12


# These, too, were chosen without a look at the problems of the test; docs/real_model.md says what they rest on.
_LONGEST_PROMPT = 1536
_OFFLINE = (
    "optim.lr=5e-5 data.max_length=1024 data.max_token_len_per_gpu=2048 trainer.save_freq=20 trainer.test_freq=-1"
    " trainer.total_epochs=2"
)

_PROBLEMS = """
set -e
mkdir -p "$2"
for split in test prompt validation train; do
  python preproc/preproc_mbpp.py -i "$1" -o "$2/mbpp_$split.jsonl" --split $split --prompts program --solutions
done
head -n "$3" "$2/mbpp_test.jsonl" >"$2/test.jsonl"
cat "$2/mbpp_train.jsonl" "$2/mbpp_validation.jsonl" | head -n "$4" >"$2/train.jsonl"
head -n "$5" "$2/train.jsonl" >"$2/sampled.jsonl"
head -n "$6" "$2/train.jsonl" >"$2/collected.jsonl"
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        name: In the table.
        slug: In the names of steps and folders.
        start: The row that its training starts from; None: it is not trained.
        data: The steps that made what it is trained on, besides those of `start`.
    """

    name: str
    slug: str
    start: "Row | None" = None
    data: tuple[str, ...] = ()

    @property
    def origins(self) -> tuple["Row", ...]:
        """The trained rows that it is made of, itself included, the first one first."""
        return (*self.start.origins, self) if self.start else ()


BASE = Row("base", "base")
SFT = Row("SFT", "sft", BASE, ("submissions", "groups"))
OFFLINE = Row("offline RL", "exponential", BASE, ("submissions", "groups"))
FT = Row("FT", "ft", SFT, ("ft_rows",))
COBALT = Row("FT-Cobalt", "cobalt", FT, ("collection", "prompts", "cobalt_rows"))
ROWS = (BASE, SFT, OFFLINE, FT, COBALT)


@dataclass(frozen=True)
class Arguments(StudyFlags, TableFlags):
    """Take a small pretrained model through every method on MBPP, on two CPU cores, in about four hours.

    Stop it whenever you like: the same command goes on where it stopped.
    """

    mbpp: Path = Path("mbpp.jsonl")
    """MBPP as released."""
    model: Path | None = None
    """Folder of the base model; by default SmolLM2-135M-Instruct, which the first step makes."""
    limit: int | None = None
    """Take so many problems of each kind, one step of each training run and 64 tokens, to see that every step runs."""


def plan(at: Path, arguments: Arguments, scale: Scale) -> Lines:
    """The steps but the last, which writes the table. Those that need one model share one start of the services."""
    base = arguments.model or at / "base_model"
    lines = Lines(
        arguments.seed,
        inputs=[arguments.mbpp] if arguments.model is None else [arguments.mbpp, base],
        sampling=f"--prompts program --max_tokens {scale.max_tokens}",
        data_source="mbpp",
        services={"engine": ["kv_cache_gib=4", "max_model_len=2560"]},
        profile="cpu",
    )
    models = {row: _run(at, row) / "model" for row in ROWS} | {BASE: base}
    ft, cut = models[FT], f"--prompts program --max_prompt_length {_LONGEST_PROMPT}"
    names = ("test", "train", "sampled", "collected", "mbpp_prompt", "few_prompts", "prompts")
    files = {name: at / f"{name}.jsonl" for name in (*names, "submissions")}

    def measure(row: Row) -> None:
        lines.write(f"{row.slug}_evaluation", files["test"], at / row.slug, models[row], "--turns 3 -n 1")

    def grpo(row: Row, method: str, data: Path, steps: int) -> None:
        # The learning rate of the profile moves nothing in so few steps.
        settings = f"{length(steps, save_every=min(4, steps))} actor_rollout_ref.actor.optim.lr=1e-5"
        settings += f" data.max_prompt_length={_LONGEST_PROMPT} data.max_response_length={scale.max_tokens}"
        lines.train(f"{row.slug}_training", method, data, models[row.start or BASE], _run(at, row), settings)

    if arguments.model is None:
        lines.add("base_model", "Make the model's folder.", "python scripts/smollm2.py", base, makes=[base])
    line = ("bash -c", (_PROBLEMS,), "problems", arguments.mbpp, at)
    counts, made = f"{scale.test} {scale.train} {scale.sampled} {scale.collected}", [files[name] for name in names[:5]]
    lines.add("problems", "Turn MBPP into problems.", *line, counts, makes=made)
    flags, submissions = f"-n {scale.samples} --temperature 1 --top_p 1", files["submissions"]
    lines.sample("submissions", files["sampled"], submissions, base, flags)
    groups, purpose = at / "groups", "Put MBPP's programs and the samples into groups."
    judged = ("python preproc/preproc_judged.py --input_files", submissions, files["sampled"], "--responses programs")
    made_by = ("--output_dir", groups, f"--group_size {scale.group} --prompts program --model_name", base)
    seeded = f"--max_tokens 1024 --validation_share 0 --seed {arguments.seed}"
    lines.add("groups", purpose, *judged, *made_by, seeded, makes=[groups / "train.jsonl"])
    for row in (SFT, OFFLINE):
        settings = f"{_OFFLINE} data.train_batch_size={scale.groups}"
        lines.train_offline(f"{row.slug}_training", row.slug, groups, base, _run(at, row), settings)
    for row in (BASE, SFT, OFFLINE):
        measure(row)
    lines.rows("ft_rows", "single", files["train"], files["mbpp_prompt"], at / "ft_rows", models[SFT], cut)
    grpo(FT, "grpo_single_turn", at / "ft_rows", scale.ft_steps)
    measure(FT)
    lines.write("collection", files["collected"], at / "collection", ft, f"--turns 2 -n {scale.samples}")
    lines.prompts("prompts", at / "collection", files["prompts"], ft, cut)
    # The validation rows that veRL wants, though nothing is validated.
    lines.head("few_prompts", 8, files["prompts"], files["few_prompts"])
    rows, longest = at / "cobalt_rows", f"--max_prompt_length {_LONGEST_PROMPT}"
    lines.rows("cobalt_rows", "multi", files["prompts"], files["few_prompts"], rows, ft, longest)
    grpo(COBALT, "grpo_multi_turn", rows, scale.cobalt_steps)
    measure(COBALT)
    lines.report("report", {row.name: at / row.slug for row in ROWS}, at / "report")
    for row in (FT, COBALT):
        lines.curves(_run(at, row), at / "report")
    return lines


def _run(folder: Path, row: Row) -> Path:
    return folder / f"{row.slug}_training"


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for. Raises UserError if the limit is below the prompts of a training step."""
    scale, limit = Scale(), arguments.limit
    if limit is not None:
        if limit < 4:
            raise UserError(f"--limit {limit}: it must be 4 or more, the prompts of a training step")
        scale = Scale(limit, limit, limit, limit, max_tokens=64, group=2, groups=1, ft_steps=1, cobalt_steps=1)
    folder = arguments.output_dir or Path("runs") / ("real_model" if limit is None else "real_model_smoke")
    page, model = arguments.page or folder / "results.md", arguments.model
    chosen = {"--mbpp": arguments.mbpp, "--model": model, "--limit": limit, "--page": arguments.page}
    flags = tuple(word for flag, value in chosen.items() if value is not None for word in (flag, str(value)))
    lines, again = plan(folder, arguments, scale), (f"python -m {MODULE}", folder, str(arguments.seed), flags)
    lines.add("table", "Write the table.", *again, "--table", makes=[page])
    made_from = {"seed": arguments.seed, "limit": limit, "model": model and str(model)}
    return lines.study("real model", folder, made_from, f"done: {page}, and {folder / 'report'}")


def table_of(folder: Path) -> Table:
    """The table of the rows that are measured, from the folders of their runs.

    Raises UserError if the base is not measured, a file cannot be read, or the rows were not measured alike.
    """
    rows = [row for row in ROWS if row is BASE or (folder / row.slug / EVALUATION).exists()]
    runs = {row: read_run(row.name, folder / row.slug) for row in rows}
    check_comparable(list(runs.values()))
    absent = [row.name for row in ROWS if row not in rows]
    last = len(runs[BASE].metrics) - 1
    return Table(
        "real_model",
        f"Pass@1 in % on {len(runs[BASE].problems)} problems, one program for each, with its 95 % interval over"
        " problems. Gain: the difference in points to the row that training starts from, paired over problems (*: its"
        " interval leaves zero out). Minutes and generated tokens are those of training and of making its data, those"
        " of the rows before included, without starts of services. Each row is one run, and nothing is known of others."
        + (f" Not measured yet: {', '.join(absent)}." if absent else ""),
        [
            *("", "from", "first program", "gain", f"after {last} rounds", "gain"),
            *("steps", "minutes", "tokens", "tokens of evaluation"),
        ],
        [
            [
                *(row.name, row.start.name if row.start else ""),
                *(cell for turn in (0, last) for cell in _reached(runs.get(row.start or row), run, turn)),
                *(*_spent(folder, row), f"{collected(run.evaluation)[0]:,}"),
            ]
            for row, run in runs.items()
        ],
        ("row", "turn", "pass_at_1", "lower", "upper"),
        [(run.name, one.turn, one.pass_at_1, *one.interval) for run in runs.values() for one in run.metrics],
    )


def _reached(start: Run | None, run: Run, turn: int) -> tuple[str, str]:
    """Pass@1 at a turn, and its difference to the run of the row that training starts from, if that is another one."""
    reached = run.metrics[turn]
    share = f"{100 * reached.pass_at_1:.1f} ({_interval(reached.interval)})"
    if start is None or start is run:
        return share, ""
    change = change_between(start, turn, run, turn)
    return share, f"{100 * change.difference:+.1f}{'*' * change.clear} ({_interval(change.interval)})"


def _interval(bounds: tuple[float, float]) -> str:
    return " to ".join(f"{100 * bound:.1f}" for bound in bounds)


def _spent(folder: Path, row: Row) -> list[str]:
    """Steps of training, minutes, and generated tokens of a row."""
    data = [name for origin in row.origins for name in origin.data]
    seconds, steps = command_seconds(folder, data), 0
    tokens: float = collected(folder / "collection" / EVALUATION)[0] if "collection" in data else 0
    if "submissions" in data:
        records = read_records(folder / "submissions.jsonl")
        tokens += sum(sum(filter(None, record["completion_tokens"])) for record in records)
    for run in (_run(folder, origin) for origin in row.origins):
        trained = [metrics for step, metrics in read_metrics(run) if step > 0]
        steps += len(trained)
        seconds += training_seconds(run, len(trained))
        tokens += math.prod(batch_of(run)) * sum(metrics.get("response_length/mean", 0.0) for metrics in trained)
    return [f"{steps}", f"{seconds / 60:.0f}", f"{tokens:,.0f}"]


def main(arguments: Arguments) -> int:
    """List the study, run it, or write its table; returns the exit code."""
    planned = study(arguments)
    return arguments.finish(planned, lambda page: write_page(page, MODULE, [("Results", table_of(planned.folder))]))


if __name__ == "__main__":
    run_script(Arguments, main)
