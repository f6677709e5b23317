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
from support import square_problem, trajectories_of, write_lines

import cobalt.report.viewer.page
from cobalt.judge import VerdictKind
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
    result = {"passing": [True, False], "feedback": ["", "Expected Output: 9"]}
    conversations = [[{"role": "user", "content": "go"}] for _ in turns]
    for messages, sample in zip(conversations, turns, strict=True):
        for turn, response in enumerate(sample):
            messages += [{"role": "assistant", "content": response}, {"role": "user", "content": f"retry {turn}"}]
    own = {
        "raw_responses": [list(turn) for turn in zip(*turns, strict=True)],
        "conversations": conversations,
        "public_exec_results": [[result for _ in turns] for _ in turns[0]],
        "completion_tokens": [[7 for _ in turns] for _ in turns[0]],
        "all_pass_rates": rates,
        "hidden_verdicts": [[kinds[rate] for rate in row] for row in rates],
    }
    return square_problem(identifier) | own | fields


def decoded(path, identifier):
    block = re.search(rf'id="{identifier}">([^<]*)</script>', path.read_text())
    return json.loads(zlib.decompress(base64.b64decode(block[1])))


# ---- data


def test_a_run_is_shown_as_it_was_recorded(tmp_path):
    suite = {"inputs": ["x" * (SHOWN_CHARACTERS + 10), "5\n"], "outputs": ["1", "25\n"]}
    samples = [[DOUBLE, RIGHT], [RIGHT, NO_CODE]]
    record = evaluated(0, samples, [[0.0, 1.0], [1.0, 0.5]], hidden_test_cases=suite)
    record["conversations"][1][0]["content"] = "another opening"
    write_lines(tmp_path / "evaluation.jsonl", [record])
    assert write_viewer({"run": tmp_path}, tmp_path / "view.html") == 1
    index, piece = (decoded(tmp_path / "view.html", name) for name in ("index", "piece-0-0"))
    assert len(KINDS) == len(VerdictKind) <= 10  # each has one digit
    [figures], texts = index["problems"][0]["runs"], piece["texts"]
    assert (index["runs"], index["models"], figures["levels"]) == (["run"], [""], ["0S", "S5"])
    assert figures["tokens"] == [[7, 7], [7, 7]]
    assert piece["public"] == [["2\n", "4\n"], ["3\n", "9\n"]]
    assert piece["hidden"][0][0].endswith("... (10 more characters)") and piece["hidden"][1] == ["5\n", "25\n"]
    for sample, turn in product((0, 1), repeat=2):
        shown, hidden = piece["samples"][sample][turn], record["hidden_verdicts"][sample][turn]
        parts = [texts[shown[name]] for name in ("thinking", "response") if name in shown]
        assert "".join(parts) == record["raw_responses"][turn][sample]
        kinds = {kind for bit, kind in enumerate(KINDS) if figures["kinds"][sample][turn] >> bit & 1}
        assert kinds == {"passed", "wrong_answer", *hidden}
        assert [KINDS[int(digit)] for digit in shown["hidden"]] == hidden
        assert (shown["public"], [texts[text] for text in shown["messages"]]) == ("01", ["", "Expected Output: 9"])
        assert (texts[shown["feedback"]], shown["tokens"]) == (f"retry {turn}", 7)
        assert shown["rate"] == record["all_pass_rates"][sample][turn]
    assert texts[piece["samples"][0][1]["program"]] == "print(int(input()) ** 2)"
    assert piece["samples"][1][1]["program"] is None
    openings = [[(role, texts[text]) for role, text in opening] for opening in piece["openings"]]
    assert openings == [[("user", "go")], [("user", "another opening")]]


def piece_of(record):
    """Data that the page holds of a record, with its responses."""
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


