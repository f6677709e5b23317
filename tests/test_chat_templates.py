"""From data to evaluation under chat templates of the form of Qwen3's and R1-Distill's: each rule, by the real code.

With `COBALT_HUB_TOKENIZERS="Qwen/Qwen3-8B deepseek-ai/DeepSeek-R1-Distill-Llama-8B"` (names or folders) the same tests
run on those models' tokenizers. A model whose template the reward or generation does not fit is refused; what is said
about it is tested too.
"""

import os
from dataclasses import dataclass
from importlib import resources
from types import SimpleNamespace

import pytest
from chat_tokenizers import END_OF_TEXT, END_OF_TURN, FORMS, make_tokenizer, save_policy
from pyarrow import parquet
from support import FakeEngine, FakeJudge, changed, composed, refused_training, square_problem, write_lines
from test_selection import settings_of
from test_training import row as training_row
from test_training import write_rows

from cobalt.engine.vllm_engine import render
from cobalt.episode import first_messages, history_text, load_prompts, program_of
from cobalt.episode.chat_template import end_of_turn, opened_thinking, template_arguments
from cobalt.episode.token_count import PromptTokenCounter, load_tokenizer
from cobalt.problems.problem import Problem
from cobalt.reward import RewardSettings, program_to_judge
from cobalt.reward.offline import OfflineSettings
from cobalt.rollout.evaluate import TurnsSettings, evaluate_turns
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.selection.processing import ProcessingSettings, select_prompts
from cobalt.selection.verl_rows import MultiTurnRowsSettings, convert_multi_turn
from cobalt.stage.errors import UserError
from cobalt.stage.records import read_records
from cobalt.training.configuration import TrainingSettings
from cobalt.training.launch import deciding
from cobalt.training.offline_tokens import load_groups
from cobalt.training.templates import choose_thinking, opened_by_template

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

HUB = os.environ.get("COBALT_HUB_TOKENIZERS", "").split()
MODELS = [
    *FORMS,
    *(HUB or [pytest.param("hub", marks=pytest.mark.skip(reason="COBALT_HUB_TOKENIZERS names no tokenizer"))]),
]
OPENS = "reward.custom_reward_function.reward_kwargs.prompt_opens_thinking"
PROBLEMS = [square_problem(name, question=f"Print the square of a number, {name}.") for name in ("p0", "p1")]


