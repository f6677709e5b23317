"""The whole chain on the real apps, vLLM (CPU), bubblewrap and a small Qwen3 model, without any stand-in."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import LOOPBACK, SIGNALS, listening, running
from support import ROOT, square_problem, write_lines

from cobalt.pocket.dataset import draw_problems, to_records
from cobalt.serving import services as beside_services
from cobalt.serving.services import started_servers
from cobalt.stage import app_process
from cobalt.stage.records import read_records

pytestmark = pytest.mark.services

MODEL_LENGTH = 1024
GREETING = [{"role": "user", "content": "Print the square of a number."}]


def run(*command, folder=ROOT, code=0, **variables):
    """A command that ends with this exit code."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment, words = os.environ | {"PATH": path} | variables, list(map(str, command))
    finished = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == code, finished.stderr[-3000:]
    return finished


def generate(services, conversation, **settings):
    body = {"messages": conversation} | settings
    response = httpx.post(services["COBALT_ENGINE_URL"], json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()["completions"]


def test_the_whole_chain_runs_and_its_records_have_the_documented_shapes(services, tmp_path):
    long = square_problem("long", question="word " * 4 * MODEL_LENGTH)
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(""), square_problem("c"), long])
    common = ["--max_tokens", "48", "--prompts", "pocket", "--enable_thinking"]
    single, multi, evaluation = (tmp_path / f"{name}.jsonl" for name in ("s", "m", "e"))

    def stage(script, source, result, *flags):  # as in the authors' README
        return run("python", script, "--input_file", source, "--output_file", result, *flags, **services).stdout

    stage("run_single_turn_vllm.py", problems, single, "-n", "3", *common)
    stage("run_multi_turn_vllm.py", single, multi, "--turns", "2", *common)
    assert "Pass@1" in stage("eval_multi_turn.py", multi, evaluation)
    records = read_records(evaluation)
    assert [record["id"] for record in records] == [0, "", "c", "long"]
    for record in records:
        assert [len(turn) for turn in record["raw_responses"]] == [3, 3, 3]
        assert [len(turn) for turn in record["public_exec_results"]] == [3, 3, 3]
        assert [len(row) for row in record["all_pass_rates"]] == [3, 3, 3]
        assert all(len(result["passing"]) == 2 for turn in record["public_exec_results"] for result in turn)
        assert record["raw_responses"][0] == record["responses"]
    *others, too_long = records
    assert all(0 < count <= 48 for record in others for turn in record["completion_tokens"] for count in turn)
    assert {reason for record in others for turn in record["finish_reasons"] for reason in turn} <= {"stop", "length"}
    assert too_long["finish_reasons"] == [["prompt_too_long"] * 3] * 3
    assert f"the model takes {MODEL_LENGTH}" in too_long["errors"][0][0]
    assert too_long["public_pass_rates"] == [[0.0] * 3] * 3
    for name in ("s", "m", "e"):
        assert (tmp_path / f"{name}.run.json").exists()


def test_impossible_feedback_goes_from_problems_to_hacking_events_and_a_report(services, tmp_path):
    problems = write_lines(tmp_path / "problems.jsonl", to_records("dev", draw_problems("dev", 4, seed=0)))
    flags = ["--turns", "2", "--perturbed", "-n", "2", "--max_tokens", "48", "--prompts", "pocket", "--enable_thinking"]
    script, folder = ROOT / "scripts" / "multi_turn.sh", tmp_path / "run"
    run("bash", script, problems.name, "run", *flags, folder=tmp_path, **services)
    named = [f"seed={folder}", "--hacking", f"seed={folder / 'events.jsonl'}"]
    run("python", "-m", "cobalt.report", *named, "-o", folder, folder=tmp_path)
    records = read_records(folder / "evaluation.jsonl")
    assert records
    assert all(record["public_tests"] == "perturbed" for record in records)
    assert json.loads((folder / "events.run.json").read_text())["summary"]["looked at"]["trajectories"] == 2 * len(
        records
    )
    events = (folder / "events.jsonl").read_text().splitlines()
    assert f"| events | {len(events)} |" in (folder / "report.md").read_text()
    assert (folder / "hacking.png").exists() == bool(events)


