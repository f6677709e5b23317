"""Conversations: the program of a response, prompts from files, the rules of repair, and records of result files."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FakeJudge, result_of, square_problem, trajectories_of, trajectory_record, write_lines

from cobalt.episode import (
    ALL_PUBLIC_PASSED,
    extract_code,
    first_messages,
    history_text,
    load_prompts,
    program_of,
    split_thinking,
)
from cobalt.episode.episode import Episode, judge_response
from cobalt.episode.record import (
    axes_are_known,
    decode_first_turns,
    decode_responses,
    decode_trajectories,
    encode_evaluation,
    encode_multi_turn,
    encode_single_turn,
    read_trajectories,
)
from cobalt.episode.trajectory import Trajectory, Turn
from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.problems.problem import Problem
from cobalt.stage.errors import InfrastructureError, UserError

CODE_LINES = st.lists(
    st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="`~")), max_size=8
)


@given(lines=CODE_LINES, info=st.sampled_from(["", "python", "python3", "py", "Python ", 'c++ title="x"']))
def test_code_in_one_fenced_block_is_extracted_as_written(lines, info):
    code = "\n".join(lines)
    answer = f"Text before.\n\n```{info}\n{code}\n```\nText after."
    assert extract_code(answer) == code.rstrip()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        # The simplest forms are in test_fidelity.py.
        ("no block at all", None),
        ("```python\nfirst\n```\ntext\n```python\nlast\n```", "last"),
        ("````python\ndoc = '''\n```\n'''\n````", "doc = '''\n```\n'''"),
        ("~~~python\nx = '```'\n~~~", "x = '```'"),
        ("~~~ `python`\nx = 1\n~~~", "x = 1"),
        ("1. Do it:\n\n     ```python\n     if x:\n         y()\n     ```", "if x:\n    y()"),
        ("The program: ```python\nx = 1\n```", "x = 1"),
        ("Use `x` and ```y``` inline.", None),
        ("```python\n```", ""),
        # A line that starts with enough back-ticks closes, whatever follows them.
        ("```python\nx = 1\n`````` Done.\nMore text.", "x = 1"),
        ("````python\nx = 1\n``` three are too few\n````", "x = 1\n``` three are too few"),
        ("````python\ns = 1\n``` x ````\nMore.", "s = 1\n``` x"),
        ("~~~python\nx = 1\n~~~ Done.\n~~~", "x = 1\n~~~ Done."),
        # Only a line that starts with them and `python` begins the program anew.
        ("```python\nold\n  ```python3\n  new\n  ```", "new"),
        ("```\nExample:\n```python\nnew\n```\nDone.", "new"),
        ("```python\nold\n```py\nprose", "old"),
        ("```python\nold\n```Python\nprose", "old"),
        ("```python\nold\nsee ```python\n```", "old\nsee ```python"),
        ("````\n```python\nx = 1\n```\n````", "```python\nx = 1\n```"),
        ("~~~\n```python\nx = 1\n```\n~~~", "```python\nx = 1\n```"),
        # A fence far to the right of the block's own is part of the program, unless nothing else closes the block.
        ("```\nx = 1\n    ```python\n    ```\n```\nDone.", "x = 1\n    ```python\n    ```"),
        ("```\n/*\n\t```\n\tf(1)\n\t```\n*/\n```", "/*\n\t```\n\tf(1)\n\t```\n*/"),
        ("~~~\n# a\n    ~~~\n# b\n~~~", "# a\n    ~~~\n# b"),
        ("  ```\n  x\n     ```\n", "x"),
        ("  ```\n  x\n      ```\n  y\n  ```\n", "x\n    ```\ny"),
        ("The program: ```python\n      x = 1\n      ```\nDone.", "      x = 1"),
        # So is a fence in a string that the program closes.
        ("```python\ns = '''\n```python\nf(1)\n```\n'''\nx = 1\n```", "s = '''\n```python\nf(1)\n```\n'''\nx = 1"),
        ('```python\ndef f():\n  """\n  ```py\n  f()```\n  """\n```', 'def f():\n  """\n  ```py\n  f()```\n  """'),
        ('~~~python\n"""\n~~~\n"""\n~~~', '"""\n~~~\n"""'),
        ('```python\n"""\n```\n"""\nx = 1', '"""\n```\n"""\nx = 1'),
        ('```python\n"""never closed\n```\nBetter:\n```python\nx = 1\n```', "x = 1"),
        ('```python\n"""never closed\n```\nBetter:\n```python\n"""doc"""\n```', '"""doc"""'),
        ("```python\n# ''' and \"\"\"\nx = '\"\"\"'\n```\nDone: '''", '# \'\'\' and """\nx = \'"""\''),
        ('```python\nx = """a\\"""\n```\n"""\n```', 'x = """a\\"""\n```\n"""'),
        # A last block that was not begun does not replace a program; an empty one that is closed does.
        ("```python\nprint(1)\n```\n```", "print(1)"),
        ("```python\nprint(1)\n```\ntext\n```python\n", "print(1)"),
        ("```python\nprint(1)\n```python\n \n", "print(1)"),
        ("```python\nprint(1)\n```\n```\n```", ""),
        ("```", ""),
    ],
)
def test_the_last_fenced_block_is_the_program(answer, code):
    assert extract_code(answer) == code


