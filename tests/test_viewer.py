"""The trajectory viewer: its data, and the page in a real headless Chromium."""

import base64
import json
import random
import re
import zlib

import pytest
from chromium import CHROMIUM, Chromium
from support import square_problem, trajectories_of, write_lines
from test_scripts import assert_user_error
from test_scripts import run as run_script

from cobalt.engine import GenerationSettings
from cobalt.engine.replay import ReplayEngine
from cobalt.errors import UserError
from cobalt.hacking.events import HackingEvent
from cobalt.judge import JudgeSettings, LocalJudge, VerdictKind
from cobalt.records import read_records
from cobalt.report.viewer.data import KINDS, SHOWN_CHARACTERS, problem_data
from cobalt.report.viewer.page import write_viewer
from cobalt.rollout.evaluate import run_evaluation
from cobalt.rollout.multi_turn import MultiTurnSettings, run_multi_turn

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
                + [
                    message
                    for turn, text in enumerate(sample)
                    for message in (
                        {"role": "assistant", "content": text},
                        {"role": "user", "content": f"retry {turn}"},
                    )
                ]
                for sample in turns
            ],
            "public_exec_results": [[failed for _ in turns] for _ in turns[0]],
            "completion_tokens": [[7 for _ in turns] for _ in turns[0]],
            "all_pass_rates": rates,
            "hidden_verdicts": [[kinds[rate] for rate in row] for row in rates],
        }
        | fields
    )


def decoded(path, identifier):
    block = re.search(rf'id="{identifier}">([^<]*)</script>', path.read_text())
    return json.loads(zlib.decompress(base64.b64decode(block[1])))


# ---- data


@pytest.mark.sandbox
async def test_a_judged_run_is_shown_as_it_was_recorded(tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0)])
    recorded = write_lines(tmp_path / "r.jsonl", [{"id": 0, "raw_responses": [[DOUBLE, RIGHT], [RIGHT, NO_CODE]]}])
    settings = GenerationSettings(n=2, max_tokens=64, seed=0)
    run = MultiTurnSettings(problems, tmp_path / "m.jsonl", settings, turns=1)
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        assert await run_multi_turn(run, ReplayEngine(recorded, 2), judge) == 0
        assert await run_evaluation(run.output_file, tmp_path / "evaluation.jsonl", judge) == 0
    assert write_viewer(tmp_path, tmp_path / "view.html") == 1
    [record] = read_records(tmp_path / "evaluation.jsonl")
    [summary] = decoded(tmp_path / "view.html", "index")["problems"]
    assert summary["levels"] == ["0S", "S0"]
    piece = decoded(tmp_path / "view.html", "piece-0")
    assert piece["public"] == [["2\n", "4\n"], ["3\n", "9\n"]]
    for sample in (0, 1):
        for turn in (0, 1):
            shown = piece["samples"][sample][turn]
            result = record["public_exec_results"][turn][sample]
            assert piece["texts"][shown["response"]] == record["raw_responses"][turn][sample]
            assert piece["texts"][shown["feedback"]] == record["conversations"][sample][3 + 2 * turn]["content"]
            assert [KINDS[int(digit)] for digit in shown["hidden"]] == record["hidden_verdicts"][sample][turn]
            assert [KINDS[int(digit)] for digit in shown["public"]] == [v["kind"] for v in result["verdicts"]]
            assert [piece["texts"][text] for text in shown["messages"]] == result["feedback"]
            assert shown["rate"] == record["all_pass_rates"][sample][turn]
            assert shown["tokens"] == record["completion_tokens"][turn][sample]
    assert piece["texts"][piece["samples"][0][1]["program"]] == "print(int(input()) ** 2)"
    assert piece["samples"][1][1]["program"] is None


def test_each_kind_of_verdict_has_one_digit():
    assert len(KINDS) == len(VerdictKind) <= 10


