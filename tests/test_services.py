"""The whole chain on the real apps, vLLM (CPU), bubblewrap and a small Qwen3 model, without any stand-in."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import LOOPBACK, listening
from support import ROOT, alive, belongs_here, square_problem, write_lines

from cobalt.pocket.dataset import draw_problems, to_records
from cobalt.stage.records import read_records

pytestmark = pytest.mark.services

MODEL_LENGTH = 1024
GREETING = [{"role": "user", "content": "Print the square of a number."}]


def script(services, name, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, name, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | services,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process, timeout=300):
    out, err = process.communicate(timeout=timeout)
    assert "Traceback" not in err, err[-3000:]
    return process.returncode, out, err


def succeed(process):
    code, out, err = finish(process)
    assert code == 0, err[-3000:]
    return out


def generate(services, conversation, **settings):
    body = {"messages": conversation} | settings
    response = httpx.post(services["COBALT_ENGINE_URL"], json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()["completions"]


def test_the_whole_chain_runs_and_its_records_have_the_documented_shapes(services, tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(""), square_problem("c")])
    common = ["--max_tokens", "48", "--prompts", "pocket", "--enable_thinking"]
    single, multi, evaluation = (tmp_path / f"{name}.jsonl" for name in ("s", "m", "e"))

    def files(source, result):
        return ["--input_file", source, "--output_file", result]  # as in the authors' README

    succeed(script(services, "run_single_turn_vllm.py", *files(problems, single), "-n", "3", *common))
    code, _, err = finish(script(services, "run_multi_turn_vllm.py", *files(single, multi), "--turns", "2", *common))
    assert code == 0, err
    plot = ["--plot", tmp_path / "p.png"]
    out = succeed(script(services, "eval_multi_turn.py", *files(multi, evaluation), *plot))
    assert "Pass@1" in out
    records = read_records(evaluation)
    assert [record["id"] for record in records] == [0, "", "c"]
    for record in records:
        assert [len(turn) for turn in record["raw_responses"]] == [3, 3, 3]
        assert [len(turn) for turn in record["public_exec_results"]] == [3, 3, 3]
        assert [len(row) for row in record["all_pass_rates"]] == [3, 3, 3]
        assert all(len(result["passing"]) == 2 for turn in record["public_exec_results"] for result in turn)
        assert record["raw_responses"][0] == record["responses"]
        assert all(0 < count <= 48 for turn in record["completion_tokens"] for count in turn)
    for name in ("s", "m", "e"):
        assert (tmp_path / f"{name}.run.json").exists()
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_impossible_feedback_goes_from_problems_to_hacking_events_and_a_report(services, tmp_path):
    problems = write_lines(tmp_path / "problems.jsonl", to_records("dev", draw_problems("dev", 4, seed=0)))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | services | {"PATH": path}
    flags = ["-n", "2", "--max_tokens", "48", "--prompts", "pocket", "--enable_thinking"]
    run = tmp_path / "run"
    for command in (
        ["bash", ROOT / "scripts" / "multi_turn.sh", problems.name, "run", "--turns", "2", "--perturbed", *flags],
        ["python", "-m", "cobalt.report", f"seed={run}", "--hacking", f"seed={run / 'events.jsonl'}", "-o", run],
    ):
        finished = subprocess.run(
            list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert finished.returncode == 0, finished.stderr[-3000:]
    records = read_records(run / "evaluation.jsonl")
    assert records
    assert all(record["public_tests"] == "perturbed" for record in records)
    assert json.loads((run / "events.run.json").read_text())["summary"]["looked at"]["trajectories"] == 2 * len(records)
    events = (run / "events.jsonl").read_text().splitlines()
    assert f"| events | {len(events)} |" in (run / "report.md").read_text()
    assert (run / "hacking.png").exists() == bool(events)


def test_the_same_command_gives_the_same_responses_and_another_seed_others(services, tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(identifier) for identifier in range(4)])
    responses = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        output = tmp_path / f"{name}.jsonl"
        flags = ["-n", "4", "--max_tokens", "32", "--seed", seed]
        succeed(script(services, "run_single_turn_vllm.py", "-i", problems, "-o", output, *flags))
        responses.append([record["responses"] for record in read_records(output)])
    assert responses[0] == responses[1]
    assert responses[0] != responses[2]
    assert len({text for texts in responses[0] for text in texts}) > 4, "samples and problems must differ"


def test_a_collection_killed_halfway_resumes_to_every_id_exactly_once(services, tmp_path):
    identifiers = list(range(24))
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(identifier) for identifier in identifiers])
    output = tmp_path / "m.jsonl"
    command = ["run_multi_turn_vllm.py", "-i", problems, "-o", output, "-n", "2", "--turns", "2"]
    command += ["--max_tokens", "48", "--concurrency", "2", "--prompts", "pocket"]
    first = script(services, *command, start_new_session=True)
    wait_for_lines(output, 4)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    finished_before = read_records(output, unfinished=True)
    assert 4 <= len(finished_before) < len(identifiers)
    with output.open("ab") as handle:
        handle.write(b'{"id": 23, "torn')  # what a kill in the middle of a write leaves
    succeed(script(services, *command))
    records = read_records(output)
    assert [record["id"] for record in records] == identifiers
    by_id = {record["id"]: record for record in records}
    assert all(by_id[record["id"]] == record for record in finished_before), (
        "finished records must be kept as they were"
    )


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(services, tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(identifier) for identifier in range(40)])
    output = tmp_path / "m.jsonl"
    command = ["run_multi_turn_vllm.py", "-i", problems, "-o", output, "-n", "2", "--turns", "2"]
    command += ["--max_tokens", "48", "--concurrency", "2"]
    running = script(services, *command)
    wait_for_lines(output, 2)
    running.send_signal(signal.SIGINT)
    code, _, err = finish(running, timeout=60)
    assert code == 130
    assert "run the same command again" in err
    assert 2 <= len(read_records(output, unfinished=True)) < 40
    refused = finish(script(services, *command, "--temperature", "0.1"))
    assert refused[0] == 2
    assert "temperature" in refused[2]


def wait_for_lines(path: Path, count: int, timeout: float = 240):
    deadline = time.monotonic() + timeout
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, f"{path} did not reach {count} lines"
        time.sleep(0.02)  # polling another process's file: there is nothing to wait on


def test_a_conversation_too_long_for_the_model_is_an_error_record_and_not_the_end_of_the_run(services, tmp_path):
    long = square_problem("long", instruction="word " * 4 * MODEL_LENGTH)
    problems = write_lines(tmp_path / "p.jsonl", [long, square_problem("short")])
    output = tmp_path / "m.jsonl"
    flags = ["-n", "2", "--turns", "1", "--max_tokens", "32"]
    succeed(script(services, "run_multi_turn_vllm.py", "-i", problems, "-o", output, *flags))
    by_id = {record["id"]: record for record in read_records(output)}
    assert by_id["long"]["finish_reasons"] == [["prompt_too_long"] * 2] * 2
    assert f"the model takes {MODEL_LENGTH}" in by_id["long"]["errors"][0][0]
    assert by_id["long"]["public_pass_rates"] == [[0.0, 0.0]] * 2
    assert set(by_id["short"]["finish_reasons"][0]) <= {"stop", "length"}


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


def test_a_short_call_does_not_wait_for_a_long_one_of_another_caller(services):
    with ThreadPoolExecutor(2) as pool:
        generate(services, GREETING, max_tokens=1)
        long = pool.submit(generate, services, GREETING, n=16, max_tokens=400, temperature=2.0, top_p=1.0)
        time.sleep(0.3)  # let the long call reach the engine
        generate(services, GREETING, max_tokens=1)
        assert not long.done(), "the short call came back only after the long one"
        long.result()


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"not json", 400),
        (b"[1]", 422),
        (b'{"messages": []}', 422),
        (json.dumps({"messages": GREETING, "temperature": -1}).encode(), 422),
        (json.dumps({"messages": GREETING, "temperature": float("nan")}).encode(), 422),
    ],
)
def test_bad_http_requests_get_a_sentence_and_a_client_error(services, content, status):
    response = httpx.post(services["COBALT_ENGINE_URL"], content=content, timeout=60)
    assert (response.status_code, bool(response.json()["error"])) == (status, True)


def test_the_engines_route_refuses_web_pages(services):
    body, page = {"messages": GREETING, "max_tokens": 1}, {"Origin": "http://example.org"}
    assert httpx.post(services["COBALT_ENGINE_URL"], json=body, headers=page, timeout=60).status_code == 403


def services_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "cobalt.services", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("mistake", ["no-such-model", "is in use", "max_model_len (99999999) is greater than"])
def test_a_mistake_is_one_sentence_and_exit_code_2(seed_model, mistake):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = {
            "no-such-model": ["--model", "/no-such-model"],
            "is in use": ["--http_port", taken.getsockname()[1]],
        }.get(mistake, ["--model", seed_model, "--engine", "max_model_len=99999999"])
        finished = services_command(*flags, "--", "true")
    assert finished.returncode == 2
    assert mistake in finished.stderr and "Traceback" not in finished.stderr


def test_an_engine_that_fails_names_vllms_first_error_and_keeps_its_logs(seed_model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = shutil.copytree(seed_model, tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    finished = services_command("--model", model, "--engine", "max_model_len=1024", "--", "true")
    assert finished.returncode == 1
    assert "the engine did not start: vLLM's engine did not start: SafetensorError: " in finished.stderr
    assert "Traceback" not in finished.stderr
    [kept] = (tmp_path / "cache" / "cobalt" / "logs").iterdir()
    assert f"(logs: {kept})" in finished.stderr
    assert "SafetensorError" in next(kept.glob("engine*.stderr")).read_text()


def service_processes():
    """The ids of the servers, engines and sandboxes of this checkout."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            names = (b"cobalt.serving.host", b"bwrap", b"VLLM")
            if any(name in command for name in names) and belongs_here(entry.name):
                found.add(entry.name)
    return found