@given(st.text(alphabet="`~ab \n\r\t>", max_size=300))
def test_extraction_never_fails_and_never_invents_text(text):
    code = extract_code(text)
    assert code is None or all(line in text.replace("\r\n", "\n") for line in code.split("\n"))


HOSTILE = {
    "docstrings": "```python\n" + '"""\n```\n' * 6000,
    "open": "```python\n'''\n" + "```\n" * 12_000,
    "restarts": "```python\n" + "'''\n```python\n" * 3000 + "'''",
    "tags": "```python\n" + "x = '</think>x'\n" * 3000,
    "quotes": "```python\n" + '"' * 40_000,
    "escapes": "```python\n" + "\\'\"" * 15_000,
    "mentions": "`</think>\n" * 4000,
    # A fence that could start anywhere in the run took 5 s.
    "back-ticks": "```\n" + 24_000 * "`" + "x",
    "tildes": "~~~\n" + 24_000 * "~" + "x",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_does_not_take_quadratic_time(name):
    started = time.thread_time()
    program_of(HOSTILE[name])
    # It takes 0.05 s, a run of fence characters 2 ms; a collection of garbage may fall into it.
    assert time.thread_time() - started < (0.5 if name in ("back-ticks", "tildes") else 3)


@pytest.mark.parametrize(
    ("response", "thinking", "answer"),
    [
        ("<think>\nhm\n</think>\n\nanswer", "hm", "answer"),
        ("hm</think>answer", "hm", "answer"),
        ("plain answer", "", "plain answer"),
        ("<think>\nnever closed ```python\nx\n```", "never closed ```python\nx\n```", ""),
        ("<think>a</think> b </think> c", "a</think> b", "c"),
        ("a</think>```\nx\n```\nb </think> c", "a", "```\nx\n```\nb </think> c"),
        ("```\nx\n```\na</think> b </think> c", "```\nx\n```\na</think> b", "c"),
        ("<think>say `</think>` or '</think>' last</think>a", "say `</think>` or '</think>' last", "a"),
        ("<think>say `</think>` first", "say `</think>` first", ""),
        ("```\nprint(1)\n```</think>```\nprint(2)\n```", "```\nprint(1)\n```", "```\nprint(2)\n```"),
        ("```python\nx = 'a</think>b'\n```", "", "```python\nx = 'a</think>b'\n```"),
        ("```python\nx = 1\n</think>b", "```python\nx = 1", "b"),
        ("", "", ""),
    ],
)
def test_thinking_is_split_at_its_last_closing_tag_before_the_program(response, thinking, answer):
    assert split_thinking(response) == (thinking, answer)


TEMPLATE = "P = '''\n<think>\n</think>\n'''\nprint(P.split('</think>')[-1])  # after </think>"


@pytest.mark.parametrize("thinking", ["", "<think>t</think>\n", "t\n</think>\n", "<think>say `</think>`\n</think>\n\n"])
@pytest.mark.parametrize("program", [TEMPLATE, "print('<think>a</think>b')", "x = 1"])
@pytest.mark.parametrize("fence", ["```", "~~~"])
def test_tags_in_a_program_do_not_end_the_thinking(thinking, program, fence):
    response = f"{thinking}{fence}python\n{program}\n{fence}\n"
    assert program_of(response) == program
    if thinking:
        assert program_of(response + "What stands before </think> is a plan.") == program


def problem(**fields):
    tests = {"inputs": ["1"], "outputs": ["1"]}
    return Problem.parse({"id": 1, "question": "Print {{ it }}.", "test_cases": tests} | fields)


@pytest.mark.parametrize("name", ["paper", "pocket"])
def test_built_in_prompts_carry_question_and_feedback_verbatim(name):
    prompts = load_prompts(name)
    assert "Print {{ it }}." in prompts.first_turn("Print {{ it }}.")
    called = problem(test_cases={"fn_name": "merge", "inputs": ["1"], "outputs": ["1"]})
    assert "merge" in first_messages(called, prompts)[-1]["content"], "the function that the judge calls"
    assert "Input:\n<1>&" in prompts.feedback("Input:\n<1>&")
    assert [message["role"] for message in first_messages(problem(), prompts)] == ["system", "user"]
    own = first_messages(problem(instruction="As it is."), prompts)
    assert own[-1] == {"role": "user", "content": "As it is."}, "a problem's own instruction wins"


def write_prompts(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.jinja").write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(folder)


def test_a_folder_of_templates_can_replace_the_built_in_ones_which_an_unknown_name_is_told(tmp_path):
    folder = write_prompts(tmp_path, system="", first_turn="Q: {{ question }}", feedback="F {{ feedback }}")
    prompts = load_prompts(folder)
    assert first_messages(problem(), prompts) == [{"role": "user", "content": "Q: Print {{ it }}."}]
    assert prompts.feedback("x") == "F x"
    with pytest.raises(UserError, match="paper, pocket"):
        load_prompts("no-such-set")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"system": "s", "first_turn": "q"}, "feedback.jinja"),
        ({"system": "s", "first_turn": b"\xff", "feedback": "f"}, "first_turn.jinja"),
        ({"system": "s", "first_turn": "{{ nonsense }}", "feedback": "f"}, "first_turn.jinja.*nonsense"),
        ({"system": "\n{% if", "first_turn": "q", "feedback": "f"}, "system.jinja, line 2"),
        ({"system": "{{ 1 / 0 }}", "first_turn": "q", "feedback": "f"}, "system.jinja"),
        ({"system": "s", "first_turn": "q", "feedback": "{{ [] + feedback }}"}, "feedback.jinja"),
        ({"system": "{% include '/etc/hostname' %}", "first_turn": "q", "feedback": "f"}, "system.jinja"),
        ({"system": "{{ " + "(" * 5000 + "}}", "first_turn": "q", "feedback": "f"}, "system.jinja"),
    ],
)
def test_a_broken_prompt_set_is_refused_in_a_sentence_that_names_the_file(tmp_path, texts, message):
    with pytest.raises(UserError, match=f"{tmp_path}.*{message}") as caught:
        load_prompts(write_prompts(tmp_path, **texts))
    assert "\n" not in str(caught.value)