def test_texts_that_repeat_are_held_once():
    _, piece = problem_data(trajectories_of(evaluated(0, [[DOUBLE] * 3] * 4, [[0.5] * 3] * 4)), [], with_responses=True)
    assert len(piece["texts"]) == len(set(piece["texts"]))
    assert piece["texts"].count(DOUBLE) == 1


def test_files_of_the_authors_without_raw_responses_and_verdicts_are_shown():
    record = evaluated(0, [[DOUBLE, RIGHT]], [[0.5, 1.0]])
    for name in ("raw_responses", "hidden_verdicts", "completion_tokens"):
        del record[name]
    _, piece = problem_data(trajectories_of(record), [], with_responses=True)
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
    _, piece = problem_data(
        trajectories_of(evaluated(0, [[RIGHT]], [[1.0]], **tests, **fields)), [], with_responses=True
    )
    assert (piece["public"][0], piece["impossible"]) == (first, impossible)


def test_long_tests_are_cut_and_say_so():
    suite = {"inputs": ["x" * (SHOWN_CHARACTERS + 10)], "outputs": ["1"]}
    _, piece = problem_data(
        trajectories_of(evaluated(0, [[RIGHT]], [[1.0]], hidden_test_cases=suite)), [], with_responses=True
    )
    assert piece["hidden"][0][0].endswith("... (10 more characters)")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"all_pass_rates": None}, "run eval_multi_turn.py first"),
        ({"all_pass_rates": [[0.5, "1"]]}, "field 'all_pass_rates'"),
        ({"all_pass_rates": [[0.5, 2]]}, "field 'all_pass_rates'"),
        ({"raw_responses": [["a"]]}, "field 'raw_responses'"),
        ({"raw_responses": [[1], [2]]}, "field 'raw_responses'"),
        ({"completion_tokens": [[1]]}, "field 'completion_tokens'"),
        ({"hidden_verdicts": [[["passed"], ["tired"]]]}, "field 'hidden_verdicts'"),
        ({"public_exec_results": [[{}], [{}]]}, "an execution result needs the lists"),
    ],
)
def test_malformed_records_are_named(tmp_path, fields, message):
    path = write_lines(tmp_path / "evaluation.jsonl", [evaluated("x", [[DOUBLE, RIGHT]], [[0.5, 1.0]], **fields)])
    with pytest.raises(UserError, match=f"record 'x'.*{message}"):
        write_viewer(path, tmp_path / "view.html")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["evaluation.jsonl"]


def test_events_that_do_not_fit_the_run_are_refused(tmp_path):
    record = evaluated(0, [[RIGHT]], [[1.0]])
    for sample, turn in ((0, 5), (3, 0), (-1, 0), (0, -1)):
        with pytest.raises(UserError, match=f"names sample {sample}, turn {turn}"):
            problem_data(trajectories_of(record), [HackingEvent(0, sample, turn, "others")], with_responses=True)
    for response in (RIGHT, NO_CODE):
        with pytest.raises(UserError, match="sample 0, turn 0 has another program"):
            other = evaluated(0, [[response]], [[1.0]])
            problem_data(trajectories_of(other), [HackingEvent(0, 0, 0, "others", "print(2)")], with_responses=True)
    write_lines(tmp_path / "evaluation.jsonl", [record])
    events = write_lines(tmp_path / "h.jsonl", [{"id": "other", "sample": 0, "turn": 0}])
    with pytest.raises(UserError, match="names problem 'other'"):
        write_viewer(tmp_path, tmp_path / "view.html", hacking=events)


