"""The trajectory viewer: its data, and the page in a real headless Chromium."""

import base64
import json
import random
import re
import zlib
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest
from chromium import CHROMIUM, Chromium
from outside import assert_each_is_refused
from support import square_problem, trajectories_of, write_lines

import cobalt.report.viewer.page
from cobalt.episode import program_of
from cobalt.hacking.events import HackingEvent
from cobalt.judge import VerdictKind
from cobalt.report.viewer import __main__ as view_command
from cobalt.report.viewer.data import KINDS, SHOWN_CHARACTERS, problem_data
from cobalt.report.viewer.page import write_viewer
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import file_digest

WEB = Path(cobalt.report.viewer.page.__file__).parent / "web"
RIGHT = "<think>square it</think>\n```python\nprint(int(input()) ** 2)\n```"
DOUBLE = "<think>double it</think>\n```python\nnumber = int(input())\nprint(number * 2)\n```"  # right for 2 only
TRIPLE = "<think>triple it</think>\n```python\nnumber = int(input())\nprint(number * 3)\n```"
NO_CODE = "I do not know."
HOSTILE = (
    "</script><script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'><!-- \u2028\u2029"
    "<svg onload='window.stolen = 1'> &lt;b&gt; {{pieces}} \ud83d\ude00 \u202e"
)


def evaluated(identifier, turns, rates, **fields):
    """An evaluated record from responses and hidden pass rates of its two hidden tests, both [sample][turn]."""
    kinds = {0.0: ["wrong_answer", "time_limit"], 0.5: ["passed", "wrong_answer"], 1.0: ["passed", "passed"]}
    failed = {"passing": [True, False], "feedback": ["", "Expected Output: 9"]}
    return (
        square_problem(identifier)
        | {
            "raw_responses": [list(turn) for turn in zip(*turns, strict=True)],
            "conversations": [
                [{"role": "user", "content": "go"}]
                + [{"role": role, "content": text} for turn, response in enumerate(sample)
                   for role, text in (("assistant", response), ("user", f"retry {turn}"))]
                for sample in turns
            ],
            "public_exec_results": [[failed for _ in turns] for _ in turns[0]],
            "completion_tokens": [[7 for _ in turns] for _ in turns[0]],
            "all_pass_rates": rates,
            "hidden_verdicts": [[kinds[rate] for rate in row] for row in rates],
        }
        | fields
    )  # fmt: skip


def decoded(path, identifier):
    block = re.search(rf'id="{identifier}">([^<]*)</script>', path.read_text())
    return json.loads(zlib.decompress(base64.b64decode(block[1])))


# ---- data


def test_a_run_is_shown_as_it_was_recorded(tmp_path):
    record = evaluated(0, [[DOUBLE, RIGHT], [RIGHT, NO_CODE]], [[0.0, 1.0], [1.0, 0.5]])
    write_lines(tmp_path / "evaluation.jsonl", [record])
    assert write_viewer({"run": tmp_path}, tmp_path / "view.html") == 1
    index, piece = (decoded(tmp_path / "view.html", name) for name in ("index", "piece-0-0"))
    assert len(KINDS) == len(VerdictKind) <= 10  # each has one digit
    [figures], texts = index["problems"][0]["runs"], piece["texts"]
    assert (index["runs"], index["models"], figures["levels"]) == (["run"], [""], ["0S", "S5"])
    assert figures["tokens"] == [[7, 7], [7, 7]]
    assert piece["public"] == [["2\n", "4\n"], ["3\n", "9\n"]]
    for sample, turn in product((0, 1), repeat=2):
        shown, hidden = piece["samples"][sample][turn], record["hidden_verdicts"][sample][turn]
        parts = [texts[shown[name]] for name in ("thinking", "response") if name in shown]
        assert "".join(parts) == record["raw_responses"][turn][sample]
        kinds = {kind for place, kind in enumerate(KINDS) if figures["kinds"][sample][turn] >> place & 1}
        assert kinds == {"passed", "wrong_answer", *hidden}
        assert [KINDS[int(digit)] for digit in shown["hidden"]] == hidden
        assert (shown["public"], [texts[text] for text in shown["messages"]]) == ("01", ["", "Expected Output: 9"])
        assert (texts[shown["feedback"]], shown["tokens"]) == (f"retry {turn}", 7)
        assert shown["rate"] == record["all_pass_rates"][sample][turn]
    assert texts[piece["samples"][0][1]["program"]] == "print(int(input()) ** 2)"
    assert piece["samples"][1][1]["program"] is None
    assert [[(role, texts[text]) for role, text in opening] for opening in piece["openings"]] == [[("user", "go")]]