@contextlib.contextmanager
def nothing_is_left():
    before = service_processes()
    yield
    deadline = time.monotonic() + 30
    while service_processes() - before and time.monotonic() < deadline:
        time.sleep(0.1)  # the last processes are ending; the kernel tells nobody but their parent
    assert not service_processes() - before


def test_the_services_pass_on_the_commands_exit_code_and_leave_nothing_behind():
    code = "import os, sys; sys.exit(7 if os.environ['COBALT_JUDGE_URL'] else 0)"
    with nothing_is_left():
        finished = services_command("--judge", "concurrency=1", "--", sys.executable, "-c", code)
        assert finished.returncode == 7, finished.stderr


def test_a_terminated_service_lets_its_command_finish_and_keeps_to_loopback():
    code = (
        "import signal, sys; stop = [signal.SIGINT]; signal.pthread_sigmask(signal.SIG_BLOCK, stop);"
        " print('up', flush=True); signal.sigwait(stop); sys.exit(5)"
    )
    # With SIGINT ignored, as a script's background jobs begin.
    command = ["env", "--ignore-signal=INT", sys.executable, "-m", "cobalt.services", "--", sys.executable, "-c", code]
    before = service_processes()
    with nothing_is_left():
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert running.stdout.readline() == "up\n"
            assert service_processes() - before
            assert listening(service_processes() - before) <= LOOPBACK
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=60) == 5
        finally:
            running.terminate()
            running.communicate(timeout=60)