def test_the_same_run_gives_the_same_page(tmp_path):
    write_lines(tmp_path / "evaluation.jsonl", [evaluated(0, [[DOUBLE, RIGHT]], [[0.5, 1.0]])])
    write_viewer(tmp_path, tmp_path / "a.html")
    write_viewer(tmp_path, tmp_path / "b.html")
    write_viewer(tmp_path, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert (tmp_path / "a.html.run.json").exists()


def test_no_text_of_a_run_is_markup_in_the_page(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>{{pieces}}{{script}}"
    folder.mkdir()
    write_lines(folder / "evaluation.jsonl", [evaluated(HOSTILE[:-1], [[HOSTILE]], [[0.0]], question=HOSTILE)])
    write_viewer(folder, tmp_path / "view.html")
    page = (tmp_path / "view.html").read_text(encoding="ascii")
    assert "onerror='" not in page and "onload='" not in page
    assert "<img" not in page
    assert page.count("<script") == page.count("</script") == 3  # index, the page's own, one piece


def test_mistakes_get_one_sentence(tmp_path):
    write_lines(tmp_path / "evaluation.jsonl", [evaluated(0, [[RIGHT]], [[1.0]])])
    (tmp_path / "empty").mkdir()
    page = tmp_path / "view.html"
    cases = [
        ({"run": tmp_path / "none", "output": page}, "there is no run"),
        ({"run": tmp_path / "empty", "output": page}, "has no evaluation"),
        ({"run": tmp_path, "output": tmp_path / "view.txt"}, "ends in .html"),
        ({"run": tmp_path, "output": tmp_path / "evaluation.jsonl/view.html"}, "cannot write"),
        ({"run": tmp_path, "output": page, "hacking": tmp_path / "absent"}, "cannot read"),
    ]
    for arguments, message in cases:
        with pytest.raises(UserError, match=message):
            write_viewer(**arguments)
    assert_user_error(run_script("-m", "cobalt.report.viewer", tmp_path / "none"), "there is no run")


def test_the_command_writes_the_page(tmp_path):
    write_lines(tmp_path / "evaluation.jsonl", [evaluated(0, [[RIGHT]], [[1.0]])])
    finished = run_script("-m", "cobalt.report.viewer", tmp_path, "-o", tmp_path / "view.html", "--programs_only")
    assert finished.returncode == 0, finished.stderr
    assert "1 problems" in finished.stdout
    assert "response" not in decoded(tmp_path / "view.html", "piece-0")["samples"][0][0]


# ---- the page

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(browser, tmp_path):
    """Writes records into a page, opens it and gives the browser."""

    def open_page(records, events=(), fragment="", **options):
        write_lines(tmp_path / "evaluation.jsonl", records)
        hacking = write_lines(tmp_path / "h.jsonl", events) if events else None
        write_viewer(tmp_path, tmp_path / "view.html", hacking=hacking, **options)
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
    return browser.evaluate("[...document.querySelectorAll('#problems .id')].map((node) => node.textContent)")


def text_of(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def problems_in_console(browser):
    return [event for event in browser.events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]


def open_problem(browser, position, sample=0):
    browser.evaluate(f"openProblem({position}, {sample}, 0)")


@needs_chromium
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all", ["repaired", "lost", "hard", "easy"]),
        ("solved", ["repaired", "lost", "easy"]),
        ("unsolved", ["repaired", "lost", "hard"]),
        ("repaired", ["repaired", "lost"]),
        ("regressed", ["lost"]),
        ("hacked", ["hard"]),
    ],
)
def test_filters_list_the_problems_with_such_a_trajectory(page, name, expected):
    browser = page(four_problems(), [{"id": "hard", "sample": 1, "turn": 1, "category": "Hard Coding"}])
    browser.evaluate(f"byId('filter').value = '{name}'; byId('filter').dispatchEvent(new Event('change'))")
    assert listed(browser) == expected
    assert text_of(browser, "#count").startswith(f"{len(expected)} of 4 problems")


@needs_chromium
def test_search_finds_ids_and_words_of_questions(page):
    browser = page(four_problems())
    for words, expected in (("apple", ["repaired", "easy"]), ("PIE apple", ["easy"]), ("lost", ["lost"]), ("zz", [])):
        browser.evaluate(f"byId('search').value = '{words}'; byId('search').dispatchEvent(new Event('input'))")
        assert listed(browser) == expected


@needs_chromium
def test_a_trajectory_shows_programs_changes_verdicts_feedback_tokens_and_hacking(page):
    events = [{"id": "hard", "sample": 0, "turn": 1, "category": "Logic Overfitting"}]
    browser = page(four_problems(), events, "#problem=2&sample=0&turn=0")
    first, second = (text_of(browser, f"#turn-{turn}") for turn in (0, 1))
    assert "number = int(input())\nprint(number * 2)" in first
    assert "50 % of hidden tests passed · 7 tokens" in first
    assert "retry 0" in first and "retry 1" in second
    assert "hacking event: logic overfitting" in second
    signs = "[...document.querySelectorAll('#turn-1 .tests button')].map((node) => node.textContent)"
    assert browser.evaluate(signs) == ["0 \u2713", "1 \u00d7", "0 \u00d7", "1 L"]
    changed = "[...document.querySelectorAll('#turn-1 .diff > *')].map((node) => [node.tagName, node.textContent])"
    assert browser.evaluate(changed) == [
        ["SPAN", "  number = int(input())"],
        ["DEL", "- print(number * 2)"],
        ["INS", "+ print(number * 3)"],
    ]
    browser.evaluate("document.querySelectorAll('#turn-1 .tests button')[1].click()")
    shown = text_of(browser, "#turn-1 .test")
    assert "public test 1: wrong answer" in shown and "3" in shown and "Expected Output: 9" in shown
    browser.evaluate("setView('responses')")
    assert "<think>triple it</think>" in text_of(browser, "#turn-1")
    open_problem(browser, 2, sample=1)
    browser.evaluate("setView('changes')")
    assert "no program in this response" in text_of(browser, "#turn-1")
    open_problem(browser, 0, sample=1)
    assert "The same program as at turn 0" in text_of(browser, "#turn-1")
    open_problem(browser, 1)
    assert "regressed" in text_of(browser, "#turn-title-1")
    assert problems_in_console(browser) == []


@needs_chromium
def test_an_impossible_test_is_marked(page):
    tests = {"public_test_cases": TRUE, "perturbed_public_test_cases": SWAPPED, "public_tests": "perturbed"}
    results = [[{"passing": [False, True, True], "feedback": ["Expected Output: 4", "", ""]}]]
    browser = page([evaluated(0, [[RIGHT]], [[1.0]], **tests, public_exec_results=results)])
    open_problem(browser, 0)
    marks = []
    for test in (0, 2):
        browser.evaluate(f"document.querySelectorAll('#turn-0 .tests button')[{test}].click()")
        marks.append("made wrong on purpose" in text_of(browser, "#turn-0 .test"))
    assert marks == [True, False]


@needs_chromium
def test_model_text_is_shown_and_never_run(page):
    program = f"```python\n{HOSTILE}\n```"
    record = evaluated(HOSTILE, [[program, program + "x"]], [[0.0, 0.5]], question=HOSTILE, difficulty=HOSTILE)
    record["conversations"][0][2]["content"] = HOSTILE
    record["public_exec_results"][0][0] = {"passing": [True, False], "feedback": ["", HOSTILE]}
    browser = page([record])
    visible = HOSTILE.encode("utf-16", "surrogatepass").decode("utf-16")
    for place in ("h2", "#main details pre", "#turn-0 > pre", "#turn-0 details pre"):
        shown = browser.evaluate(f"document.querySelector({json.dumps(place)}).textContent")
        assert visible in shown
    browser.evaluate("setView('responses'); document.querySelectorAll('#turn-0 .tests button')[1].click()")
    assert browser.evaluate("window.stolen") is None
    assert browser.evaluate("document.querySelectorAll('main img, main script, main svg, nav img').length") == 0
    assert problems_in_console(browser) == []


@needs_chromium
def test_lone_surrogates_reach_the_page_without_breaking_it(browser, tmp_path, monkeypatch):
    # The reader of result files refuses them; a page made from records in memory must stand them all the same.
    group = trajectories_of(evaluated(0, [["```python\nx = '\ud800'\n```"]], [[0.0]]))
    (tmp_path / "evaluation.jsonl").write_text("{}")
    monkeypatch.setattr("cobalt.report.viewer.page.read_trajectories", lambda path, digest: iter([group]))
    write_viewer(tmp_path, tmp_path / "view.html")
    browser.open(tmp_path / "view.html")
    shown = "document.querySelector('#turn-0 > pre').textContent"
    assert browser.evaluate(f'{shown}.charCodeAt({shown}.indexOf("\'") + 1)') == 0xD800


@needs_chromium
def test_the_policy_stops_injected_scripts_and_all_requests(page):
    browser = page(four_problems())
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.stolen = 1'>"
        "<button id=trap onclick='window.stolen = 1'>`); byId('trap').click();"
        "const added = document.createElement('script'); added.textContent = 'window.stolen = 1';"
        "document.body.append(added)"
    )
    assert browser.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert browser.evaluate("window.stolen") is None
    assert "Content Security Policy" in json.dumps(problems_in_console(browser))