def piece_of(record):
    """What the page holds of a record, with its responses."""
    return problem_data(trajectories_of(record), []).piece


@pytest.mark.parametrize(
    ("thinking", "rest"),
    [
        ("<think>double it</think>\n", "print(1)"),
        ("  <think>\na</think> </think>\n\n ", "b \n"),
        ("no tag but a close</think>", "x"),
        ("<think>cut off \U0001f600", " "),
        ("", "<think></think>print(1)"),
        ("", ""),
    ],
)
def test_thinking_and_the_rest_are_the_response(thinking, rest):
    piece = piece_of(evaluated(0, [[thinking + rest]], [[0.0]]))
    entry, texts = piece["samples"][0][0], piece["texts"]
    assert (texts[entry["thinking"]] if "thinking" in entry else "", texts[entry["response"]]) == (thinking, rest)


def test_what_repeats_is_held_once_and_what_differs_or_is_long_is_marked():
    suite = {"inputs": ["x" * (SHOWN_CHARACTERS + 10)], "outputs": ["1"]}
    record = evaluated(0, [[DOUBLE] * 2, [DOUBLE] * 2], [[0.5] * 2] * 2, hidden_test_cases=suite)
    record["conversations"][1][0]["content"] = "other"
    piece = piece_of(record)
    assert len(piece["texts"]) == len(set(piece["texts"]))
    assert [[piece["texts"][text] for _, text in opening] for opening in piece["openings"]] == [["go"], ["other"]]
    assert piece["hidden"][0][0].endswith("... (10 more characters)")


def test_files_of_the_authors_without_raw_responses_and_verdicts_are_shown():
    record = evaluated(0, [[DOUBLE, RIGHT]], [[0.5, 1.0]])
    for name in ("raw_responses", "hidden_verdicts", "completion_tokens"):
        del record[name]
    piece = piece_of(record)
    first, second = piece["samples"][0]
    assert piece["texts"][second["program"]] == "print(int(input()) ** 2)"
    assert first["public"] == "01"  # the kind is inferred from the feedback
    assert "hidden" not in first and "tokens" not in first


SWAPPED = json.dumps({"inputs": ["3\n", "2\n", "1\n"], "outputs": ["4\n", "9\n", "1\n"]})
TRUE = json.dumps({"inputs": ["1\n", "2\n", "3\n"], "outputs": ["1\n", "4\n", "9\n"]})


@pytest.mark.parametrize(
    ("fields", "first", "impossible"),
    [
        ({"public_tests": "perturbed"}, ["3\n", "4\n"], [0, 1]),
        ({}, ["3\n", "4\n"], [0, 1]),  # the authors' files do not name their tests
        ({"public_tests": "benign"}, ["1\n", "1\n"], []),
    ],
)
def test_a_run_on_perturbed_tests_shows_those_and_which_are_impossible(fields, first, impossible):
    tests = {"public_test_cases": TRUE, "perturbed_public_test_cases": SWAPPED}
    piece = piece_of(evaluated(0, [[RIGHT]], [[1.0]], **tests, **fields))
    assert (piece["public"][0], piece["impossible"]) == (first, impossible)


@pytest.mark.parametrize(
    ("event", "named"),
    [
        *(((0, sample, turn, "others"), f"sample {sample}, turn {turn}") for sample, turn in ((0, 5), (3, 0), (-1, 0))),
        ((0, 0, 0, "others", "print(2)"), "sample 0, turn 0 has another program"),
    ],
)
def test_events_that_do_not_fit_the_run_are_refused(event, named):
    with pytest.raises(UserError, match=named):
        problem_data(trajectories_of(evaluated(0, [[RIGHT]], [[1.0]])), [HackingEvent(*event)])


def test_the_same_run_gives_the_same_page_of_every_script_and_of_the_published_libraries(tmp_path):
    write_lines(tmp_path / "evaluation.jsonl", [evaluated(0, [[DOUBLE, RIGHT]], [[0.5, 1.0]])])
    for name in "abb":
        write_viewer({"run": tmp_path}, tmp_path / f"{name}.html")
    page = (tmp_path / "a.html").read_text()
    assert (tmp_path / "b.html").read_text() == page
    assert (tmp_path / "a.html.run.json").exists()
    missing = {script.name for script in WEB.glob("*.js") if script.read_text() not in page}
    assert missing == {"curves.js", "rollouts.js", "watch.js"}, "those of `cobalt watch` alone"
    assert (WEB / "vendor/LICENSES.txt").read_text() in page and (WEB / "vendor/diff.min.js").read_text() in page
    notes, scripts = (WEB / "vendor/README.md").read_text(), sorted((WEB / "vendor").glob("*.js"))
    assert len(scripts) == 3
    assert all(f"| `{script.name}` |" in notes and file_digest(script) in notes for script in scripts)


