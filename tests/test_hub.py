"""The Hub: data sets by name give the problems of their files, and uploads hold what was made."""

import http.server
import json
import re
import threading
from pathlib import Path

import pytest
from outside import run_commands
from support import ROOT, square_problem, trajectory_record, write_lines
from test_scripts import run as run_script

from cobalt.problems import hub
from cobalt.problems.problem import load_problems
from cobalt.report.runs import read_run
from cobalt.report.sharing import push_trajectories
from cobalt.stage.errors import InfrastructureError, UserError

PROBLEMS = [square_problem(number) for number in range(5)]
UNREACHABLE = "http://127.0.0.1:1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A local folder with the files of a data set of two splits."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "TACO-Cobalt"
    data.mkdir()
    write_lines(data / "train.jsonl", PROBLEMS[:3])
    write_lines(data / "validation.jsonl", PROBLEMS[3:])
    return data


@pytest.mark.slow
def test_a_split_of_a_data_set_is_read_like_a_file_of_problems(folder):
    file = hub.input_file(Path(f"{folder}:validation"))
    assert [problem.record for problem in load_problems(file)] == PROBLEMS[3:]
    with pytest.raises(UserError, match="splits train, validation"):
        hub.input_file(folder)
    with pytest.raises(UserError, match="no split 'test'"):
        hub.input_file(Path(f"{folder}:test"))


@pytest.mark.parametrize("name", ["problems.jsonl", "data/problems.parquet", "a/b/c", "tests/absent", "name"])
def test_what_is_no_name_of_the_hub_stays_a_path(name):
    assert hub.input_file(Path(name)) == Path(name)


@pytest.mark.slow
def test_without_a_network_a_name_is_refused_or_taken_from_the_cache(tmp_path):
    """In a process of its own: huggingface_hub reads the Hub's address when it is imported."""
    cached = tmp_path / "cobalt" / "hub" / "osunlp--TACO-Cobalt@abc" / "validation.jsonl"
    cached.parent.mkdir(parents=True)
    write_lines(cached, PROBLEMS)
    flags = ["run_single_turn_vllm.py", "-o", str(tmp_path / "o.jsonl"), "-i"]
    outside = {"HF_ENDPOINT": UNREACHABLE, "XDG_CACHE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    names = ["nobody/TACO-Cobalt:validation", "osunlp/TACO-Cobalt:validation"]
    refused, taken = run_commands([(ROOT, [*flags, name]) for name in names], **outside, HF_HUB_OFFLINE="0")
    assert refused[0] == 2 and "nobody/TACO-Cobalt" in refused[2]
    assert taken[0] == 1 and str(cached) in taken[2]  # no engine runs


@pytest.mark.parametrize("target", ["one", "a/b/c", "a b/c", ""])
def test_a_target_that_is_neither_a_name_nor_a_folder_is_refused(target):
    with pytest.raises(UserError, match="owner/name"):
        hub.check_target(target)


@pytest.mark.slow
def test_uploaded_trajectories_are_an_evaluated_run_and_a_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    result = write_lines(tmp_path / "evaluation.jsonl", [trajectory_record(n, [[(2, 2)], [(1, 0)]]) for n in range(3)])
    (tmp_path / "evaluation.metrics.json").write_text("{}")
    place = Path(push_trajectories(result, f"{tmp_path}/uploaded"))
    assert {path.name for path in place.iterdir()} == {"README.md", "evaluation.jsonl", "evaluation.metrics.json"}
    assert [row.pass_at_1 for row in read_run("a", place / "evaluation.jsonl").metrics] == [0.5]
    rows = datasets.load_dataset(str(place), split="train", streaming=True)
    assert [row["id"] for row in rows] == [0, 1, 2]


def test_an_upload_into_a_folder_replaces_the_one_before_and_nothing_else(tmp_path):
    file, mine, target = tmp_path / "a.jsonl", tmp_path / "mine", tmp_path / "there"
    card = hub.trajectories_card("a.jsonl", "")
    for content in ("first", "second"):
        file.write_text(content)
        hub.push(str(target), {"a.jsonl": file}, card)
    assert (target / "a.jsonl").read_text() == "second"
    mine.mkdir()
    (mine / "README.md").write_text("mine")
    with pytest.raises(UserError, match="push_to_hub"):
        hub.push(str(mine), {"a.jsonl": file}, card)
    assert [path.read_text() for path in mine.iterdir()] == ["mine"]
    with pytest.raises(UserError):
        hub.check_target(str(file))  # not a folder


class StandIn(http.server.BaseHTTPRequestHandler):
    """The three requests of the Hub that a commit of small files takes."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, self.headers["Authorization"], body))
        if self.server.status != 200:
            answer = {"error": "no"}
        elif "/preupload/" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]}
        elif "/commit/" in self.path:
            answer = {"commitUrl": f"{self.server.address}/me/run/commit/{'a' * 40}", "commitOid": "a" * 40}
        else:
            answer = {"url": f"{self.server.address}/datasets/me/run", "name": "me/run"}
        content = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def server(monkeypatch):
    """A stand-in for the Hub, which the library in this process talks to."""
    pytest.importorskip("huggingface_hub")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as standing_in:
        standing_in.seen, standing_in.status = [], 200
        standing_in.address = f"http://127.0.0.1:{standing_in.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", standing_in.address)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        thread = threading.Thread(target=standing_in.serve_forever)
        thread.start()
        try:
            yield standing_in
        finally:
            standing_in.shutdown()
            thread.join()


def test_an_upload_creates_a_private_repository_and_commits_every_file(tmp_path, server):
    file = write_lines(tmp_path / "evaluation.jsonl", PROBLEMS)
    hub.push("me/run", {"evaluation.jsonl": file}, "card")
    bodies = {path.partition("?")[0]: body for path, _, body in server.seen}
    created = json.loads(bodies["/api/repos/create"])
    assert (created["visibility"], created["type"]) == ("private", "dataset")
    committed = [json.loads(line) for line in bodies["/api/datasets/me/run/commit/main"].splitlines()]
    assert {line["value"]["path"] for line in committed[1:]} == {"evaluation.jsonl", "README.md"}
    assert {token for _, token, _ in server.seen} == {"Bearer hf_secret"}


@pytest.mark.parametrize(("status", "kind"), [(401, UserError), (403, UserError), (501, InfrastructureError)])
def test_a_refused_upload_is_the_users_mistake_and_a_failed_one_is_not(tmp_path, server, status, kind):
    server.status = status
    with pytest.raises(kind, match="me/run"):
        hub.push("me/run", {}, "card")


@pytest.mark.slow
def test_figures_of_an_evaluation_are_logged_with_a_step_for_each_turn(tmp_path):
    pytest.importorskip("wandb")
    write_lines(tmp_path / "evaluation.jsonl", [trajectory_record(0, [[(0, 0), (2, 2)], [(0, 0), (0, 0)]])])
    program = (
        "import sys; from pathlib import Path; from cobalt.report.sharing import log_evaluation;"
        "from cobalt.report.runs import read_run; from cobalt.rollout.protocols import stopped;"
        "path = Path(sys.argv[1]); run = read_run('a', path);"
        "log_evaluation(path, run.metrics, {'stopped': stopped(run.outcomes.values())})"
    )
    finished = run_script("-c", program, tmp_path / "evaluation.jsonl", WANDB_MODE="offline", WANDB_SILENT="true")
    assert finished.returncode == 0, finished.stderr
    [log] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    steps = re.findall(rb"evaluation/stopped[^0-9]*([0-9.]+)", log.read_bytes())
    assert {float(value) for value in steps} >= {0.0, 0.5}
