"""Thinking from collection to training, under chat templates that behave like those of the paper's two models.

Qwen3's template lets the model think unless it is told not to, and the model opens `<think>` itself. R1-Distill's knows
no switch and opens `<think>` in the prompt, so that responses start inside their thinking.
"""

import itertools
import json

import pytest
from support import RefusingJudge, square_problem, write_lines

from cobalt.engine import Completion
from cobalt.episode import history_text, program_of
from cobalt.episode.chat_template import head_of_responses, opened_thinking, template_arguments
from cobalt.episode.token_count import PromptTokenCounter, load_tokenizer
from cobalt.reward import RewardSettings, compute_reward, program_to_judge
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import manifest_path
from cobalt.stage.records import read_records

QWEN3 = (
    "{% for m in messages %}[{{ m.role }}]"
    "{{ m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
R1_DISTILL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "[U]{{ m.content }}{% else %}[A]{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[A]<think>\n{% endif %}"
)
SWITCHES = ["default", "on", "off"]
PROGRAM = "```python\nprint(int(input()) ** 2)\n```"
DRAFT = "```python\nprint('draft')\n```"
CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": f"<think>\nt\n</think>\n\n{PROGRAM}"},
    {"role": "user", "content": "f"},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tokenizer of each template, one token a character; like Llama's it adds `<s>` where it may."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    characters = ["<s>", "</s>", "\n", *map(chr, range(32, 127))]
    vocabulary = {character: place for place, character in enumerate(characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="?")
    places = {}
    for name, template in (("qwen3", QWEN3), ("r1_distill", R1_DISTILL)):
        tokenizer.chat_template = template
        places[name] = str(tmp_path_factory.mktemp("tokenizers") / name)
        tokenizer.save_pretrained(places[name])
    return places


def load(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", ["qwen3", "r1_distill"])
@pytest.mark.parametrize("thinking", SWITCHES)
def test_collection_counting_and_training_render_the_same_prompt(folders, name, thinking):
    from cobalt.engine.vllm_engine import render

    tokenizer = load(folders[name])
    for length in (2, 4):
        tokens, _ = render(tokenizer, CHAT[:length], thinking)
        # As veRL renders a row, with data.apply_chat_template_kwargs.
        training = tokenizer.apply_chat_template(
            CHAT[:length], add_generation_prompt=True, return_dict=False, **template_arguments(thinking)
        )
        assert tokens == training
        assert PromptTokenCounter(folders[name], template_arguments(thinking)).count([CHAT[:length]]) == [len(tokens)]
        assert tokens.count(tokenizer.bos_token_id) == (name == "r1_distill")


def test_the_switch_is_not_passed_by_default_so_that_qwen3_thinks(folders):
    from cobalt.engine.vllm_engine import render

    tokenizer = load(folders["qwen3"])
    prompts = {s: "".join(tokenizer.convert_ids_to_tokens(render(tokenizer, CHAT, s)[0])) for s in SWITCHES}
    assert prompts["default"] == prompts["on"]
    assert prompts["default"].endswith("[user]f[end][assistant]")
    assert prompts["off"] == prompts["on"] + "<think>\n\n</think>\n\n"
    assert template_arguments("default") == {}


@pytest.mark.parametrize("thinking", SWITCHES)
def test_the_tag_that_a_template_opened_is_put_at_the_head_of_the_response(folders, thinking):
    from cobalt.engine.vllm_engine import render

    opened = {name: render(load(folder), CHAT, thinking)[1] for name, folder in folders.items()}
    assert opened == {"qwen3": "", "r1_distill": "<think>\n"}
    for name, folder in folders.items():
        assert bool(head_of_responses(load_tokenizer(folder), template_arguments(thinking))) is bool(opened[name])


def test_a_closed_block_is_not_an_open_one():
    assert opened_thinking("[A]<think>\n") == "<think>\n"
    assert opened_thinking("[A]<think>") == "<think>"
    assert opened_thinking("[A]<think>\n\n</think>\n\n") == ""
    assert opened_thinking("[A]") == ""


def test_counters_with_different_template_arguments_have_different_fingerprints(folders):
    counters = [PromptTokenCounter(folders["qwen3"], template_arguments(switch)) for switch in SWITCHES]
    assert len({counter.fingerprint for counter in counters}) == 3
    assert counters[0].fingerprint == PromptTokenCounter(folders["qwen3"]).fingerprint


# What a model writes after its prompt: (Qwen3, R1-Distill) for a finished response and for one that was cut off.
WRITTEN = {
    "finished": (f"<think>\nt {DRAFT}\n</think>\n\n{PROGRAM}", f"t {DRAFT}\n</think>\n\n{PROGRAM}"),
    "cut off": (f"<think>\nt {DRAFT}\n" + "a" * 7000, f"t {DRAFT}\n" + "a" * 7000),
}


@pytest.mark.parametrize(("name", "place"), [("qwen3", 0), ("r1_distill", 1)])
@pytest.mark.parametrize("kind", WRITTEN)
def test_collection_and_training_find_the_same_program_in_a_response(folders, name, place, kind):
    from cobalt.engine.vllm_engine import render

    written = WRITTEN[kind][place]
    recorded = render(load(folders[name]), CHAT[:2], "default")[1] + written
    program = "print(int(input()) ** 2)" if kind == "finished" else None
    assert program_of(recorded) == program
    # Training gets what the model wrote, and the check before it demands that this setting fits the template.
    settings = RewardSettings(prompt_opens_thinking=bool(head_of_responses(load_tokenizer(folders[name]), {})))
    assert program_to_judge(written, settings) == program
    if program is not None:
        assert compute_reward(written, 1.0, settings=settings).form.flaw is None
        assert history_text(recorded, enable_thinking=True) == PROGRAM


class Writer:
    """An engine that answers with fixed texts, whatever the conversation."""

    def __init__(self, *texts):
        self.texts = itertools.cycle(texts)
        self.seen = []

    async def generate(self, conversation, settings, call):
        self.seen.append([dict(message) for message in conversation])
        return [Completion(text=next(self.texts), finish_reason="stop") for _ in range(settings.n)]

    async def describe(self):
        return {}


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ({"enable_thinking": True}, ("<think>\n" + "a" * 7000)[:6000]),
        ({"enable_thinking": True, "truncated_thinking": "drop"}, ""),
        ({}, "<think>\n" + "a" * 7000),
    ],
)
async def test_the_next_turn_is_shown_the_beginning_of_a_thinking_that_was_cut_off(tmp_path, flags, shown):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0)])
    run = RepairSettings(problems, tmp_path / "m.jsonl", num_completions=1, seed=0, turns=1, **flags)
    engine = Writer("<think>\n" + "a" * 7000)
    assert not (await repair(run, engine, RefusingJudge())).failed
    assert engine.seen[1][2] == {"role": "assistant", "content": shown}
    [record] = read_records(run.output_file)
    assert record["conversations"][0][2]["content"] == shown  # and the prompts of training are cut from these
    assert record["raw_responses"][0] == ["<think>\n" + "a" * 7000]