ATTACKS = [
    "cycler.__init__.__globals__.os.system('touch {trap}')",
    "self.__init__.__globals__.__builtins__.open('{trap}', 'w')",
    "self._TemplateReference__context.environment.loader.get_source.__globals__['os'].mkdir('{trap}')",
    "''.__class__.__mro__[1].__subclasses__()",
    "lipsum|attr('__globals__')",
    "'{{0.__class__.__mro__}}'.format(1)",
    "namespace.__init__['__glo' ~ 'bals__']",
]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("file", ["system", "first_turn", "feedback"])
def test_a_template_that_reaches_for_python_is_refused_and_does_nothing(tmp_path, file, attack):
    trap, texts = tmp_path / "ran", {"system": "s", "first_turn": "q", "feedback": "f"}
    code = "{{ " + attack.format(trap=trap) + " }}"
    with pytest.raises(UserError, match=rf"{file}\.jinja"):
        load_prompts(write_prompts(tmp_path, **texts | {file: code}))
    waiting = load_prompts(write_prompts(tmp_path, **texts | {"first_turn": f"{{% if question %}}{code}{{% endif %}}"}))
    with pytest.raises(UserError, match=r"first_turn\.jinja"):
        waiting.first_turn("a question")
    assert not trap.exists()


# --- the episode