@dataclass
class Model:
    """A tokenizer with a chat template: its name or folder, and what veRL knows the model by."""

    name: str
    tokenizer: object
    kind: str
    opened: str

    def write(self, thinking, answer=None):
        """Text that the model generates: its thinking, cut off unless there is an answer."""
        head = "" if self.opened else "<think>\n"
        return f"{head}{thinking}" if answer is None else f"{head}{thinking}\n</think>\n\n{answer}"

    def config(self, *overrides, **choices):
        from omegaconf import OmegaConf

        long = ("data.max_prompt_length=20000", "data.max_response_length=9000")
        config = composed("data", "model", "out", *long, *overrides, **choices)  # once for all models
        OmegaConf.update(config, "actor_rollout_ref.model.path", self.name)
        OmegaConf.update(config, OPENS, bool(self.opened), force_add=True)
        return config


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    from transformers import AutoConfig, AutoTokenizer

    name = request.param
    if name in FORMS:
        name = save_policy(tmp_path_factory.mktemp("policy"), name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    kind = AutoConfig.from_pretrained(name).model_type
    text = tokenizer.apply_chat_template(CHAT[:2], tokenize=False, add_generation_prompt=True)
    return Model(name, tokenizer, kind, opened_thinking(text))


PROGRAM = "```python\nprint(int(input()) ** 2)\n```"
DRAFT = "```python\nprint('draft')\n```"
CHAT = [
    {"role": "system", "content": "Answer by a program."},
    {"role": "user", "content": "Print the square."},
    {"role": "assistant", "content": f"<think>\na {DRAFT}\n</think>\n\n{PROGRAM}"},
    {"role": "user", "content": "A test fails."},
]


# --- prompts


async def single_turn_rows(model, config, messages, ids):
    """The rows of veRL's own loop of one turn for a prompt, when the engine answers with these tokens."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
    from verl.workers.rollout.replica import TokenOutput

    asked = []

    async def generate(request_id, prompt_ids, sampling_params, **_):
        asked.append(list(prompt_ids))
        return TokenOutput(token_ids=list(ids), log_probs=[-0.5] * len(ids))

    loop = SingleTurnAgentLoop(
        DictConfigWrap(config), SimpleNamespace(generate=generate), model.tokenizer, None, None,
        DictConfigWrap(config.data), hf_model_type=model.kind,
    )  # fmt: skip
    output = await loop.run({"temperature": 1.0}, raw_prompt=messages)
    assert asked == [output.prompt_ids]
    return output


@pytest.mark.parametrize("thinking", ["default", "on", "off"])
@pytest.mark.parametrize("length", [2, 4])
async def test_every_place_makes_the_same_tokens_of_a_conversation_with_bos_at_most_once(
    model, thinking, length, tmp_path
):
    arguments, messages = template_arguments(thinking), CHAT[:length]
    tokens, opened = render(model.tokenizer, messages, thinking)
    switch = [f"+data.apply_chat_template_kwargs.{name}={str(value).lower()}" for name, value in arguments.items()]
    assert (await single_turn_rows(model, model.config(*switch), messages, [5])).prompt_ids == tokens
    assert PromptTokenCounter(model.name, arguments).count([messages]) == [len(tokens)]
    [row, other] = offline_rows(model, tmp_path, thinking, messages, opened + "x", opened + "y")
    assert row.prompt.tolist() == other.prompt.tolist() == tokens
    if bos := model.tokenizer.bos_token:
        rendered = model.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **arguments
        )
        assert tokens.count(model.tokenizer.bos_token_id) == rendered.count(bos) <= 1


def offline_rows(model, folder, thinking, messages, *texts):
    """The rows of offline training for recorded responses to a prompt."""
    first, *others = (
        {"text": text, "status": "wrong_answer", "reward": -float(index), "origin": "o", "context": []}
        for index, text in enumerate(texts)
    )
    group = {"id": "a", "problem_id": "a", "source": "s", "contrast": "any", "messages": messages}
    path = write_lines(folder / "groups.jsonl", [group | {"responses": [first, *others]}])
    [tokens] = load_groups(path, model.tokenizer, OfflineSettings("rloo"), 10**6, thinking)
    return tokens


# --- thinking in the prompt


def test_a_closed_block_is_not_an_open_one():
    prompts = {"[A]<think>\n": "<think>\n", "[A]<think>": "<think>", "[A]<think>\n\n</think>\n\n": "", "[A]": ""}
    assert {prompt: opened_thinking(prompt) for prompt in prompts} == prompts


def test_counters_with_different_template_arguments_have_different_fingerprints(tmp_path):
    folder = save_policy(tmp_path, "qwen3")
    counters = [PromptTokenCounter(folder, template_arguments(switch)) for switch in ("default", "on", "off")]
    assert len({counter.fingerprint for counter in counters}) == 3
    assert counters[0].fingerprint == PromptTokenCounter(folder).fingerprint


@pytest.mark.parametrize("form", ["qwen3", "llama"])
def test_the_lengths_that_are_checked_are_those_of_the_prompts_that_training_will_render(tmp_path, form):
    folder = save_policy(tmp_path, form)
    for split in ("train", "validation"):
        write_rows(tmp_path / f"{split}.parquet", [training_row(0, split, prompt=CHAT[:2])] * 16)

    config = composed(tmp_path, folder, tmp_path / "out", f"{OPENS}={str(form == 'llama').lower()}")

    def errors(*overrides):
        return refused_training(changed(config, *overrides))

    off = "+data.apply_chat_template_kwargs.enable_thinking=false"
    length = f"data.max_prompt_length={PromptTokenCounter(folder).count([CHAT[:2]])[0]}"
    assert errors() == errors(off) == []
    config = composed(tmp_path, folder, tmp_path / "out", f"{OPENS}={str(form == 'llama').lower()}", length)
    assert errors() == []
    assert len(errors(off)) == (form == "qwen3")
    with pytest.raises(UserError, match=r"apply_chat_template_kwargs"):
        composed(tmp_path, folder, tmp_path / "out", "data.apply_chat_template_kwargs=off")


# --- templates that cannot be used

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PARTS = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
WITHOUT_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
USABLE = {
    "shows all": (TURNS, CHAT),
    "trims": ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", CHAT),
    "shows the first message apart": ("{{ messages[0].content }}\n" + TURNS.replace("messages", "messages[1:]"), CHAT),
    "takes parts": (PARTS.replace("m.content", "([{'text': m.content}] if m.content is string else m.content)"), CHAT),
    "has a default": ({"default": TURNS, "rag": "x"}, CHAT),
    "needs no system message": (WITHOUT_SYSTEM, CHAT[1:]),
}
UNUSABLE = {
    "named, none of them the default": {"rag": TURNS, "tool_use": TURNS},
    "names a missing field": TURNS + "{{ messages[0].name.first }}",
    "divides by zero": TURNS + "{{ 1 // 0 }}",
    "does not end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "is not a template": "{% for m in messages %}",
    "wants parts": PARTS,
    "shows the first message alone": "{{ messages[0].content }}",
    "leaves the system message out": WITHOUT_SYSTEM,
    "refuses a system message": "{{ raise_exception('no system') if messages[0].role == 'system' }}" + TURNS,
}


@pytest.mark.parametrize("name", [*USABLE, *UNUSABLE])
def test_a_template_that_shows_all_texts_is_used_and_any_other_is_named_with_its_folder(tmp_path, name):
    folder, tokenizer = str(tmp_path / "the-model"), make_tokenizer("qwen3")
    tokenizer.chat_template, messages = USABLE.get(name) or (UNUSABLE[name], CHAT)
    tokenizer.save_pretrained(folder)
    loaded = SimpleNamespace(tokenizer=load_tokenizer(folder))
    for use in (
        lambda: loaded.tokenizer.decode(render(loaded.tokenizer, messages, "default")[0]),
        lambda: PromptTokenCounter(folder).count([messages]),
        lambda: offline_rows(loaded, tmp_path, "default", messages, "x", "y"),
    ):
        if name in USABLE:
            assert "A test fails." in use()
            return
        with pytest.raises(UserError) as caught:
            use()
        assert folder in str(caught.value) and "\n" not in str(caught.value)


# --- the end of a response


@pytest.mark.parametrize("form", FORMS)
def test_the_token_that_ends_a_turn_is_the_templates_whatever_the_tokenizers_own_is(form):
    tokenizer = make_tokenizer(form)
    expected = {"llama": "<|ends|>", "llama3": "<|ends|>", "gemma": "<|turn_ends|>"}.get(form, END_OF_TURN)
    assert tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer, {})) == expected
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}.{% endfor %}"
    assert end_of_turn(tokenizer, {}) == tokenizer.eos_token_id, "the template has no such token"


async def test_a_response_that_is_trained_on_ends_with_that_token_once(model, tmp_path):
    end = end_of_turn(model.tokenizer, {})
    written = model.write("a", PROGRAM)
    ids = model.tokenizer.encode(written, add_special_tokens=False)
    row = await single_turn_rows(model, model.config(), CHAT[:2], [*ids, end])
    assert row.response_ids == [*ids, end]
    # Of an engine's record: with what the prompt opened at its head, with or without the end's text.
    shown, marked = model.opened + written, model.opened + written + model.tokenizer.convert_ids_to_tokens(end)
    for one in offline_rows(model, tmp_path, "default", CHAT[:2], shown, marked):
        assert one.response.tolist() == [*ids, end]
    assert PromptTokenCounter(model.name).count_responses([written]) == [len(ids) + 1]


# --- responses


@pytest.mark.parametrize("answer", [PROGRAM, None])
def test_rollout_and_reward_find_the_same_program_and_none_in_a_thinking_that_was_cut_off(model, answer):
    written = model.write(f"a {DRAFT} " + "b" * 50, answer)
    recorded = model.opened + written
    settings = RewardSettings(prompt_opens_thinking=bool(model.opened))
    ids = [*model.tokenizer.encode(written, add_special_tokens=False), end_of_turn(model.tokenizer, {})]
    decoded = model.tokenizer.decode(ids, skip_special_tokens=True)  # as veRL's reward manager does
    program = None if answer is None else "print(int(input()) ** 2)"
    assert program_of(recorded) == program_to_judge(written, settings) == program_to_judge(decoded, settings) == program
    if answer is not None:
        assert history_text(recorded, enable_thinking=True) == PROGRAM


# --- from collection to training


HISTORIES = [
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"enable_thinking": True, "truncated_thinking": "drop"},
]


@pytest.mark.parametrize("history", HISTORIES)
async def test_training_on_partial_trajectories_and_online_episodes_show_the_prompts_that_collection_showed(
    model, tmp_path, history
):
    judge = FakeJudge(lambda code, _: code.startswith("print(int"))
    # A wrong program, a long thinking that was cut off, and twice a right program.
    written = (("a", "```python\nprint(0)\n```"), (f"b {DRAFT} " + "c" * 6100, None), ("d", PROGRAM), ("e", PROGRAM))
    answers = [model.write(*response) for response in written]
    engine = FakeEngine(lambda call: model.opened + answers[call.turn])
    files = {}
    for problem, split in zip(PROBLEMS, ("train", "validation"), strict=True):
        source = write_lines(tmp_path / f"{split}.jsonl", [problem])
        collected, evaluated = tmp_path / f"{split}_multi.jsonl", tmp_path / f"{split}_evaluated.jsonl"
        # One turn more than is cut: its prompt is the longest one of the rows.
        run = RepairSettings(source, collected, num_completions=2, seed=0, turns=3, prompts="pocket", **history)
        assert not (await repair(run, engine, judge)).failed
        assert not (await evaluate_turns(TurnsSettings(collected, evaluated), judge)).failed
        [record] = read_records(evaluated)
        assert [rates[:3] for rates in record["all_pass_rates"]] == [[0, 0, 1]] * 2, "a draft is not a program"
        files[split] = tmp_path / f"{split}_prompts.jsonl"
        cut = ProcessingSettings(evaluated, files[split], model.name, max_prompt_tokens=10**5, prompts="pocket")
        await select_prompts(cut, judge)
    rows = settings_of(tmp_path, model.name, files.values(), MultiTurnRowsSettings, 10**5)
    convert_multi_turn(rows)
    # What the engine was asked, by problem, sample and turn, as the service renders it.
    prompts = {
        (str(call.problem_id), sample, call.turn): render(model.tokenizer, conversation, "default")[0]
        for conversation, settings, call in engine.asked
        for sample in (range(settings.n) if call.sample is None else [call.sample])
    }
    seen, config = set(), model.config()
    for row in parquet.read_table(rows.local_dir / "train.parquet").to_pylist():
        info = row["extra_info"]
        # The problem alone is a prompt too, and has no sample.
        sample = (str(info["problem_id"]), info["sample"] or 0, info["turn"] or 0)
        output = await single_turn_rows(model, config, row["prompt"], [5])
        assert output.prompt_ids == prompts[sample]
        seen.add(sample[2])
    assert seen == {0, 1, 2, 3}

    end = end_of_turn(model.tokenizer, {})
    ids = [[*model.tokenizer.encode(text, add_special_tokens=False), end] for text in answers[:3]]
    asked, outputs = await online_episode(model, ids, judge, history)
    assert asked == [prompts["p0", 0, turn] for turn in range(3)]
    tokens = [zip(row.response_ids, row.response_mask, strict=True) for row in outputs]
    trained = [token for row in tokens for token, counts in row if counts]
    assert trained == [token for response in ids for token in response], "each response with its end, once"
    assert outputs[-1].extra_fields["reward_extra_info"]["acc"] == 1.0


async def online_episode(model, responses, judge, history):
    """The prompts and the rows of an episode of online training, when the engine answers with these tokens."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    from cobalt_verl.agent_loops.multi_turn import MultiTurnLoop

    asked, problem = [], Problem.parse(PROBLEMS[0])

    async def generate(request_id, prompt_ids, sampling_params):
        asked.append(list(prompt_ids))
        now = responses[len(asked) - 1]
        return TokenOutput(
            token_ids=now, log_probs=[-0.5] * len(now), extra_fields={"min_global_steps": 1, "max_global_steps": 1}
        )

    config = model.config(f"{REQUIRES}=true", "cobalt.multi_turn.turns=3", data="episodes", rollout="multi_turn")
    loop = MultiTurnLoop(
        DictConfigWrap(config), SimpleNamespace(generate=generate), model.tokenizer, None, None,
        DictConfigWrap(config.data), hf_model_type=model.kind, seeded=False, judge=judge,
    )  # fmt: skip
    episode = {"truncated_thinking": "keep", "prompts": "pocket", "public_tests": [0, 1]} | history
    outputs = await loop.run(
        {"temperature": 1.0, "logprobs": True},
        raw_prompt=first_messages(problem, load_prompts("pocket")),
        reward_model={"ground_truth": problem.tests.to_json()},
        extra_info={"id": "p0", "split": "train", "prev_best_pass_rate": 0.0, "episode": episode},
        global_steps=1, index=0, session_id=0,
    )  # fmt: skip
    return asked, outputs


# --- whether the reward requires thinking

REQUIRES = "reward.custom_reward_function.reward_kwargs.require_thinking"
OFF = "+data.apply_chat_template_kwargs.enable_thinking=false"
ASKS = [{"role": "system", "content": "Reason between <think> and </think>."}, CHAT[1]]
POCKET = resources.files("cobalt.pocket").joinpath("chat_template.jinja").read_text(encoding="utf-8")
OWN_TEMPLATES = {"plain": TURNS, "pocket": POCKET}


@pytest.mark.parametrize(
    ("form", "messages", "overrides", "required"),
    [
        ("qwen3", CHAT[:2], [], True),
        ("llama", CHAT[:2], [f"{OPENS}=true"], True),
        ("qwen3", CHAT[:2], [OFF], False),
        ("llama", CHAT[:2], [OFF, f"{OPENS}=true"], True),  # it has no such switch
        ("plain", CHAT[:2], [], False),
        ("pocket", CHAT[:2], [], True),
        ("plain", ASKS, [], True),
        ("plain", CHAT, [], True),  # an earlier answer thinks
        ("qwen3", CHAT[:2], [f"{REQUIRES}=false"], False),
        ("plain", CHAT[:2], [f"{REQUIRES}=true"], True),
    ],
)
def test_the_template_or_the_first_prompt_decides_whether_thinking_is_required(
    tmp_path, form, messages, overrides, required
):
    folder = save_policy(tmp_path, form if form in FORMS else "qwen3")
    if form in OWN_TEMPLATES:
        tokenizer = make_tokenizer("qwen3")
        tokenizer.chat_template = OWN_TEMPLATES[form]
        tokenizer.save_pretrained(folder)
    write_rows(
        tmp_path / "train.parquet",
        [training_row(0, "train", prompt=messages), training_row(1, "train", content="</think>")],
    )
    settings = TrainingSettings(tmp_path, folder, tmp_path / "out")
    paths = [f"actor_rollout_ref.model.path={folder}", f"data.train_files={tmp_path}/train.parquet"]
    config = changed(composed("data", "model", "out"), *paths, *overrides)
    sentence = choose_thinking(config)
    kwargs = config.reward.custom_reward_function.reward_kwargs
    assert kwargs.require_thinking is required
    assert "</think>" in sentence if required else "without" in sentence
    assert ("is set" in sentence) == any(REQUIRES in override for override in overrides)
    assert deciding(settings, config)["reward"]["settings"].get("require_thinking", True) is required


def test_where_the_policy_cannot_be_read_the_papers_rule_holds(tmp_path):
    config = composed(tmp_path, tmp_path / "nothing", tmp_path / "out")
    assert str(tmp_path / "nothing") in choose_thinking(config)
    assert config.reward.custom_reward_function.reward_kwargs.require_thinking is True


# --- what does not fit is refused


def refusals(folder, *overrides):
    """Errors of a check about the template; the data of these runs is missing in any case."""
    config = changed(composed("data", "model", "out"), f"actor_rollout_ref.model.path={folder}", *overrides)
    return [error for error in refused_training(config) if ".parquet" not in error]


@pytest.mark.parametrize("form", ["qwen3", "llama"])
def test_a_run_whose_reward_does_not_know_how_responses_begin_is_refused_before_it_and_in_verls_processes(
    form, tmp_path
):
    folder, opens = save_policy(tmp_path, form), form == "llama"
    right, wrong = (f"{OPENS}={str(setting).lower()}" for setting in (opens, not opens))
    assert refusals(folder, right) == []
    config = composed("data", "model", "out")
    opened = opened_by_template(make_tokenizer(form), changed(config, right))
    assert opened == ("<think>\n" if opens else "")
    [error] = refusals(folder, wrong)
    assert right in error
    with pytest.raises(UserError, match=right):
        opened_by_template(make_tokenizer(form), changed(config, wrong))


@pytest.mark.parametrize(
    ("form", "options", "named"),
    [
        # Its generation would not stop at the end of a turn.
        *(("base", {"generation": ends}, (END_OF_TURN, "generation_config.json")) for ends in (None, [END_OF_TEXT])),
        ("base", {"generation": [END_OF_TEXT, END_OF_TURN]}, None),
        # Decoding drops the thinking tags.
        ("qwen3", {"special_tags": True}, ("</think>",)),
    ],
)
def test_a_model_whose_responses_would_not_end_or_would_lose_their_thinking_is_refused(tmp_path, form, options, named):
    errors = refusals(save_policy(tmp_path, form, **options))
    assert len(errors) == (named is not None)
    assert all(word in errors[0] for word in named or ())
