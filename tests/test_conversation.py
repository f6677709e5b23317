"""Conversations: the program of a response, what the history keeps, and prompts from files."""

import time

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.episode import extract_code, first_messages, load_prompts, program_of, split_thinking
from cobalt.problems.problem import Problem
from cobalt.stage.errors import UserError

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
        ("```python\nearlier\n```\nNow:\n```python\ncut off", "cut off"),
        ("1. Do it:\n\n     ```python\n     if x:\n         y()\n     ```", "if x:\n    y()"),
        ("The program: ```python\nx = 1\n```", "x = 1"),
        ("Use `x` and ```y``` inline.", None),
        ("```python\nx = 1\n```\nThen ```z``` inline.", "x = 1"),
        ("```python\n```", ""),
        # A line that starts with enough back-ticks closes, whatever follows them.
        ("```python\nx = 1\n``` and `x` is one\nMore text.", "x = 1"),
        ("   ```python\n   x = 1\n   ```Done.\nMore text.", "x = 1"),
        ("```python\r\nx = 1\r\n```Done.\r\nMore.\r\n", "x = 1"),
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
        ("```python\nprint(1)\n```\n```\nprint(2)", "print(2)"),
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
        ("a</think>\n```\nx\n```\nb </think> c", "a", "```\nx\n```\nb </think> c"),
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
    assert "Input:\n<1>&" in prompts.feedback("Input:\n<1>&")
    messages = first_messages(problem(), prompts)
    assert [message["role"] for message in messages] == ["system", "user"]


def test_a_problems_own_instruction_wins_over_the_template():
    messages = first_messages(problem(instruction="As it is."), load_prompts("paper"))
    assert messages[-1] == {"role": "user", "content": "As it is."}


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


def test_the_attacks_work_where_there_is_no_sandbox(tmp_path):
    trap = tmp_path / "ran"
    jinja2.Environment().from_string("{{ " + ATTACKS[0].format(trap=trap) + " }}").render()
    assert trap.exists()


def test_the_pocket_prompt_names_the_function_that_the_judge_calls():
    tests = {"fn_name": "merge", "inputs": ["1", "2"], "outputs": ["1", "2"]}
    problem = Problem.parse({"id": 1, "question": "Merge.", "test_cases": tests})
    said = first_messages(problem, load_prompts("pocket"))[-1]["content"]
    assert "merge" in said and "stdin" not in said