PROBLEM = Problem.parse(square_problem(0))
PROMPTS = load_prompts("pocket")
OPENING = first_messages(PROBLEM, PROMPTS)
RESPONSE = "<think>why</think>\n```python\nprint(1)\n```"
OUTCOMES = st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=6)


def episode_of(turns, *, enable_thinking=True):
    return Episode(OPENING, PROBLEM.public_tests, PROMPTS, turns=turns, enable_thinking=enable_thinking)


@given(OUTCOMES, st.booleans())
def test_an_episode_takes_all_its_turns_and_shows_the_first_failing_test_alone(outcomes, enable_thinking):
    before, episode = list(OPENING), episode_of(len(outcomes), enable_thinking=enable_thinking)
    for number, passing in enumerate(outcomes, 1):
        assert not episode.done
        turn = episode.observe(Turn(RESPONSE, "stop", cost=0.5), result_of(*passing))
        shown = PROMPTS.feedback(ALL_PUBLIC_PASSED if all(passing) else f"test {passing.index(False)} fails")
        judged = {"public_pass_rate": sum(passing) / 2, "public_result": result_of(*passing), "feedback": shown}
        assert turn == Turn(RESPONSE, "stop", cost=0.5, **judged)
        assert episode.done == (number == len(outcomes))
        assert sum(f"test {index} fails" in shown for index in (0, 1)) == (not all(passing))
        answer = {"role": "assistant", "content": history_text(RESPONSE, enable_thinking)}
        assert episode.messages[-2:] == [answer, {"role": "user", "content": shown}]
        assert len(episode.messages) == len(OPENING) + 2 * number
    assert episode.messages[: len(OPENING)] == OPENING == before
    with pytest.raises(ValueError):
        episode.observe(Turn(RESPONSE), result_of(True, True))


async def test_a_response_without_a_program_fails_every_test_and_is_not_judged():
    turn = await episode_of(1).step(Turn("I do not know."), FakeJudge(None))
    assert (turn.program, turn.public_result, turn.public_pass_rate) == (None, ExecResult.no_code(2), 0.0)
    assert await judge_response(FakeJudge(None), "none", PROBLEM.hidden_tests) == ExecResult.no_code(2)


async def test_a_step_judges_on_the_tests_of_the_episode_and_a_failure_of_the_judge_leaves_it_as_it_was():
    answers = iter([InfrastructureError("the sandbox died"), [True, False]])
    judge, episode = FakeJudge(lambda *_: next(answers)), episode_of(1)
    with pytest.raises(InfrastructureError):
        await episode.step(Turn(RESPONSE), judge)
    assert (episode.messages, episode.done) == (OPENING, False)
    assert (await episode.step(Turn(RESPONSE), judge)).public_result == result_of(True, False)
    assert episode.done and judge.asked == [("print(1)", PROBLEM.public_tests)] * 2