async def test_a_result_is_not_resumed_under_another_history(tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0)])
    settings = {"num_completions": 1, "seed": 0}
    first = RepairSettings(problems, tmp_path / "m.jsonl", **settings, turns=0, enable_thinking=True)
    await repair(first, Writer("x"), RefusingJudge())
    others = [
        {"enable_thinking": False},
        {"enable_thinking": True, "truncated_thinking": "drop"},
        {"enable_thinking": True, "chat_template_thinking": "off"},
    ]
    for other in others:
        run = RepairSettings(problems, tmp_path / "m.jsonl", **settings | {"turns": 0} | other)
        with pytest.raises(UserError):
            await repair(run, Writer("x"), RefusingJudge())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "r1_distill"])
def test_training_is_refused_where_the_reward_does_not_know_how_responses_begin(folders, tmp_path, name):
    import pyarrow
    from pyarrow import parquet
    from transformers import Qwen3Config

    from cobalt.training.checks import check
    from cobalt.training.configuration import TrainingSettings, compose

    Qwen3Config(vocab_size=98, max_position_embeddings=4096).save_pretrained(folders[name])
    row = {
        "data_source": "d",
        "prompt": CHAT[:2],
        "reward_model": {"style": "rule", "ground_truth": square_problem(0)["test_cases"]},
        "extra_info": {"index": 0, "prev_best_pass_rate": 0.0},
    }
    for split in ("train", "validation"):
        parquet.write_table(pyarrow.Table.from_pylist([row] * 16), tmp_path / f"{split}.parquet")

    def errors(*overrides):
        run = TrainingSettings(tmp_path, folders[name], tmp_path / "out", overrides=overrides)
        return check(compose(run)).errors

    setting = "reward.custom_reward_function.reward_kwargs.prompt_opens_thinking"
    right, wrong = ("true", "false") if name == "r1_distill" else ("false", "true")
    assert errors(f"{setting}={right}") == []
    [error] = errors(f"{setting}={wrong}")
    assert f"{setting}={right}" in error
    # The lengths that are checked are those of the prompts that veRL will render.
    told = errors(f"{setting}={right}", "+data.apply_chat_template_kwargs.enable_thinking=false")
    assert told == []
    length = PromptTokenCounter(folders[name]).count([CHAT[:2]])[0]
    longer = errors(
        f"{setting}={right}",
        f"data.max_prompt_length={length}",
        "+data.apply_chat_template_kwargs.enable_thinking=false",
    )
    assert len(longer) == (2 if name == "qwen3" else 0)  # one for each file
    assert len(errors("data.apply_chat_template_kwargs=off")) == 1


async def test_a_result_from_before_the_switch_is_not_resumed(tmp_path):
    # A manifest without the switch is of a run in which one flag decided both the template's switch and the history.
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(1)])
    run = RepairSettings(problems, tmp_path / "m.jsonl", num_completions=1, seed=0, turns=0, enable_thinking=True)
    await repair(run, Writer("x"), RefusingJudge())
    manifest = json.loads(manifest_path(run.output_file).read_text())
    del manifest["arguments"]["truncated_thinking"]
    del manifest["arguments"]["generation"]["chat_template_thinking"]
    manifest["arguments"]["generation"]["enable_thinking"] = manifest["arguments"].pop("enable_thinking")
    manifest_path(run.output_file).write_text(json.dumps(manifest))
    with pytest.raises(UserError):
        await repair(run, Writer("x"), RefusingJudge())
