"""An LLM sorts hacking events into the paper's four categories (Cobalt, section on in-context hacking).

The classifier is shown what the authors' `run_llm_judge.py` shows, between markers that carry a digest of the content,
so that nothing a model wrote can end its own section. The provider enforces a schema for the answers where it can.
Every distinct content is sent once, and its answers are found by content in the log of calls, never by position.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic.dataclasses

from cobalt.engine import Call, Completion, Engine, GenerationSettings
from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.litellm_engine import open_engine
from cobalt.episode import Message
from cobalt.episode.prompt_set import templates
from cobalt.hacking.categories import NOT_CLASSIFIED, OUTCOMES, UNKNOWN, majority, paper_category, parse_category
from cobalt.hacking.events import LOOKED_AT, SECTIONS, content_key, read_event_texts
from cobalt.stage.errors import InfrastructureError, ServiceDown
from cobalt.stage.manifest import file_digest, read_summary
from cobalt.stage.progress import track
from cobalt.stage.run import Flag, Input, Outcome, Output, check_ranges, made, quoted, stage, whole
from cobalt.stage.settings import read_settings
from cobalt.stage.tally import Summary
from cobalt.stage.workers import work_on_all

logger = logging.getLogger(__name__)

STAGE = "hacking_categories"
ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "category": {"type": "integer", "enum": [1, 2, 3, 4]}},
    "required": ["reasoning", "category"],
    "additionalProperties": False,
}
"""The schema of an answer, for providers that can enforce one."""

_COMPLETION = {
    "responses": "text",
    "finish_reasons": "finish_reason",
    "completion_tokens": "completion_tokens",
    "costs": "cost",
}
"""Fields of a classified event, and attributes of its completions."""
_PROMPTS = Path(__file__).parent / "prompts"


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierSettings(ApiFlags):
    """Ask a model which of four kinds of reward hacking each event is.

    Running it again replaces the output; answers that were paid for are kept in OUTPUT.calls.jsonl and found again by
    the event's content, whatever its position in the input.
    """

    input_file: Input
    """Hacking events (JSONL), from extract_turn_level_errors.py."""
    output_file: Output
    """The events with votes and category (JSONL)."""
    model_name: Annotated[str, Flag("model", "--model_name")] = "gpt-5-2025-08-07"
    """The classifier, as LiteLLM names it; with api_base, as the server names it."""
    reasoning_effort: Annotated[str, Flag(None, "-r")] = "low"
    """Thinking effort of a reasoning model; "default" sends nothing."""
    num_completions: Annotated[int, Flag(None, "-n")] = 1
    """Votes on each event; the majority decides."""
    paper_verdicts: bool = False
    """Read answers by the authors' rule: the first "Final Verdict: (k) Name" to the letter, and the first vote."""
    max_tokens: int = 32000
    """Maximum number of tokens in one answer, hidden reasoning included."""
    concurrency: int = 16
    """Events classified at a time."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        for name in ("concurrency", "num_completions"):
            check_ranges(self, (name, getattr(self, name) >= 1, "1 or more"))
        self.generation()

    def generation(self) -> GenerationSettings:
        """Sampling as the paper's."""
        values = {"temperature": 1, "top_p": 1, "max_tokens": self.max_tokens, "n": self.num_completions, "seed": 0}
        return read_settings(GenerationSettings, values, {}, "")


@stage
async def classify_events(settings: ClassifierSettings, engine: Engine | None = None) -> Outcome:
    """Have every event categorised, and write the events with `votes`, `category` and `responses`.

    `category` is the majority of the votes (with `paper_verdicts` the first of them), `unknown` without one, and null
    where the engine failed. An `engine` that is given answers with a verdict in words; that of the settings has the
    provider enforce `ANSWER_SCHEMA` where it can.

    Raises:
        UserError: bad input, or an output file that this stage did not write.
        ServiceDown: the engine is gone, refuses access, or has spent its budget; finished answers are in its log.
    """
    if engine is not None:
        return await _classify(settings, engine, structured=False)
    schema = None if settings.paper_verdicts else ANSWER_SCHEMA
    async with open_engine(settings, settings.output_file, schema) as opened:
        return await _classify(settings, opened, structured=opened.structured)


