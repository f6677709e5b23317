"""`cobalt watch`: which folders it reads, its page in a real Chromium, and what the trainer writes for it."""

import json
import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import httpx
import pytest
from support import ROOT

from cobalt.commands.main import main
from cobalt.report.rollouts import read_rollouts, recorded_steps, rollout_file
from cobalt.report.viewer.watching import serving, write_watch
from cobalt.stage.manifest import open_manifest
from cobalt.training import run_folder

WEB = ROOT / "cobalt/report/viewer/web"
HOSTILE = "</script><script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>{{script}}"
TORN = '{"step": 9, "metrics": {"rew'


def step(number, **metrics):
    values = {"reward/score": number / 10, "reward/acc": 0.25, "actor/grad_norm": 1.5, "timing_s/gen": 2.0}
    values |= {"timing_s/update_actor": 1.0, "timing_s/step": 3.5}
    return json.dumps({"step": number, "metrics": values | metrics}) + "\n"


def sample(reward, text="print(1)", solved=False):
    parts = {"score": reward, "verdict_passed": 0.5, "verdict_wrong_answer": 0.5} | ({"acc": 1.0} if solved else {})
    rows = [{"text": text, "tokens": 7, "advantage": reward - 0.5}]
    return {"reward": reward, "parts": parts, "feedback": "Expected Output: 9", "rows": rows}


def group(problem, *samples):
    return {"problem": problem, "prompt": f"Solve {problem}", "samples": list(samples)}


def training(folder, metrics=None, *, stage="train", rollouts=(), **files):
    """A folder as a training run leaves it: `files` by name with _ for the dot; `rollouts` by step."""
    folder.mkdir(parents=True)
    if stage:
        open_manifest(folder / "metrics.jsonl", {"stage": stage, "choices": {"data": "problems"}})
    if metrics is not None:
        (folder / "metrics.jsonl").write_text(metrics)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    for number, groups in dict(rollouts).items():
        rollout_file(folder, number).parent.mkdir(exist_ok=True)
        text = groups if isinstance(groups, str) else "".join(json.dumps(group) + "\n" for group in groups)
        rollout_file(folder, number).write_text(text)
    return folder


def watch(*words):
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        main(["watch", *map(str, words)])
    return ended.value.code


# ---- folders


FOLDERS = [
    ({}, 0),  # it started, and has no step yet
    ({"metrics": TORN}, 0),
    ({"metrics": step(0) + step(1) + step(1) + TORN}, 0),
    ({"metrics": step(1, **{"actor/grad_norm": float("nan"), "reward/score": float("inf")}), "stage": "offline"}, 0),
    ({"metrics": step(1), "stage": None}, 0),  # copied without its manifest
    ({"metrics": step(1), "failure_txt": "the judge failed", "train_log": "\x00\ufffd [progress] step 2 of 9"}, 0),
    ({"metrics": step(1), "rollouts": {1: [group("a", sample(1.0))], 10: []}}, 0),
    ({"stage": None, "evaluation_jsonl": '{"id": 1}\n'}, 2),
    ({"stage": "evaluation", "metrics": '{"id": 1}\n'}, 2),
    ({"metrics": step(1) + TORN + "\n" + step(3)}, 2),
    ({"metrics": '{"id": 1}\n'}, 2),
    ({"metrics": step(1), "rollouts": {1: json.dumps(group("a", sample(1.0)))[:-9]}}, 2),
    ({"metrics": step(1), "rollouts": {1: [{"id": 1, "responses": []}]}}, 2),
]


@pytest.mark.parametrize(("files", "code"), FOLDERS)
def test_a_run_that_is_unfinished_killed_or_resumed_is_shown_and_something_else_or_damaged_refused(
    tmp_path, capsys, files, code
):
    run, page = training(tmp_path / "run", **files), tmp_path / "page[x].html"
    for _ in range(1 if code else 2):  # a page is made anew
        assert watch(run, "-o", page) == code
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == bool(code) and (str(page) in said.out) == page.exists() == (not code)
    if page.exists():
        text = page.read_text()
        scripts = [(WEB / f"{script}.js").read_text() in text for script in ("curves", "rollouts", "watch")]
        assert all(scripts) and text.endswith("</html>\n")