def test_a_service_that_dies_interrupts_the_command_and_its_logs_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = (
        "import os, pathlib, signal\n"
        "for entry in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    try: parent = (entry / 'stat').read_text().rpartition(')')[2].split()[1]\n"
        "    except OSError: continue\n"
        "    if parent == str(os.getppid()) and int(entry.name) != os.getpid():\n"
        "        os.kill(int(entry.name), signal.SIGKILL)\n"
        "signal.pause()"
    )
    with nothing_is_left():
        finished = services_command("--judge", "concurrency=1", "--", sys.executable, "-c", code)
    assert finished.returncode == 1
    [logs] = (tmp_path / "cobalt" / "logs").iterdir()
    assert "the judge has ended" in finished.stderr and f"logs: {logs}" in finished.stderr
    assert logs.stat().st_mode & 0o077 == 0


def test_services_that_are_killed_end_their_command_and_leave_no_process(seed_model):
    code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    settings = ["--model", str(seed_model), "--engine", "max_model_len=1024"]
    command = [sys.executable, "-m", "cobalt.services", *settings, "--", sys.executable, "-c", code]
    with nothing_is_left():
        running = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        child = int(running.stdout.readline())
        os.kill(running.pid, signal.SIGKILL)  # its pipe to the command stays open
        deadline = time.monotonic() + 60
        while alive(child):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.communicate()