@needs_chromium
def test_the_page_asks_for_nothing_but_itself(page):
    browser = page(four_problems())
    requests = [event["params"]["request"]["url"] for event in browser.events
                if event["method"] == "Network.requestWillBeSent"]  # fmt: skip
    assert requests and all(url.startswith(("file://", "about:blank")) for url in requests)
    assert len([url for url in requests if url.startswith("file://")]) == 1


@needs_chromium
def test_the_keyboard_reaches_everything(page):
    browser = page(four_problems())
    for key, title in (("j", "lost"), ("j", "hard"), ("k", "lost")):
        browser.press(key)
        browser.wait(f"piece && document.querySelector('h2')?.textContent.startsWith('{title}')")
    browser.evaluate("document.querySelector('.grid button[tabindex=\"0\"]').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    assert browser.evaluate("[chosen.sample, chosen.turn]") == [1, 1]
    assert browser.evaluate("document.activeElement.dataset.place") == "1,1"
    assert browser.evaluate("location.hash") == "#problem=1&sample=1&turn=1"
    browser.press("ArrowDown")  # there is no third sample
    assert browser.evaluate("chosen.sample") == 1
    browser.press("v")
    assert browser.evaluate("chosen.view") == "programs"
    browser.press("/")
    assert browser.evaluate("document.activeElement.id") == "search"
    browser.press("j")
    assert browser.evaluate("byId('search').value") == "j"
    browser.evaluate("document.activeElement.blur()")
    browser.press("?")
    assert browser.evaluate("byId('help').open") is True


@needs_chromium
def test_an_address_opens_its_turn_and_a_wrong_one_the_first(page):
    browser = page(four_problems(), fragment="#problem=1&sample=1&turn=1")
    assert browser.evaluate("[chosen.problem, chosen.sample, chosen.turn]") == [1, 1, 1]
    for wrong in ("#problem=99&sample=0&turn=0", "#problem=x", "#%%%", "#problem=0&sample=__proto__&turn=0"):
        browser = page(four_problems(), fragment=wrong)
        assert browser.evaluate("[chosen.problem, chosen.sample, chosen.turn]") == [0, 0, 0]


@needs_chromium
def test_every_control_has_a_name_and_no_id_occurs_twice(page):
    browser = page(four_problems())
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "searchbox", "combobox", "link", "dialog", "table", "navigation"}
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(controls) > 10
    assert [node for node in controls if not node.get("name", {}).get("value")] == []
    ids = browser.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_background(page, dark):
    browser = page(four_problems(), [{"id": "repaired", "sample": 0, "turn": 1}], "#problem=0&sample=0&turn=0")
    scheme = "dark" if dark else "light"
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.evaluate("document.querySelector('.tests button').click()")
    worst = browser.evaluate("""(() => {
      const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
      const rgb = (color) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
      };
      const light = (color) => {
        const [r, g, b] = rgb(color).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      let worst = [99, ''];
      for (const node of document.querySelectorAll('body *')) {
        if (![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()) || !node.checkVisibility()
          || node.closest('.skip, script, select, noscript')) continue;
        let back = node;
        while (back && rgb(getComputedStyle(back).backgroundColor)[3] === 0) back = back.parentElement;
        const [a, b] = [light(getComputedStyle(node).color),
          light(back ? getComputedStyle(back).backgroundColor : 'white')];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < worst[0]) worst = [contrast, node.outerHTML.slice(0, 200)];
      }
      return worst;
    })()""")
    assert worst[0] >= 4.5, worst  # WCAG 2.2, level AA