# --- records

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
KINDS = st.sampled_from(list(VerdictKind))
GENERATED = {
    "finish_reason": st.sampled_from([None, "stop", "length", "prompt_too_long", "error"]),
    "prompt_tokens": st.none() | st.integers(0, 99),
    "completion_tokens": st.none() | st.integers(0, 99),
    "cost": st.none() | st.floats(0, 1),
    "error": TEXT,
    "response": TEXT,
}


@st.composite
def judged_turns(draw):
    public, hidden = (tuple(draw(st.lists(KINDS, min_size=2, max_size=2))) for _ in range(2))
    passing = [kind is VerdictKind.PASSED for kind in public]
    return Turn(
        **{name: draw(values) for name, values in GENERATED.items()},
        public_pass_rate=sum(passing) / 2,
        public_result=ExecResult(passing, [draw(TEXT), draw(TEXT)], [Verdict(kind, 0.5) for kind in public]),
        hidden_pass_rate=hidden.count(VerdictKind.PASSED) / 2,
        hidden_verdicts=hidden,
        feedback=draw(TEXT),
    )


@st.composite
def groups(draw):
    samples, turns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    trajectories = []
    for sample in range(samples):
        own = tuple(draw(judged_turns()) for _ in range(turns))
        messages = [{"role": "user", "content": "go"}]
        for turn in own:
            messages += [{"role": "assistant", "content": "kept"}, {"role": "user", "content": turn.feedback}]
        trajectories.append(Trajectory(PROBLEM, sample, messages, own))
    return tuple(trajectories)


@given(groups())
def test_what_is_written_is_read_back_as_it_was(trajectories):
    record = dict(PROBLEM.record) | encode_multi_turn(trajectories, "benign") | encode_evaluation(trajectories)
    read = json.loads(json.dumps(record))
    assert decode_trajectories(PROBLEM, read) == trajectories
    assert decode_responses(read) == [tuple(turn.response for turn in one.turns) for one in trajectories]
    turns = [one.turns[0] for one in trajectories]
    single = json.loads(json.dumps(encode_single_turn(turns, [turn.public_result for turn in turns])))
    for turn, other in zip(turns, decode_first_turns(single), strict=True):
        assert all(getattr(turn, name) == getattr(other, name) for name in GENERATED)


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("prompt_tokens", float("nan"), None),
        ("costs", 3, 3.0),
        ("costs", float("nan"), None),
        ("errors", None, ""),
        ("finish_reasons", float("nan"), None),
        ("raw_responses", "\ud800", "\ud800"),
    ],
)
def test_an_unknown_value_is_read_as_none_and_a_text_as_it_is(field, value, read):
    name = {"costs": "cost", "errors": "error", "finish_reasons": "finish_reason", "raw_responses": "response"}
    record = trajectory_record(0, [[(0, 0)]]) | {field: [[value]]}
    assert getattr(trajectories_of(record).trajectories[0].turns[0], name.get(field, field)) == read


def test_a_malformed_entry_is_named_by_file_record_field_and_index(tmp_path):
    records = [trajectory_record(identifier, [[(0, 0), (0, 0)]]) for identifier in "ab"]
    records[1]["errors"] = [[""], [5]]
    path = write_lines(tmp_path / "e.jsonl", records)
    reading = read_trajectories(path)
    assert next(reading).problem.id == "a"  # a record is read when it is its turn
    with pytest.raises(UserError) as error:
        next(reading)
    assert all(word in str(error.value) for word in (str(path), "'b'", "errors.1.0"))
    path.write_text("\n")
    with pytest.raises(UserError, match=path.name):
        list(read_trajectories(path))


def test_a_record_with_conversations_alone_has_responses_and_feedback_and_nothing_else():
    conversation = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "```python\nprint(1)\n```"},
        {"role": "user", "content": "f"},
        {"role": "assistant", "content": "no program"},
    ]
    [trajectory] = trajectories_of(square_problem(0, conversations=[conversation])).trajectories
    first, last = trajectory.turns
    assert first == Turn("```python\nprint(1)\n```", feedback="f")
    assert (first.program, last.program, last.feedback) == ("print(1)", None, None)
    assert trajectory.context(1) == conversation[:4]
    for name in ("public_pass_rates", "hidden_pass_rates"):
        with pytest.raises(UserError):
            getattr(trajectory, name)