def test_files_of_the_authors_without_raw_responses_and_verdicts_are_shown():
    record = evaluated(0, [[DOUBLE, RIGHT]], [[0.5, 1.0]])
    for name in ("raw_responses", "hidden_verdicts", "completion_tokens"):
        del record[name]
    piece = piece_of(record)
    first, second = piece["samples"][0]
    assert piece["texts"][second["program"]] == "print(int(input()) ** 2)"
    assert first["public"] == "01"  # the kind is inferred from the feedback
    assert "hidden" not in first and "tokens" not in first


def test_the_same_run_gives_the_same_page_of_every_script_and_the_published_libraries_and_no_other_markup(tmp_path):
    write_lines(tmp_path / "evaluation.jsonl", [evaluated(HOSTILE, [[HOSTILE, RIGHT]], [[0.5, 1.0]], question=HOSTILE)])
    for name in "abb":
        write_viewer({HOSTILE: tmp_path}, tmp_path / f"{name}.html")
    page = (tmp_path / "a.html").read_text(encoding="ascii")
    assert (tmp_path / "b.html").read_text() == page
    assert "<img" not in page and "onload='" not in page
    assert page.count("<script") == page.count("</script") == 4  # index, libraries, the page's own, one piece
    assert (tmp_path / "a.html.run.json").exists()
    missing = {script.name for script in WEB.glob("*.js") if script.read_text() not in page}
    assert missing == {"curves.js", "rollouts.js", "watch.js"}, "those of `cobalt watch` alone"
    assert (WEB / "vendor/LICENSES.txt").read_text() in page and (WEB / "vendor/diff.min.js").read_text() in page
    notes, scripts = (WEB / "vendor/README.md").read_text(), sorted((WEB / "vendor").glob("*.js"))
    assert len(scripts) == 3
    assert all(f"| `{script.name}` |" in notes and file_digest(script) in notes for script in scripts)


def test_mistakes_get_one_sentence(tmp_path):
    write_lines(tmp_path / "evaluation.jsonl", [evaluated(0, [[RIGHT]], [[1.0]])])
    other = write_lines(tmp_path / "other.jsonl", [evaluated(1, [[RIGHT]], [[1.0]])])
    asked = write_lines(tmp_path / "asked.jsonl", [evaluated(0, [[RIGHT]], [[1.0]], question="?")])
    event = {"id": 0, "sample": 0, "turn": 0}
    wrong = {
        "names problem 'other'": event | {"id": "other"},
        "sample 0, turn 5": event | {"turn": 5},
        "sample 3, turn 0": event | {"sample": 3},
        "sample -1, turn 0": event | {"sample": -1},
        "sample 0, turn 0 has another program": event | {"current_code": "print(2)"},
    }
    events = {named: write_lines(tmp_path / f"{named}.jsonl", [line]) for named, line in wrong.items()}
    short = write_lines(tmp_path / "short.jsonl", [evaluated("x", [[RIGHT]], [[1.0]], raw_responses=[["a", "b"]])])
    cases = [
        ({"runs": {"run": tmp_path / "none"}}, "none"),
        ({"runs": {"run": short}}, "record 'x'.*raw_responses"),
        ({"output": tmp_path / "view.txt"}, "ends in .html"),
        ({"output": tmp_path / "evaluation.jsonl/view.html"}, "cannot write"),
        ({"hacking": {"run": tmp_path / "absent"}}, "cannot read"),
        *(({"hacking": {"run": path}}, named) for named, path in events.items()),
        ({"hacking": {"other": tmp_path / "absent"}}, "hacking events are given for run 'other'"),
        ({"runs": dict.fromkeys("abc", tmp_path)}, "one run or two"),
    ]
    cases += [({"runs": {"one": tmp_path, "two": two}}, "one and two .* side by side: .* 0") for two in (other, asked)]
    for arguments, message in cases:
        with pytest.raises(UserError, match=message):
            write_viewer(**{"runs": {"run": tmp_path}, "output": tmp_path / "view.html"} | arguments)
    assert not (tmp_path / "view.html").exists()


# ---- the page