def test_samples_of_a_prompt_cost_one_prefill_and_a_turn_reuses_the_one_before(services):
    """The engine caches blocks of 32 tokens on a CPU, and never the last token of a prompt."""
    block = 32
    opening = [{"role": "user", "content": f"{time.time_ns()} " + "Print the square of a number. " * 20}]
    first = generate(services, opening, n=4, max_tokens=160, seed=1, temperature=2.0, top_p=1.0)
    length = first[0]["prompt_tokens"]
    whole = (length - 1) // block * block
    assert whole >= block
    assert sorted(item["cached_tokens"] for item in first) == [0, whole, whole, whole]
    answer = max(first, key=lambda item: item["completion_tokens"])
    turn = [*opening, {"role": "assistant", "content": answer["text"]}, {"role": "user", "content": "It is wrong."}]
    [second] = generate(services, turn, n=1, max_tokens=1, seed=1)
    assert whole <= second["cached_tokens"] < second["prompt_tokens"]
    [third] = generate(services, [*turn, *turn[1:]], n=1, max_tokens=1, seed=1)
    assert third["cached_tokens"] >= (second["prompt_tokens"] - block) // block * block > whole


def test_the_switch_for_thinking_reaches_the_chat_template(services):
    default, on, off = (
        generate(services, GREETING, max_tokens=1, **switch)[0]["prompt_tokens"]
        for switch in ({}, {"chat_template_thinking": "on"}, {"chat_template_thinking": "off"})
    )
    assert default == on < off  # the template closes an empty think block when thinking is off


def test_a_seed_decides_a_completion_whatever_is_generated_beside_it(services):
    alone = generate(services, GREETING, n=2, max_tokens=40, seed=7)
    with ThreadPoolExecutor(16) as pool:
        others = [pool.submit(generate, services, GREETING, n=2, max_tokens=40, seed=seed) for seed in range(100, 112)]
        crowded = generate(services, GREETING, n=2, max_tokens=40, seed=7)
        assert all(other.result() for other in others)
    assert [item["text"] for item in crowded] == [item["text"] for item in alone]
    assert alone[0]["text"] != alone[1]["text"]


def test_short_calls_do_not_wait_for_a_long_one_of_another_caller(services):
    with ThreadPoolExecutor(1) as pool:
        generate(services, GREETING, max_tokens=1)
        long = pool.submit(generate, services, GREETING, n=16, max_tokens=600, temperature=2.0, top_p=1.0)
        for _ in range(5):  # the last ones reach the engine after the long one
            generate(services, GREETING, max_tokens=1)
        assert not long.done(), "the short calls came back only after the long one"
        long.result()


SERVICES = (sys.executable, "-m", "cobalt.services")


def beside(folder, code, *flags, before=(), **variables):
    """A Python program beside services, of which nothing is left when the block ends."""
    words = (*(flags or ("--judge", "concurrency=1")), "--", sys.executable, "-c", code)
    return running(folder, *words, program=(*before, *SERVICES), XDG_CACHE_HOME=str(folder), **variables)


WAITS = "import signal; print('up', flush=True); signal.pause()"


def test_terminated_services_let_their_command_finish_pass_on_its_exit_code_and_keep_to_loopback(tmp_path):
    code = (
        "import signal, sys; stop = [signal.SIGINT]; signal.pthread_sigmask(signal.SIG_BLOCK, stop);"
        " print('up', flush=True); signal.sigwait(stop); sys.exit(5)"
    )
    # With SIGINT ignored, as a script's background jobs begin.
    with beside(tmp_path, code, before=("env", "--ignore-signal=INT")) as command:
        assert command.process.stdout.readline() == "up\n"
        assert set() < listening(command.processes()) <= LOOPBACK
        assert command.end(SIGNALS[1])[0] == 5
        command.assert_nothing_is_left()


def test_a_service_that_dies_interrupts_the_command_and_its_logs_are_named(tmp_path):
    with beside(tmp_path, WAITS) as command:
        assert command.process.stdout.readline() == "up\n"
        [host] = [pid for pid, line in command.processes().items() if "cobalt.serving.host" in line]
        os.kill(host, signal.SIGKILL)
        assert command.process.wait(60) == 1
        command.assert_nothing_is_left()
    [logs] = (tmp_path / "cobalt" / "logs").iterdir()
    said = command.messages.read_text()
    assert "judge" in said.splitlines()[-1] and str(logs) in said.splitlines()[-1]
    assert logs.stat().st_mode & 0o077 == 0


def test_what_services_write_on_their_standard_error_is_rotated(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONVERBOSE", "1")  # a line for each module, when it is imported and at the end
    monkeypatch.setattr(app_process, "LOG_BYTES", 10_000)
    monkeypatch.setattr(beside_services, "ROTATION_SECONDS", 0.1)
    with started_servers(judge={"concurrency": "1"}) as servers, subprocess.Popen(["sleep", "3"]) as waited:
        assert beside_services.first_to_end(servers, os.pidfd_open(waited.pid)) is None
        [older] = tmp_path.glob("cobalt/logs/*/judge0.stderr.1")
        written = older.with_suffix("")
        assert written.stat().st_size < 10_000 <= older.stat().st_size
    assert written.read_bytes().startswith(b"#"), "the service goes on at the beginning of the file"
