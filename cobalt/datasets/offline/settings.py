"""The settings of the stages that make groups for offline training; docs/offline_rl.md says which are the paper's."""

import math
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Literal

import pydantic.dataclasses
import tyro

from cobalt.datasets.offline.groups import Contrast, Status
from cobalt.episode import TemplateThinking
from cobalt.stage.errors import UserError
from cobalt.stage.run import READ, check_ranges

TRAIN, VALIDATION, PROBLEMS = "train", "validation", "problems"
"""The results by the names of their files."""


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class RewardLevels:
    """Reward of each status. The paper's are not known; these are CodeRL's four levels."""

    accepted: float = 1.0
    """All tests passed."""
    presentation_error: float = -0.3
    """Right but for white space or layout."""
    wrong_answer: float = -0.3
    time_limit: float = -0.6
    memory_limit: float = -0.6
    output_limit: float = -0.6
    runtime_error: float = -0.6
    compile_error: float = -1.0
    """Not a program."""
    no_code: float = -1.0
    """A response without a program (only in results of models)."""
    runtime_bonus: float = 0.0
    """Added to an accepted submission of CodeNet, times the share of its problem's accepted ones that took longer."""

    def __post_init__(self) -> None:
        """Raise UserError if a reward is not finite, the bonus negative, or another status worth the accepted one's."""
        if not all(math.isfinite(getattr(self, level.name)) for level in fields(self)) or self.runtime_bonus < 0:
            raise UserError("--rewards must be finite numbers, and rewards.runtime_bonus 0 or more")
        if max(self.of(status) for status in Status if status is not Status.ACCEPTED) >= self.accepted:
            raise UserError("--rewards: every other status must be below rewards.accepted")

    def of(self, status: Status) -> float:
        """The reward of a status, without the bonus."""
        return float(getattr(self, status.value))


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Settings by which groups are made, whatever their source."""

    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder for train.jsonl and validation.jsonl (groups), each with its manifest next to it as .run.json."""
    group_size: int = 4
    """Responses of a group (paper: 4, which did better than 8)."""
    contrast: Contrast = "required"
    """required: each group gets an accepted program and one that is not (paper). any: groups are dealt at random from
    all programs of a problem, and max_accepted does not hold (an ablation)."""
    max_accepted: int = 50
    """Maximum number of accepted programs of a problem (of later turns: at one turn); a seeded choice (paper)."""
    near_duplicates: float = 0.8
    """From which similarity (Jaccard, of runs of five tokens) a program is left out as a near duplicate; above 1: none
    is."""
    model_name: str | None = None
    """The policy, a Hugging Face id or a folder, whose tokenizer measures prompts and responses. Default: no limit of
    length."""
    chat_template_thinking: TemplateThinking = "default"
    """With model_name, that template's switch enable_thinking: on, off, or default (not passed)."""
    max_tokens: int = 2048
    """With model_name, most tokens of a prompt with a response and its end token (paper: length 2048)."""
    validation_share: float = 0.05
    """Share of the problems for validation.jsonl, 0 to below 1; 0: no such file. Problems with similar statements are
    in the same file."""
    evaluation_files: Annotated[tuple[Path, ...], READ] = ()
    """Problems (JSONL) that models will be evaluated on; problems with similar statements are left out."""
    similarity: float = 0.5
    """From which share of the shorter statement that is in the longer two statements are similar, above 0 to 1."""
    prompts: str = "program"
    """Prompt set that words the problems: program (asks for the program alone), paper, pocket, or a folder. Responses
    of multi-turn results keep the prompts of their conversations."""
    rewards: RewardLevels = field(default_factory=RewardLevels)
    """Reward of each status."""
    seed: int = 42
    """Seed of the choice of programs, of the groups and of the split."""

    @property
    def results(self) -> list[Path]:
        """The files that the stage writes: the groups, and their problems."""
        names = [TRAIN, *([VALIDATION] if self.validation_share else []), PROBLEMS]
        return [self.output_dir / f"{name}.jsonl" for name in names]

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        check_ranges(
            self,
            ("group_size", self.group_size >= 2, "2 or more"),
            ("max_accepted", self.max_accepted >= 1, "1 or more"),
            ("max_tokens", self.max_tokens >= 1, "1 or more"),
            ("near_duplicates", self.near_duplicates > 0, "above 0"),
            ("similarity", 0 < self.similarity <= 1, "above 0 and at most 1"),
            ("validation_share", 0 <= self.validation_share < 1, "0 or more and below 1"),
        )


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedSettings(GroupSettings):
    """Make groups of judged programs from results of this project or from APPS-like files, for offline training.

    A file is recognised by the fields of its records: an evaluated multi-turn result (raw_responses, conversations), a
    single-turn result (exec_results), or problems with recorded programs (human_solutions, generated_solutions).
    """

    input_files: Annotated[tuple[Path, ...], tyro.conf.arg(aliases=["-i", "--input_file"]), READ]
    """The judged programs (JSONL). Several files about the same problems, such as the results of several models or
    temperatures, are one pool of programs."""
    responses: Literal["as_written", "programs", "turns"] = "as_written"
    """Of a result of a model: its first responses as it wrote them (as_written), the programs of all its turns alone
    (programs), or the responses of all its turns as it wrote them, each with its context (turns)."""
    rewards_from: Literal["status", "recorded"] = "status"
    """The level of the status, or Cobalt's reward from the recorded pass rates of a result: correctness, improvement
    over the best program of the context, and form."""
    require_thinking: Literal["auto", "true", "false"] = "auto"
    """With rewards_from recorded, whether a response without thinking tags has a flaw of the form. auto: yes if any
    response of the first record of any file has a tag."""
    source: str = "judged"
    """Name of the data set in the groups."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        super().__post_init__()
        if not self.input_files:
            raise UserError("no input is named: give the files of judged programs by --input_files")
        if self.rewards_from == "recorded" and self.responses == "programs":
            raise UserError("recorded rewards are about whole responses, and responses is programs: give turns")
        if self.rewards_from == "recorded" and self.rewards != RewardLevels():
            raise UserError("rewards_from is recorded: --rewards are levels of statuses, so leave them out")