def test_no_text_of_a_run_is_markup_in_the_page(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>{{pieces}}{{script}}"
    folder.mkdir()
    write_lines(folder / "evaluation.jsonl", [evaluated(HOSTILE[:-1], [[HOSTILE]], [[0.0]], question=HOSTILE)])
    write_viewer({folder.name: folder}, tmp_path / "view.html")
    page = (tmp_path / "view.html").read_text(encoding="ascii")
    assert "onerror='" not in page and "onload='" not in page
    assert "<img" not in page
    assert page.count("<script") == page.count("</script") == 4  # index, libraries, the page's own, one piece


def test_mistakes_get_one_sentence(tmp_path):
    write_lines(tmp_path / "evaluation.jsonl", [evaluated(0, [[RIGHT]], [[1.0]])])
    other = write_lines(tmp_path / "other.jsonl", [evaluated(1, [[RIGHT]], [[1.0]])])
    asked = write_lines(tmp_path / "asked.jsonl", [evaluated(0, [[RIGHT]], [[1.0]], question="?")])
    event = write_lines(tmp_path / "event.jsonl", [{"id": "other", "sample": 0, "turn": 0}])
    short = evaluated("x", [[RIGHT]], [[1.0]], raw_responses=[["a", "b"]])
    malformed = write_lines(tmp_path / "malformed.jsonl", [short])
    cases = [
        ({"runs": {"run": tmp_path / "none"}}, "none"),
        ({"runs": {"run": malformed}}, "record 'x'.*raw_responses"),
        ({"output": tmp_path / "view.txt"}, "ends in .html"),
        ({"output": tmp_path / "evaluation.jsonl/view.html"}, "cannot write"),
        ({"hacking": {"run": tmp_path / "absent"}}, "cannot read"),
        ({"hacking": {"run": event}}, "names problem 'other'"),
        ({"hacking": {"other": event}}, "hacking events are given for run 'other'"),
        ({"runs": {}}, "one run or two"),
        ({"runs": dict.fromkeys("abc", tmp_path)}, "one run or two"),
        ({"runs": {"one": tmp_path, "two": other}}, "one and two cannot be shown side by side: .* 0"),
        ({"runs": {"one": tmp_path, "two": asked}}, "one and two cannot be shown side by side: .* 0"),
    ]
    for arguments, message in cases:
        with pytest.raises(UserError, match=message):
            write_viewer(**{"runs": {"run": tmp_path}, "output": tmp_path / "view.html"} | arguments)
    assert not (tmp_path / "view.html").exists()


def test_the_command_writes_the_page_and_refuses_a_missing_run(tmp_path, capsys):
    write_lines(tmp_path / "evaluation.jsonl", [evaluated(0, [[RIGHT]], [[1.0]])])
    assert view_command.main(view_command.Arguments((str(tmp_path),), tmp_path / "view.html")) == 0
    assert "view.html" in capsys.readouterr().out and (tmp_path / "view.html").exists()
    assert_each_is_refused([("-m", "cobalt.report.viewer", tmp_path / "none")], ["none"])


def test_two_runs_may_list_their_problems_in_another_order(tmp_path):
    one = write_lines(tmp_path / "one.jsonl", [evaluated(name, [[RIGHT]], [[1.0]]) for name in "ab"])
    two = write_lines(tmp_path / "two.jsonl", [evaluated(name, [[DOUBLE]], [[0.5]]) for name in "ba"])
    assert write_viewer({"one": one, "two": two}, tmp_path / "view.html") == 2
    index = decoded(tmp_path / "view.html", "index")
    assert [problem["id"] for problem in index["problems"]] == ["a", "b"]
    assert [[run["levels"] for run in problem["runs"]] for problem in index["problems"]] == [[["S"], ["5"]]] * 2
    for run, response in enumerate((RIGHT, DOUBLE)):
        piece = decoded(tmp_path / "view.html", f"piece-{run}-0")
        assert piece["texts"][piece["samples"][0][0]["program"]] == program_of(response)


# ---- the page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(browser, tmp_path):
    """Writes records into a page, opens it and gives the browser."""

    def open_page(records, events=(), fragment="", other=None, names=("run", "other")):
        runs = {names[0]: write_lines(tmp_path / "evaluation.jsonl", records)}
        if other is not None:
            runs[names[1]] = write_lines(tmp_path / "other.jsonl", other)
        hacking = {names[0]: write_lines(tmp_path / "h.jsonl", events)} if events else None
        write_viewer(runs, tmp_path / "view.html", hacking=hacking)
        browser.open(tmp_path / "view.html", fragment)
        return browser

    return open_page


def four_problems():
    return [
        evaluated("repaired", [[DOUBLE, RIGHT], [DOUBLE, DOUBLE]], [[0.5, 1.0], [0.5, 0.5]], question="Apples."),
        evaluated("lost", [[RIGHT, TRIPLE], [NO_CODE, RIGHT]], [[1.0, 0.0], [0.0, 1.0]], question="Pears."),
        evaluated("hard", [[DOUBLE, TRIPLE], [DOUBLE, NO_CODE]], [[0.5, 0.0], [0.5, 0.0]], question="Plums."),
        evaluated("easy", [[RIGHT, RIGHT], [RIGHT, RIGHT]], [[1.0, 1.0], [1.0, 1.0]], question="Apple pie."),
    ]


def listed(browser):
    return each(browser, "#problems .id")


def text_of(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def each(browser, selector, what="textContent"):
    """The text, or another property, of each node of the page that a selector finds."""
    return browser.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.{what})")


def click(browser, selector, index=0):
    browser.evaluate(f"document.querySelectorAll({json.dumps(selector)})[{index}].click()")


def problems_in_console(browser):
    return [event for event in browser.events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]


def open_problem(browser, position, sample=0):
    browser.evaluate(f"openProblem({position}, {{ run: 0, samples: [{sample}], turn: 0 }})")


PLACE = "[index.problems[chosen.problem].id, chosen.run, chosen.samples[chosen.run], chosen.turn]"


def set_control(browser, name, value):
    field = f"byId({json.dumps(name)})"
    browser.evaluate(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('input'))")


FILTERED = [
    ("outcome", "all", ["repaired", "lost", "hard", "easy"]),
    ("outcome", "solved", ["repaired", "lost", "easy"]),
    ("outcome", "unsolved", ["repaired", "lost", "hard"]),
    ("outcome", "repaired", ["repaired", "lost"]),
    ("outcome", "regressed", ["lost"]),
    ("outcome", "hacked", ["hard"]),
    ("outcome", "all", ["repaired", "lost", "hard", "easy"]),
    ("search", "apple", ["repaired", "easy"]),
    ("search", "PIE apple", ["easy"]),
    ("search", "", ["repaired", "lost", "hard", "easy"]),
    # Together: each holds with those after it.
    ("verdict", "memory_limit", ["repaired"]),
    ("from", "1", []),
    ("verdict", "time_limit", ["lost", "hard"]),
    ("outcome", "solved", []),
    ("verdict", "any", ["repaired", "lost", "easy"]),
    ("difficulty", "MEDIUM", ["lost"]),
    ("to", "0", ["lost"]),
]


def test_filters_and_search_list_the_problems_with_such_a_trajectory(page):
    records = four_problems()
    kinds = [[["passed", "memory_limit"], ["passed", "wrong_answer"]], [["passed", "passed"]] * 2]
    records[0] |= {"hidden_verdicts": kinds, "difficulty": "HARD"}
    records[1] |= {"difficulty": "MEDIUM"}
    browser = page(records, [{"id": "hard", "sample": 1, "turn": 1, "category": "Hard Coding"}])
    assert each(browser, "#difficulty option", "value") == ["any", "EASY", "MEDIUM", "HARD"]
    for control, value, expected in FILTERED:
        set_control(browser, control, value)
        assert listed(browser) == expected, (control, value)
        assert text_of(browser, "#count").startswith(f"{len(expected)} of 4 problems")
    assert browser.evaluate("[filters.from, filters.to]") == [0, 0]
    browser.evaluate("byId('clear').click()")
    # Inside programs capitals do not matter, and nothing is a pattern; responses are not searched.
    for text, expected in (("NUMBER * 3)", ["lost", "hard"]), ("triple", []), ("", FILTERED[0][2])):
        browser.evaluate(f"searchInside({json.dumps(text)})")
        assert listed(browser) == expected


SORTED = {
    "file": ["p10", "p9", "p2", "p1"],
    "id": ["p1", "p2", "p9", "p10"],
    "first": ["p2", "p10", "p9", "p1"],
    "last": ["p2", "p9", "p10", "p1"],
    "gain": ["p9", "p2", "p1", "p10"],
    "difficulty": ["p1", "p10", "p9", "p2"],
}


def test_the_list_is_sorted(page):
    # Of four samples, those that are solved at the first turn and at the last, and a difficulty.
    values = {"p10": (1, 3, "MEDIUM"), "p9": (2, 1, "HARD"), "p2": (0, 0, "VERY_HARD"), "p1": (3, 4, "EASY")}
    records = []
    for name, (first, last, level) in values.items():
        rates = [[float(sample < first), float(sample < last)] for sample in range(4)]
        records.append(evaluated(name, [[DOUBLE, RIGHT]] * 4, rates, difficulty=level))
    browser = page(records)
    for order, expected in SORTED.items():
        set_control(browser, "sort", order)
        assert listed(browser) == expected, order
        browser.evaluate("byId('descending').click()")
        assert listed(browser) == (expected if order == "file" else expected[::-1]), order
        browser.evaluate("byId('descending').click()")


def test_figures_have_the_numbers_of_the_trajectories_that_match(page):
    browser = page(four_problems())
    # 16 programs: 7 pass everything that is hidden, but the second public test fails for all of them.
    figures = {"curve": "run: 37.5 %, 50.0 %", "verdicts": "wrong answer: 100.0 %", "tokens": "median 7, most 7"}
    for figure, shown in figures.items():
        assert shown in browser.evaluate(f"document.querySelector('#figure-{figure} svg').getAttribute('aria-label')")
    set_control(browser, "outcome", "solved")
    assert text_of(browser, "#figures-title").startswith("Figures of the 4 trajectories")
    set_control(browser, "search", "nothing has this")
    assert each(browser, "#figures svg") == []


def test_a_trajectory_shows_programs_changes_verdicts_feedback_tokens_and_hacking(page):
    events = [{"id": "hard", "sample": 0, "turn": 1, "category": "Logic Overfitting"}]
    records = four_problems()
    records[2]["conversations"][0].insert(0, {"role": "system", "content": "You repair programs."})
    tests = {"public_test_cases": TRUE, "perturbed_public_test_cases": SWAPPED, "public_tests": "perturbed"}
    results = [[{"passing": [False, True, True], "feedback": ["Expected Output: 4", "", ""]}]]
    records.append(evaluated(0, [[RIGHT]], [[1.0]], **tests, public_exec_results=results))
    browser = page(records, events, "#problem=hard&sample=0&turn=0")
    assert each(browser, "#tables details pre") == ["You repair programs.", "go"]
    first, second = (text_of(browser, f"#turn-0-{turn}") for turn in (0, 1))
    assert "number = int(input())\nprint(number * 2)" in first
    assert "50 % of hidden tests passed · 7 tokens" in first
    assert "retry 0" in first and "retry 1" in second
    assert "hacking event: logic overfitting" in second
    assert "regressed" not in second, "the program before it was wrong, too"
    assert each(browser, "#turn-0-1 .tests button") == ["0 \u2713", "1 \u00d7", "0 \u00d7", "1 L"]
    assert each(browser, "#turn-0-1 .diff > *", "tagName") == ["SPAN", "DEL", "INS"]
    changed = ["  number = int(input())", "- print(number * 2)", "+ print(number * 3)"]
    assert each(browser, "#turn-0-1 .diff > *") == changed
    click(browser, "#turn-0-1 .tests button", 1)
    shown = text_of(browser, "#turn-0-1 .test")
    assert "public test 1: wrong answer" in shown and "3" in shown and "Expected Output: 9" in shown
    browser.evaluate("setView('responses')")
    assert "print(number * 3)\n```" in text_of(browser, "#turn-0-1")
    assert browser.evaluate("document.querySelector('#turn-0-0 details').open") is False
    assert each(browser, "#turn-0-0 details pre")[0] == "<think>double it</think>\n"
    open_problem(browser, 2, sample=1)
    browser.evaluate("setView('changes')")
    assert "no program in this response" in text_of(browser, "#turn-0-1")
    open_problem(browser, 0, sample=1)
    assert "The same program as at turn 0" in text_of(browser, "#turn-0-1")
    open_problem(browser, 1)
    assert "regressed" in text_of(browser, "#title-0-1")
    open_problem(browser, 4)
    marks = []
    for test in (0, 2):
        click(browser, "#turn-0-0 .tests button", test)
        marks.append("made wrong on purpose" in text_of(browser, "#turn-0-0 .test"))
    assert marks == [True, False]
    assert problems_in_console(browser) == []


def test_model_text_is_shown_and_never_run(page):
    program = f"```python\n{HOSTILE}\n```"
    thinking = f"<think>{HOSTILE}</think>"
    texts = [[thinking + program, thinking + program + "x", f"```python\n{HOSTILE}2\n```"]]
    record = evaluated(HOSTILE, texts, [[0.0, 0.5, 0.5]], question=HOSTILE, difficulty=HOSTILE)
    record["conversations"][0][2]["content"] = HOSTILE
    record["conversations"][0][0]["content"] = HOSTILE
    record["public_exec_results"][0][0] = {"passing": [True, False], "feedback": ["", HOSTILE]}
    searched = quote(HOSTILE[:40])
    fragment = f"#search={searched}&inside={searched}"
    browser = page([record], other=[record], fragment=fragment, names=(HOSTILE, "<b>two"))
    browser.wait("filters.inside !== ''")
    for place in ("h1", "#run option:nth-child(2)", "#figures .key", "#title-0-0", "#tables h3"):
        assert "onerror='window.stolen = 1'" in each(browser, place)[0]
    assert each(browser, "h1 *, .key b") == []
    visible = HOSTILE.encode("utf-16", "surrogatepass").decode("utf-16")
    opened = ("#problem-title", "#problem > details pre", "#tables pre", "#turn-0-0 pre", "#turn-0-0 details pre")
    for place in (*opened, "#turn-1-2 ins", "#difficulty option:last-child", "#problems .id", "#problems .opening"):
        assert visible in each(browser, place)[0], place
    browser.evaluate("setView('responses')")
    click(browser, "#turn-0-0 .tests button", 1)
    for place in ("#turn-0-0 .test pre:last-of-type", "#turn-0-0 > details pre", "#turn-0-0 > .block pre"):
        assert each(browser, place), place
    assert browser.evaluate("window.stolen") is None
    injected = "#problem svg, nav svg, body img, main script, nav script, #figures script, [onerror], [onload]"
    assert each(browser, injected) == []
    assert problems_in_console(browser) == []


def test_hostile_programs_are_text_whatever_the_highlighter_sees(page):
    pieces = [
        HOSTILE,
        "</span>",
        "</pre><script>window.stolen=1</script>",
        "&#60;img&#62;",
        *"\u2028\u202e\x00\r\t\U0001f600",
    ]
    frames = ["{}", "# {}", "'{}'", '"""{}\n{}"""', "def {}(): pass", "class {}({}): {}", "@{}", ">>> {}", "0x{}"]
    generator = random.Random(0)
    programs = [frame.replace("{}", piece) for frame in frames for piece in pieces]
    programs += ["".join(generator.choices([*pieces, *"'\"#\\\n(){}[]:@=f"], k=60)) for _ in range(200)]
    programs += ["", "\n", "\n\n", "(" * 5000, "'" * 5001, "a" * 100_000, "f'{" * 500]
    browser = page(four_problems())
    drawn = browser.evaluate(f"""{json.dumps(programs)}.map((program, place, all) => {{
      const code = drawProgram(program);
      const changes = drawChanges(all[place - 1] ?? "", program);
      document.body.append(code, changes);
      const lines = [...code.querySelectorAll('.line')].map((line) => line.textContent).join('\\n');
      const nodes = [code, changes].flatMap((node) => [...node.querySelectorAll('*')]);
      code.remove(); changes.remove();
      return [lines === program, [...new Set(nodes.flatMap((node) => [node.tagName, ...node.getAttributeNames()]))]];
    }})""")
    assert [program for program, (same, _) in zip(programs, drawn, strict=True) if not same] == []
    names = {name for _, of_program in drawn for name in of_program}
    assert names <= {"PRE", "DIV", "SPAN", "INS", "DEL", "B", "class", "data-number", "data-new"}
    assert browser.evaluate("window.stolen") is None
    assert problems_in_console(browser) == []


def test_the_page_asks_for_itself_alone_and_its_policy_stops_injected_scripts_and_all_requests(page):
    browser = page(four_problems())
    requests = [event["params"]["request"]["url"] for event in browser.events
                if event["method"] == "Network.requestWillBeSent"]  # fmt: skip
    assert requests and all(url.startswith(("file://", "about:blank")) for url in requests)
    assert len([url for url in requests if url.startswith("file://")]) == 1
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.stolen = 1'>"
        "<button id=trap onclick='window.stolen = 1'>`); byId('trap').click();"
        "const added = document.createElement('script'); added.textContent = 'window.stolen = 1';"
        "document.body.append(added)"
    )
    assert browser.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert browser.evaluate("window.stolen") is None
    assert "Content Security Policy" in json.dumps(problems_in_console(browser))