THREE_BY_TWO = trajectory_record(0, [[(0, 0), (1, 1)], [(1, 2), (2, 2)], [(0, 1), (1, 0)]])


def others(record, *transposed):
    """The record as another project would write it, with some fields in the other order."""
    record = {name: value for name, value in record.items() if name not in ("finish_reasons", "hidden_verdicts")}
    return record | {name: [list(row) for row in zip(*record[name], strict=True)] for name in transposed}


@pytest.mark.parametrize("transposed", [(), ("all_pass_rates",), ("raw_responses", "public_pass_rates")])
def test_the_other_order_of_axes_is_read_where_lengths_tell_it(transposed):
    def figures(record):
        return [
            [(turn.response, turn.public_pass_rate, turn.hidden_pass_rate) for turn in trajectory.turns]
            for trajectory in trajectories_of(record).trajectories
        ]

    assert figures(others(THREE_BY_TWO, *transposed)) == figures(THREE_BY_TWO)


def test_axes_are_uncertain_only_where_others_have_as_many_turns_as_samples():
    square = trajectory_record(0, [[(0, 0), (1, 2)], [(1, 2), (2, 0)]])
    assert axes_are_known(trajectories_of(square)) and axes_are_known(trajectories_of(others(THREE_BY_TWO)))
    assumed = trajectories_of(others(square))
    assert not axes_are_known(assumed)
    assert [one.hidden_pass_rates for one in assumed.trajectories] == [[0, 1], [1, 0]]


NO_NUMBERS = [10**5000, -(10**5000), float("inf"), float("-inf"), True, "1", {}]
NUMBERS = ("prompt_tokens", "costs", "public_pass_rates")
MALFORMED = [
    ("raw_responses", [["a", "b", 3]] * 2),
    # Records of this project are read in their own order only.
    ("raw_responses", [["a", "b"]] * 3),
    ("all_pass_rates", [[0.5] * 3] * 2),
    ("public_pass_rates", [[0.0, 0.5, 1.5]] * 2),
    ("public_exec_results", [[None] * 3] * 2),
    ("all_pass_rates", [[0.5, "1"]] * 3),
    ("hidden_verdicts", [[["tired"], []]] * 3),
    ("prompt_tokens", [[1, 2, -3]] * 2),
    ("costs", [[0.1, None, "1"]] * 2),
    ("conversations", [[]]),
    ("conversations", [[{"role": "assistant", "content": "a"}]]),
    *((field, [[value] * 3] * 2) for field in NUMBERS for value in NO_NUMBERS),
]


@pytest.mark.parametrize(("field", "value"), MALFORMED, ids=[field for field, _ in MALFORMED])
def test_a_malformed_field_is_named(field, value):
    with pytest.raises(UserError, match=field.removesuffix("s")):
        trajectories_of(THREE_BY_TWO | {field: value})


@pytest.mark.parametrize("passing", [["no", "false"], [None, 2]])
def test_whether_a_test_passed_is_a_truth_value_or_0_or_1(passing):
    good = {"passing": [True, 1], "feedback": ["", ""], "queue_seconds": 0.5}
    assert ExecResult.from_record(good).passing == [True, True]
    with pytest.raises(UserError, match="passing"):
        ExecResult.from_record(good | {"passing": passing})


def test_fields_that_nobody_here_knows_stay_where_they_were():
    record = trajectory_record(0, [[(0, 0)]], zebra=[1], ape=None)
    record["conversations"] = [[{"name": "x", **message} for message in record["conversations"][0]]]
    group = trajectories_of(record)
    assert list(group.problem.record) == list(record)
    assert json.dumps(group.trajectories[0].messages) == json.dumps(record["conversations"][0])