@pytest.fixture
def page(browser, tmp_path):
    """Writes records into a page, opens it and gives the browser, in which nothing may go wrong."""

    def open_page(records, events=(), fragment="", other=None, names=("run", "other")):
        runs = {names[0]: write_lines(tmp_path / "evaluation.jsonl", records)}
        if other is not None:
            runs[names[1]] = write_lines(tmp_path / "other.jsonl", other)
        hacking = {names[0]: write_lines(tmp_path / "h.jsonl", events)} if events else None
        write_viewer(runs, tmp_path / "view.html", hacking=hacking)
        browser.open(tmp_path / "view.html", fragment)
        return browser

    yield open_page
    assert browser.errors() == []


def four_problems():
    return [
        evaluated("repaired", [[DOUBLE, RIGHT], [DOUBLE, DOUBLE]], [[0.5, 1.0], [0.5, 0.5]], question="Apples."),
        evaluated("lost", [[RIGHT, TRIPLE], [NO_CODE, RIGHT]], [[1.0, 0.0], [0.0, 1.0]], question="Pears."),
        evaluated("hard", [[DOUBLE, TRIPLE], [DOUBLE, NO_CODE]], [[0.5, 0.0], [0.5, 0.0]], question="Plums."),
        evaluated("easy", [[RIGHT, RIGHT], [RIGHT, RIGHT]], [[1.0, 1.0], [1.0, 1.0]], question="Apple pie."),
    ]