FOCUS = "document.activeElement.id"
# Keys, one after the other, and what the page then is.
PRESSED = [
    ("j", "index.problems[chosen.problem].id", "lost"),
    ("jk", "index.problems[chosen.problem].id", "lost"),
    ("sn", "[chosen.samples[0], chosen.turn]", [1, 1]),
    ("p", "[chosen.samples[0], chosen.turn]", [1, 0]),
    ("S", "[chosen.samples[0], chosen.turn]", [0, 0]),
    ("/j", f"[{FOCUS}, byId('search').value]", ["search", "j"]),
    (["Escape", "i"], FOCUS, "inside"),
    (["Escape", "f"], FOCUS, "outcome"),
    (["Escape", "v"], "chosen.view", "programs"),
    ("g", "byId('figures-box').open", False),
    ("?", "byId('help').open", True),
]


def test_the_keyboard_reaches_everything(page):
    browser = page(four_problems())
    for keys, state, expected in PRESSED:
        for key in keys:
            browser.press(key)
            browser.wait("document.querySelector('h2')?.textContent.startsWith(index.problems[chosen.problem].id)")
        assert browser.evaluate(state) == expected, keys
    browser.evaluate("byId('help').close(); document.querySelector('.grid button[tabindex=\"0\"]').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):  # there is no third sample
        browser.press(key)
    assert browser.evaluate("document.activeElement.dataset.place") == "0,1,1"


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("problem=b+c%26d&sample=2&turn=6", ["b c&d", 0, 2, 6]),
        ("problem=7&sample=2&turn=6", [7, 0, 2, 6]),
        # Those that name nothing open the first problem, and the page says so.
        *((f"problem={wrong}", None) for wrong in ("99&sample=0&turn=0", "7&sample=3", "<img src=x>")),
    ],
)
def test_an_address_opens_the_turn_it_names_and_shows_it(page, address, place):
    records = [evaluated(name, [[DOUBLE] * 6 + [RIGHT]] * 3, [[0.5] * 6 + [1.0]] * 3) for name in ("a", "b c&d", 7)]
    browser = page(records, fragment=f"#{address}")
    assert browser.evaluate(f"[{PLACE}, byId('alert').hidden]") == [place or ["a", 0, 0, 0], place is not None]
    if place:
        assert browser.evaluate("document.activeElement.id") == "title-0-6"
        assert browser.evaluate("byId('title-0-6').getBoundingClientRect().top") < 300
    browser.evaluate("location.hash = '#problem=a&sample=1&turn=5'")  # a link that is followed in the open page
    browser.wait("document.activeElement.id === 'title-0-5'")
    assert browser.evaluate(PLACE) == ["a", 0, 1, 5]