def test_a_missing_folder_another_kind_of_page_and_a_port_that_is_taken_are_refused(tmp_path, capsys):
    run = training(tmp_path / "run", step(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = [("nowhere",), (run, "-o", tmp_path / "page.txt"), (run, "--port", taken.getsockname()[1])]
        wrong += [(run, "--port", 70000), (run, "-o", tmp_path)]
        assert [watch(*words) for words in wrong] == [2] * len(wrong)
    assert len(capsys.readouterr().err.splitlines()) == len(wrong)


def test_ctrl_c_ends_the_page_as_the_command_says(tmp_path):
    command = [sys.executable, "-m", "cobalt.commands", "watch", training(tmp_path / "run", step(1)), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert "http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read()) == (0, "")


def test_a_run_that_goes_on_from_a_checkpoint_makes_later_rollouts_again(tmp_path):
    run = training(tmp_path / "run", step(1), rollouts={1: [], 10: []})
    run_folder.prepare(run, {"stage": "train", "choices": {"data": "problems"}}, [])
    assert recorded_steps(run) == []


# ---- the server


@pytest.fixture
def served(tmp_path):
    """A run with rollouts of two steps, and its address."""
    later = [group("b", sample(0.5)), group("a", sample(1.0, solved=True), sample(-1.0, HOSTILE))]
    run = training(tmp_path / "run", step(1) + step(2), rollouts={1: [group("a", sample(0.5))], 2: later})
    with serving(run, 0) as (server, address):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield run, address
        server.shutdown()
        thread.join()


def test_only_the_printed_address_is_answered(served):
    _, address = served
    parts = urlsplit(address)
    assert parts.hostname == "127.0.0.1" and len(parts.path) > 20
    other = f"http://{parts.netloc}"
    refused = [other, f"{other}/index", f"{other}/x/index", f"{address}rollouts-../1", f"{address}../index"]
    answers = dict.fromkeys((address, f"{address}index", f"{address}rollouts-1"), 200) | dict.fromkeys(refused, 404)
    answers[f"{address}rollouts-7"] = 503  # it was not recorded, or has been removed
    assert {url: httpx.get(url, trust_env=False).status_code for url in answers} == answers


# ---- the page


SUMMARIES = "[...document.querySelectorAll('.group > summary b')].map((node) => node.textContent)"
OPEN = "document.querySelectorAll('details').forEach((node) => { node.open = true; })"
REWARD = "[...document.querySelectorAll('figure')][0].querySelector('b').textContent"


@pytest.mark.parametrize("as_file", [True, False])
def test_the_page_has_curves_and_the_rollouts_of_the_last_step_by_reward(browser, served, tmp_path, as_file):
    run, address = served
    if as_file:
        write_watch(run, tmp_path / "page.html")
        browser.open(tmp_path / "page.html")
    else:
        browser.events.clear()
        browser.call("Page.navigate", url=address)
        browser.wait("document.documentElement?.dataset.ready")
    titles = browser.each("figcaption")
    assert len(titles) == 4 and all("," in title for title in titles), "a name and a unit"
    assert browser.evaluate(REWARD) == "0.2"
    assert browser.evaluate(SUMMARIES) == ["problem a", "problem b"]
    browser.evaluate(OPEN)
    browser.wait("document.querySelectorAll('.sample').length === 3")
    browser.evaluate(OPEN)
    browser.wait("[...document.querySelectorAll('.sample')].every((node) => node.querySelector('pre'))")
    assert browser.evaluate("document.querySelector('.sample pre').textContent") == HOSTILE
    assert not browser.evaluate("window.stolen || document.querySelector('img')")
    browser.evaluate("byId('order').value = '-1'; byId('order').dispatchEvent(new Event('change'));")
    assert browser.evaluate(SUMMARIES) == ["problem b", "problem a"]
    browser.evaluate("byId('step').value = '1'; byId('step').dispatchEvent(new Event('change'));")
    browser.wait(f"{SUMMARIES}.length === 1")
    assert "Runtime.exceptionThrown" not in [event["method"] for event in browser.errors()]


def test_an_open_page_follows_its_run_and_says_when_it_cannot(browser, served):
    run, address = served
    quick = "const slow = setInterval; window.setInterval = (work, wait) => slow(work, wait / 25)"  # time goes faster
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", source=quick)
    browser.call("Page.navigate", url=address)
    browser.wait("document.documentElement?.dataset.ready")
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])
    metrics = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(metrics + step(3))
    browser.wait(f"{REWARD} === '0.3'")
    (run / "metrics.jsonl").write_text("damaged\n")
    browser.wait("!byId('alert').hidden")
    (run / "metrics.jsonl").write_text(metrics + step(4))
    browser.wait(f"byId('alert').hidden && {REWARD} === '0.4'")


def test_a_run_without_rollouts_says_why(browser, tmp_path):
    notes = set()
    for stage in ("train", "offline"):
        write_watch(training(tmp_path / stage, step(1), stage=stage), tmp_path / "page.html")
        browser.open(tmp_path / "page.html")
        notes.add(browser.evaluate("byId('controls').hidden && byId('rollouts-note').textContent"))
    assert len(notes) == 2 and all(notes)


# ---- what the trainer writes


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4]), (2, [1, 2, 4]), (10, [1]), (0, [])])
def test_the_first_step_and_every_kth_are_written(every, steps):
    from cobalt_verl.rollouts import is_due

    assert [step for step in range(1, 5) if is_due(step, every)] == steps