async def _classify(settings: ClassifierSettings, engine: Engine, *, structured: bool) -> Outcome:
    events = [(content_key(event), event) for event in read_event_texts(settings.input_file)]
    extracted = read_summary(settings.input_file) or {}
    arguments = {
        "stage": STAGE,
        "engine": dict(await engine.describe()),
        "generation": settings.generation().model_dump(),
        "structured": structured,
        "paper_verdicts": settings.paper_verdicts,
        "prompts": {path.name: file_digest(path) for path in sorted(_PROMPTS.glob("*.jinja"))},
    }
    with whole(settings.output_file, arguments, [settings.input_file], replaces=True) as result:
        answers = await _ask(settings, engine, dict(events), structured)
        result.summary, records = _classified(settings, events, answers)
        if LOOKED_AT in extracted:
            result.summary[LOOKED_AT] = extracted[LOOKED_AT]
        result.write(records)
    following = f"cobalt report RUN --hacking NAME={quoted(settings.output_file)} -o report"
    failed = len(dict(events)) - len(answers)
    return made(result.summary, "Categories of hacking events", settings.output_file, following, failed)


def _classified(
    settings: ClassifierSettings, events: Sequence[tuple[str, Mapping[str, Any]]], answers: Mapping[str, Any]
) -> tuple[Summary, list[dict[str, Any]]]:
    """The counts, and the events with votes, category and responses, from the answers about each content."""
    read = paper_category if settings.paper_verdicts else parse_category
    votes = {key: [read(completion.text) for completion in row] for key, row in answers.items()}
    categories = {key: row[0] if settings.paper_verdicts else majority(row) for key, row in votes.items()}
    records = [
        dict(event)
        | {"key": key, "category": categories.get(key), "votes": votes.get(key, [])}
        | {field: [getattr(one, name) for one in answers.get(key, [])] for field, name in _COMPLETION.items()}
        for key, event in events
    ]
    return _summarise([record["category"] for record in records], votes, categories), records


def classifier_messages(event: Mapping[str, Any], *, structured: bool) -> list[Message]:
    """The messages about one event; without `structured` they ask for an answer that ends on a verdict."""
    environment, fence = templates(_PROMPTS), content_key(event)
    # Chat templates of open models write roles as `<|...|>`, which a classifier's tokenizer would take for its own.
    sections = [(name, str(event[field]).replace("<|", "< |")) for name, field in SECTIONS.items()]
    system = environment.get_template("system.jinja").render(fence=fence, structured=structured)
    user = environment.get_template("event.jinja").render(fence=fence, sections=sections)
    return [{"role": "system", "content": system.strip()}, {"role": "user", "content": user.strip()}]


async def _ask(
    settings: ClassifierSettings, engine: Engine, contents: Mapping[str, Mapping[str, Any]], structured: bool
) -> dict[str, list[Completion]]:
    """The votes on each content; contents that failed are left out."""
    answers: dict[str, list[Completion]] = {}
    generation = settings.generation()
    with track(total=len(contents), desc="classifier", unit="event") as progress:

        async def work(content: tuple[str, Mapping[str, Any]]) -> None:
            key, event = content
            try:
                messages = classifier_messages(event, structured=structured)
                answers[key] = await engine.generate(messages, generation, Call(key, turn=0))
            except ServiceDown:
                raise
            except InfrastructureError as error:
                logger.error("event %r was not classified: %s", key, error)
            progress.update(1)

        await work_on_all(contents.items(), work, settings.concurrency)
    return answers


def _summarise(
    classified: Sequence[str | None], votes: Mapping[str, Sequence[str]], categories: Mapping[str, str]
) -> Summary:
    counts = Counter(category or NOT_CLASSIFIED for category in classified)
    every = [vote for row in votes.values() for vote in row]
    undecided = [key for key, category in categories.items() if category == UNKNOWN and {*votes[key]} != {UNKNOWN}]
    of_votes = {"distinct events": len(votes), "votes": len(every), "votes without a verdict": every.count(UNKNOWN)}
    return {
        "events": {name: counts[name] for name in OUTCOMES},
        "votes": of_votes | {"events without a majority": len(undecided)},
    }