@needs_chromium
def test_a_browser_without_decompression_is_shown_which_browsers_have_it(browser, page):
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    try:
        page(four_problems())
        assert "lacks DecompressionStream" in text_of(browser, "#alert")
        assert "Firefox 113" in text_of(browser, "#alert")
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])


@needs_chromium
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('id="index">', 'id="index">AAAA'),
        lambda text: text[: text.index('<script type="text/plain" id="piece-0">')],
        lambda text: text[: text.index('id="piece-0">') + 40],
    ],
    ids=["index changed", "pieces missing", "piece torn"],
)
def test_a_page_that_was_cut_short_or_changed_says_so(browser, page, tmp_path, damage):
    page(four_problems())
    path = tmp_path / "view.html"
    path.write_text(damage(path.read_text()))
    browser.open(path)
    assert "cut short or changed" in text_of(browser, "#alert")


@needs_chromium
def test_differences_are_right_for_random_programs(page):
    browser = page(four_problems())
    generator = random.Random(0)
    pairs = [[[generator.choice("abcd") for _ in range(generator.randrange(12))] for _ in "12"] for _ in range(200)]
    pairs.append([["a"] * 3000, ["b"] * 3000])  # too large to compare line by line
    results = browser.evaluate(f"{json.dumps(pairs)}.map(([before, after]) => compare(before, after))")
    for (before, after), lines in zip(pairs, results, strict=True):
        assert [line for sign, line in lines if sign != "+"] == before
        assert [line for sign, line in lines if sign != "-"] == after
        if len(before) < 100:
            kept = sum(sign == " " for sign, _ in lines)
            assert kept == longest_common_subsequence(before, after)