def test_a_step_is_written_in_groups_and_bounded(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from transfer_queue import KVBatchMeta

    from cobalt_verl import rollouts

    keys = [f"u{prompt:02}_{session}_{row}" for row in (1, 0) for session in (10, 9) for prompt in range(40)]
    scores = {"reward_extra_info": {"score": 0.5, "acc": 0.0, "feedback": "no \ud800", "verdict_at": 9.0}}

    def get(keys, partition_id, select_fields):
        tokens = [torch.tensor([int(number) for number in key[1:].split("_")]) for key in keys]
        masks, advantages = torch.tensor([[1, 1, 0]] * len(keys)), torch.stack(tokens).float()
        columns = {"prompts": torch.stack(tokens), "responses": torch.stack(tokens), "response_mask": masks}
        problems = [{"id": int(prompt)} for prompt, *_ in tokens]
        return columns | {"advantages": advantages, "extra_fields": [scores] * len(keys), "extra_info": problems}

    monkeypatch.setattr(rollouts.tq, "kv_batch_get", get)
    tags = [{} for _ in keys] + [{"is_padding": True}]
    batch = KVBatchMeta(partition_id="train", keys=[*keys, "padding_0_0"], tags=tags)
    rollouts.write_rollouts(tmp_path, 3, batch, lambda tokens: f"{tokens.tolist()}{'x' * 30000}")
    groups = read_rollouts(tmp_path, 3)
    assert [g.problem for g in groups] == [str(prompt) for prompt in range(rollouts.MOST_GROUPS)]
    first, second = groups[2].samples
    assert [len(s.rows) for s in (first, second)] == [2, 2]
    assert first.rows[0].text.startswith("[2, 10, 0]x") and first.rows[1].prompt.startswith("[2, 10, 1]x")
    assert first.rows[0].prompt is None and first.rows[0].tokens == 2
    assert (first.parts, first.feedback) == ({"score": 0.5}, "no ?")
    assert all(len(r.text) < rollouts.MOST_CHARACTERS + 100 for g in groups for s in g.samples for r in s.rows)
    monkeypatch.setattr(rollouts, "MOST_BYTES", 1)
    rollouts.write_rollouts(tmp_path, 3, batch, str)
    assert len(read_rollouts(tmp_path, 3)) == 1