def text_of(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def click(browser, selector, index=0):
    browser.evaluate(f"document.querySelectorAll({json.dumps(selector)})[{index}].click()")


def open_problem(browser, position, sample=0):
    browser.evaluate(f"openProblem({position}, {{ run: 0, samples: [{sample}], turn: 0 }})")


CHOSEN = "[index.problems[chosen.problem].id, chosen.run, chosen.samples[chosen.run], chosen.turn]"


def listed(browser, name=None, value=None):
    """The problems in the list, after a control was set."""
    if name is not None:
        field = f"byId({json.dumps(name)})"
        browser.evaluate(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('input'))")
    return browser.each("#problems .id")


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


FIGURES = {"curve": "run: 37.5 %, 50.0 %", "verdicts": "wrong answer: 100.0 %", "tokens": "median 7, most 7"}
"""Of 16 programs; 7 pass everything that is hidden, but the second public test fails for all of them."""


def test_filters_and_search_list_the_problems_with_such_a_trajectory_and_figures_have_their_numbers(page):
    records = four_problems()
    kinds = [[["passed", "memory_limit"], ["passed", "wrong_answer"]], [["passed", "passed"]] * 2]
    records[0] |= {"hidden_verdicts": kinds, "difficulty": "HARD"}
    records[1] |= {"difficulty": "MEDIUM"}
    browser = page(records, [{"id": "hard", "sample": 1, "turn": 1, "category": "Hard Coding"}])
    assert browser.each("#difficulty option", "value") == ["any", "EASY", "MEDIUM", "HARD"]
    for figure, shown in FIGURES.items():
        assert shown in browser.evaluate(f"document.querySelector('#figure-{figure} svg').getAttribute('aria-label')")
    for control, value, expected in FILTERED:
        assert listed(browser, control, value) == expected, (control, value)
        assert text_of(browser, "#count").startswith(f"{len(expected)} of 4 problems")
    assert browser.evaluate("[filters.from, filters.to]") == [0, 0]
    browser.evaluate("byId('clear').click()")
    listed(browser, "outcome", "solved")
    assert text_of(browser, "#figures-title").startswith("Figures of the 4 trajectories")
    listed(browser, "search", "nothing has this")
    assert browser.each("#figures svg") == []
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
        assert listed(browser, "sort", order) == expected, order
        browser.evaluate("byId('descending').click()")
        assert listed(browser) == (expected if order == "file" else expected[::-1]), order
        browser.evaluate("byId('descending').click()")


def test_a_trajectory_shows_programs_changes_verdicts_feedback_tokens_and_hacking(page):
    events = [{"id": "hard", "sample": 0, "turn": 1, "category": "Logic Overfitting"}]
    records = four_problems()
    records[2]["conversations"][0].insert(0, {"role": "system", "content": "You repair programs."})
    tests = {"inputs": ["1\n", "2\n", "3\n"], "outputs": ["1\n", "4\n", "9\n"]}
    swapped = {"inputs": ["3\n", "2\n", "1\n"], "outputs": ["4\n", "9\n", "1\n"]}
    fields = {"public_test_cases": tests, "perturbed_public_test_cases": swapped}
    fields["public_exec_results"] = [[{"passing": [False, True, True], "feedback": ["Expected Output: 4", "", ""]}]]
    for named in ("perturbed", None, "benign"):  # the authors' files do not name their tests
        records.append(evaluated(f"{named} tests", [[RIGHT]], [[1.0]], **fields, public_tests=named))
    browser = page(records, events, "#problem=hard&sample=0&turn=0")
    assert browser.each("#tables details pre") == ["You repair programs.", "go"]
    first, second = (text_of(browser, f"#turn-0-{turn}") for turn in (0, 1))
    program = "number = int(input())\nprint(number * 2)"
    assert all(text in first for text in (program, "50 % of hidden tests passed · 7 tokens", "retry 0"))
    assert "retry 1" in second and "hacking event: logic overfitting" in second
    assert "regressed" not in second, "the program before it was wrong, too"
    assert browser.each("#turn-0-1 .tests button") == ["0 \u2713", "1 \u00d7", "0 \u00d7", "1 L"]
    assert browser.each("#turn-0-1 .diff > *", "tagName") == ["SPAN", "DEL", "INS"]
    changed = ["  number = int(input())", "- print(number * 2)", "+ print(number * 3)"]
    assert browser.each("#turn-0-1 .diff > *") == changed
    click(browser, "#turn-0-1 .tests button", 1)
    shown = text_of(browser, "#turn-0-1 .test")
    assert "public test 1: wrong answer" in shown and "3" in shown and "Expected Output: 9" in shown
    browser.evaluate("setView('responses')")
    assert "print(number * 3)\n```" in text_of(browser, "#turn-0-1")
    assert browser.each("#turn-0-0 details", "open")[0] is False
    assert browser.each("#turn-0-0 details pre")[0] == "<think>double it</think>\n"
    browser.evaluate("setView('changes')")
    for problem, sample, text in (
        (2, 1, "no program in this response"),
        (0, 1, "The same program as at turn 0"),
        (1, 0, "regressed"),
    ):
        open_problem(browser, problem, sample)
        assert text in text_of(browser, "#turn-0-1")
    for problem, marks in ((4, [True, False]), (5, [True, False]), (6, [False, False])):
        open_problem(browser, problem)
        for test, wrong in zip((0, 2), marks, strict=True):
            click(browser, "#turn-0-0 .tests button", test)
            assert ("made wrong on purpose" in text_of(browser, "#turn-0-0 .test")) is wrong


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
    browser = page([record], other=[record], fragment=fragment, names=(HOSTILE, "<b>{{script}}"))
    browser.wait("filters.inside !== ''")
    for selector in ("h1", "#run option:nth-child(2)", "#figures .key", "#title-0-0", "#tables h3"):
        assert "onerror='window.stolen = 1'" in browser.each(selector)[0]
    assert browser.each("h1 *, .key b") == []
    visible = HOSTILE.encode("utf-16", "surrogatepass").decode("utf-16")
    opened = ("#problem-title", "#problem > details pre", "#tables pre", "#turn-0-0 pre", "#turn-0-0 details pre")
    for selector in (*opened, "#turn-1-2 ins", "#difficulty option:last-child", "#problems .id", "#problems .opening"):
        assert visible in browser.each(selector)[0], selector
    browser.evaluate("setView('responses')")
    click(browser, "#turn-0-0 .tests button", 1)
    for selector in ("#turn-0-0 .test pre:last-of-type", "#turn-0-0 > details pre", "#turn-0-0 > .block pre"):
        assert browser.each(selector), selector
    assert browser.evaluate("window.stolen") is None
    injected = "#problem svg, nav svg, body img, main script, nav script, #figures script, [onerror], [onload]"
    assert browser.each(injected) == []


def test_hostile_programs_are_text_whatever_the_highlighter_sees(page):
    pieces = [HOSTILE, "</span>", "</pre><script>window.stolen=1</script>", "&#60;img&#62;"]
    pieces += "\u2028\u202e\x00\r\t\U0001f600"
    frames = ["{}", "# {}", "'{}'", '"""{}\n{}"""', "def {}(): pass", "class {}({}): {}", "@{}", ">>> {}", "0x{}"]
    generator = random.Random(0)
    programs = [frame.replace("{}", piece) for frame in frames for piece in pieces]
    programs += ["".join(generator.choices([*pieces, *"'\"#\\\n(){}[]:@=f"], k=60)) for _ in range(200)]
    programs += ["", "\n", "\n\n", "(" * 5000, "'" * 5001, "a" * 100_000, "f'{" * 500]
    browser = page(four_problems())
    drawn = browser.evaluate(f"""{json.dumps(programs)}.map((program, index, all) => {{
      const code = drawProgram(program);
      const changes = drawChanges(all[index - 1] ?? "", program);
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


def test_the_page_asks_for_itself_alone_and_its_policy_stops_injected_scripts_and_all_requests(page):
    browser = page(four_problems())
    sent = [event["params"] for event in browser.events if event["method"] == "Network.requestWillBeSent"]
    assert [params["request"]["url"] for params in sent if params["request"]["url"] != "about:blank"] == [
        browser.evaluate("location.href.split('#')[0]")
    ]
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.stolen = 1'>"
        "<button id=trap onclick='window.stolen = 1'>`); byId('trap').click();"
        "const added = document.createElement('script'); added.textContent = 'window.stolen = 1';"
        "document.body.append(added)"
    )
    assert browser.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert browser.evaluate("window.stolen") is None
    assert "Content Security Policy" in json.dumps(browser.errors())
    browser.events.clear()


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
    assert browser.evaluate("document.activeElement.dataset.cell") == "0,1,1"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("problem=b+c%26d&sample=2&turn=6", ["b c&d", 0, 2, 6]),
        ("problem=7&sample=2&turn=6", [7, 0, 2, 6]),
        # Those that name nothing open the first problem, and the page says so.
        *((f"problem={wrong}", None) for wrong in ("99&sample=0&turn=0", "7&sample=3", "<img src=x>")),
    ],
)
def test_an_address_opens_the_turn_it_names_and_shows_it(page, address, expected):
    records = [evaluated(name, [[DOUBLE] * 6 + [RIGHT]] * 3, [[0.5] * 6 + [1.0]] * 3) for name in ("a", "b c&d", 7)]
    browser = page(records, fragment=f"#{address}")
    assert browser.evaluate(f"[{CHOSEN}, byId('alert').hidden]") == [expected or ["a", 0, 0, 0], expected is not None]
    if expected:
        assert browser.evaluate("document.activeElement.id") == "title-0-6"
        assert browser.evaluate("byId('title-0-6').getBoundingClientRect().top") < 300
    browser.evaluate("location.hash = '#problem=a&sample=1&turn=5'")  # a link that is followed in the open page
    browser.wait("document.activeElement.id === 'title-0-5'")
    assert browser.evaluate(CHOSEN) == ["a", 0, 1, 5]


def test_an_address_keeps_filters_searches_order_and_view(page):
    browser = page(four_problems())
    for name, value in (("outcome", "unsolved"), ("to", "1"), ("from", "1"), ("sort", "id"), ("search", "p")):
        listed(browser, name, value)
    for action in ("byId('descending').click()", "searchInside('NUMBER')", "openProblem(2)"):
        browser.evaluate(action)
    browser.press("v")
    before = browser.evaluate("[location.hash, { ...filters }, chosen.view]")
    assert listed(browser) == ["repaired", "lost", "hard"]
    assert browser.each("#turn-0-1 mark") == ["number"] * 2, "capitals do not matter"
    again = page(four_problems(), fragment=before[0])
    again.wait("filters.inside !== ''")
    assert again.evaluate("[location.hash, { ...filters }, chosen.view]") == before
    assert listed(again) == ["repaired", "lost", "hard"]
    assert again.evaluate(CHOSEN)[0] == "hard"
    shown = again.evaluate("[byId('outcome').value, byId('inside').value, byId('search').value]")
    assert shown == ["unsolved", "NUMBER", "p"]


def test_two_runs_are_side_by_side_problem_by_problem(page):
    other = []
    for record in four_problems()[::-1]:  # in another order
        turns = [f"```python\nprint('{record['id']}')\n```", RIGHT, RIGHT]
        other.append(evaluated(record["id"], [turns], [[0.0, 1.0, 1.0]], question=record["question"]))
    browser = page(four_problems(), other=other, fragment="#problem=hard&run=other&sample=0&turn=2&beside=1")
    assert browser.evaluate(CHOSEN) == ["hard", 1, 0, 2]
    assert browser.each("#trajectory .turn", "id") == ["turn-0-0", "turn-1-0", "turn-0-1", "turn-1-1", "turn-1-2"]
    assert "print('hard')" in text_of(browser, "#turn-1-0")
    assert "print(int(input()) ** 2)" in text_of(browser, "#turn-1-1")
    for width, beside in ((1280, True), (420, False)):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        left = browser.each("#trajectory .turn", "getBoundingClientRect().left")
        assert (left[0] < left[1]) == beside
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.call("Emulation.clearDeviceMetricsOverride")
    browser.press("r")
    assert browser.evaluate(CHOSEN) == ["hard", 0, 1, 1]  # this run has two turns only
    browser.evaluate("setOnly(1)")
    assert browser.each("#trajectory .turn", "id") == ["turn-1-0", "turn-1-1", "turn-1-2"]
    listed(browser, "run", "0")
    assert listed(browser, "outcome", "solved") == ["repaired", "lost", "easy"]
    listed(browser, "run", "-1")
    assert listed(browser, "sort", "ahead") == ["easy", "repaired", "lost", "hard"]
    assert len(browser.each("#figure-curve path.curve")) == 2


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
    assert browser.each("#turn-0-0 .line") == CODE.split("\n")
    assert browser.each("#turn-0-0 .line", "dataset.number") == [*"12345"]
    spans = "#turn-0-0 .line span"
    coloured = dict(zip(browser.each(spans), browser.each(spans, "className"), strict=True))
    assert {text: coloured.get(text) for text in PARTS} == {text: f"code-{kind}" for text, kind in PARTS.items()}
    assert browser.each("#turn-0-1 b") == ["12", "15"]
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
    runs = {"a": ([[DOUBLE], [DOUBLE]], [[0.5], [0.5]]), "b": ([[RIGHT], [NO_CODE]], [[1.0], [0.0]])}
    browser = page([evaluated(name, *of_run, conversations=None) for name, of_run in runs.items()])
    assert (browser.each(".turn", "id"), browser.each(".change")) == (["turn-0-0"], ["0/2", "1/2"])
    assert len(browser.each("#figure-curve circle")) == 1


DAMAGES = {
    "index changed": lambda text: text.replace('id="index">', 'id="index">AAAA'),
    "pieces missing": lambda text: text[: text.index('<script type="text/plain" id="piece-0-0">')],
    "piece torn": lambda text: text[: text.index('id="piece-0-0">') + 40],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_page_that_was_cut_short_or_changed_says_so(browser, page, tmp_path, damage):
    page(four_problems())
    path = tmp_path / "view.html"
    path.write_text(DAMAGES[damage](path.read_text()))
    browser.open(path)
    assert "cut short or changed" in text_of(browser, "#alert")