def longest_common_subsequence(before, after):
    row = [0] * (len(after) + 1)
    for line in before:
        previous = row
        row = [0]
        for column, other in enumerate(after):
            row.append(previous[column] + 1 if line == other else max(previous[column + 1], row[column]))
    return row[-1]


@needs_chromium
@pytest.mark.slow
def test_250_problems_of_16_samples_and_9_turns_open_within_three_seconds(browser, page, tmp_path):
    generator = random.Random(0)
    words = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 9))) for _ in range(2000)]

    def record(identifier):
        # Responses that do not repeat, so that the page is no smaller than a real one's.
        texts = [
            [f"<think>{' '.join(generator.choices(words, k=100))}</think>\n```python\nprint({turn})\n```"
             for turn in range(9)]
            for _ in range(16)
        ]  # fmt: skip
        return evaluated(f"p{identifier}", texts, [[0.5] * 8 + [1.0]] * 16)

    page([record(identifier) for identifier in range(250)])
    assert browser.evaluate("index.problems.length") == 250
    assert browser.evaluate("Number(document.documentElement.dataset.ready)") < 3000
    opening = (
        "(async () => { const start = performance.now(); await openProblem(249); return performance.now() - start })()"
    )
    assert browser.evaluate(opening) < 3000
    assert "print(8)" in text_of(browser, "#turn-8")