def test_an_address_keeps_filters_searches_order_and_view(page):
    browser = page(four_problems())
    for name, value in (("outcome", "unsolved"), ("to", "1"), ("from", "1"), ("sort", "id"), ("search", "p")):
        set_control(browser, name, value)
    browser.evaluate("byId('descending').click()")
    browser.evaluate("searchInside('NUMBER')")
    browser.evaluate("openProblem(2)")
    browser.press("v")
    before = browser.evaluate("[location.hash, { ...filters }, chosen.view]")
    assert listed(browser) == ["repaired", "lost", "hard"]
    assert each(browser, "#turn-0-1 mark") == ["number"] * 2, "capitals do not matter"
    again = page(four_problems(), fragment=before[0])
    again.wait("filters.inside !== ''")
    assert again.evaluate("[location.hash, { ...filters }, chosen.view]") == before
    assert listed(again) == ["repaired", "lost", "hard"]
    assert again.evaluate(PLACE)[0] == "hard"
    assert again.evaluate("[byId('outcome').value, byId('inside').value, byId('search').value]") == [
        "unsolved", "NUMBER", "p",
    ]  # fmt: skip


def test_two_runs_are_side_by_side(page):
    other = [
        evaluated(record["id"], [[TRIPLE, RIGHT, RIGHT]], [[0.0, 1.0, 1.0]], question=record["question"])
        for record in four_problems()
    ]
    browser = page(four_problems(), other=other, fragment="#problem=hard&run=other&sample=0&turn=2&beside=1")
    assert browser.evaluate(PLACE) == ["hard", 1, 0, 2]
    assert each(browser, "#trajectory .turn", "id") == ["turn-0-0", "turn-1-0", "turn-0-1", "turn-1-1", "turn-1-2"]
    assert "print(int(input()) ** 2)" in text_of(browser, "#turn-1-1")
    assert "no program in this response" in text_of(browser, "#turn-0-1")
    for width, beside in ((1280, True), (420, False)):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        left = each(browser, "#trajectory .turn", "getBoundingClientRect().left")
        assert (left[0] < left[1]) == beside
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.call("Emulation.clearDeviceMetricsOverride")
    browser.press("r")
    assert browser.evaluate(PLACE) == ["hard", 0, 1, 1]  # this run has two turns only
    browser.evaluate("setOnly(1)")
    assert each(browser, "#trajectory .turn", "id") == ["turn-1-0", "turn-1-1", "turn-1-2"]
    set_control(browser, "run", "0")
    set_control(browser, "outcome", "solved")
    assert listed(browser) == ["repaired", "lost", "easy"]
    set_control(browser, "run", "-1")
    set_control(browser, "sort", "ahead")
    assert listed(browser) == ["easy", "repaired", "lost", "hard"]
    assert len(each(browser, "#figure-curve path.curve")) == 2
    assert problems_in_console(browser) == []


CODE = 'def f(x):\n\n    s = """a\n    b"""  # note\n    return 12, s'
PARTS = {"def": "keyword", "12": "number", '"""a': "string", '    b"""': "string", "# note": "comment"}
COPIES = {
    "#turn-0-1 .block > .copy": CODE.replace("12", "15"),
    "#turn-0-1 details .copy": "retry 1",
    "#tables details .copy": "go",
}


def test_programs_are_numbered_coloured_and_copied_and_changes_hold_both_and_mark_the_words_that_differ(page):
    changed = [f"<think>t</think>\n```python\n{text}\n```" for text in (CODE, CODE.replace("12", "15"))]
    browser = page([evaluated("code", [changed], [[0.0, 0.5]])], fragment="#problem=code&sample=0&turn=1")
    assert each(browser, "#turn-0-0 .line") == CODE.split("\n")
    assert each(browser, "#turn-0-0 .line", "dataset.number") == [*"12345"]
    spans = "#turn-0-0 .line span"
    coloured = dict(zip(each(browser, spans), each(browser, spans, "className"), strict=True))
    assert {text: coloured.get(text) for text in PARTS} == {text: f"code-{kind}" for text, kind in PARTS.items()}
    assert each(browser, "#turn-0-1 b") == ["12", "15"]
    browser.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    for button, text in COPIES.items():
        click(browser, button)
        browser.wait(f"window.copied === {json.dumps(text)}")
    browser.press("c")
    browser.wait(f"window.copied === {json.dumps(COPIES['#turn-0-1 .block > .copy'])}")
    browser.press("l")
    browser.wait("window.copied.endsWith('view.html#problem=code&sample=0&turn=1')")
    draw = random.Random(0)
    pairs = [[[draw.choice("abcd") for _ in range(draw.randrange(12))] for _ in "12"] for _ in range(200)]
    pairs.append([["a"] * 3000, ["b"] * 3000])  # too large to compare line by line
    compared = browser.evaluate(f"{json.dumps(pairs)}.map(([before, after]) => compare(before, after))")
    assert [[[line for sign, line in lines if sign != other] for other in "+-"] for lines in compared] == pairs


def test_single_turn_results_open_as_trajectories_of_one_turn(page):
    records = four_problems()[:2]
    for record in records:
        del record["conversations"]
        for name in ("raw_responses", "public_exec_results", "completion_tokens"):
            record[name] = record[name][:1]
        for name in ("all_pass_rates", "hidden_verdicts"):
            record[name] = [row[:1] for row in record[name]]
    browser = page(records)
    assert (each(browser, ".turn", "id"), each(browser, ".change")) == (["turn-0-0"], ["0/2", "1/2"])
    assert len(each(browser, "#figure-curve circle")) == 1
    assert problems_in_console(browser) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('id="index">', 'id="index">AAAA'),
        lambda text: text[: text.index('<script type="text/plain" id="piece-0-0">')],
        lambda text: text[: text.index('id="piece-0-0">') + 40],
    ],
    ids=["index changed", "pieces missing", "piece torn"],
)
def test_a_page_that_was_cut_short_or_changed_says_so(browser, page, tmp_path, damage):
    page(four_problems())
    path = tmp_path / "view.html"
    path.write_text(damage(path.read_text()))
    browser.open(path)
    assert "cut short or changed" in text_of(browser, "#alert")
