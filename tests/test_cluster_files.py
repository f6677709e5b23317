"""The files of docs/cluster.md without a cluster: Slurm's scripts with recorded commands, KubeRay's manifest."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from support import ROOT, executable

SCRIPTS = sorted([*ROOT.glob("scripts/**/*.sh"), *ROOT.glob("scripts/**/*.sbatch")])
RECORDER = """# Stands in for a container: notes each command, and what its processes would do.
echo "$*" >> {folder}/commands
trap 'echo "ended $*" >> {folder}/commands; kill $!; exit 143' TERM
case "$*" in
  *"ray_cluster.sh start"*) echo "Ray runs at 10.0.0.1:21234, asks for the token" ;;
  # It waits for the nodes, as the real one does.
  *cobalt.preflight*)
    until [ "$(cat {folder}/steps 2> /dev/null | wc -l)" -ge {steps} ]; do sleep 0.05; done
    exit {check} ;;
  the-command*) echo "$RAY_ADDRESS $RAY_AUTH_MODE ${{NCCL_SOCKET_IFNAME:-}}" > {folder}/seen ;;&
  "the-command fails") exit 7 ;;
  "the-command waits") ;;
  *) exit 0 ;;
esac
sleep 600 &
wait
"""
SCONTROL = """case "$3" in *1) echo gpu1 ;; gpu*) printf 'gpu1\\ngpu2\\n' ;; cpu*) printf 'cpu1\\ncpu2\\n' ;; esac"""
ONE = {"SLURM_JOB_NODELIST": "gpu1", "SLURM_JOB_ID": "71234", "SLURM_CPUS_ON_NODE": "64"}
TWO = ONE | {"SLURM_JOB_NODELIST": "gpu[1-2]"}
MIXED = TWO | {"SLURM_JOB_NODELIST_HET_GROUP_1": "cpu[1-2]", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "48(x2)"}


def job(
    folder: Path, script: str, *arguments: str, check: int = 0, steps: int = 0, **variables: str
) -> subprocess.Popen:
    """A job as Slurm starts it, on its first node."""
    bin_folder = folder / "bin"
    executable(bin_folder / "scontrol", SCONTROL)
    executable(bin_folder / "srun", f'echo "srun $*" >> {folder}/steps')
    executable(bin_folder / "container", f'exec bash {folder}/recorder "$@"')
    (folder / "recorder").write_text(RECORDER.format(folder=folder, check=check, steps=steps))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "NCCL_", "GLOO_"))}
    variables |= {"SLURM_SUBMIT_DIR": str(ROOT), "COBALT_CONTAINER": str(bin_folder / "container")}
    environment = inherited | {"PATH": f"{bin_folder}:{inherited['PATH']}"} | variables
    command = ["bash", str(ROOT / "scripts/slurm" / script), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_scripts_are_valid_bash():
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", script], check=True, timeout=20)


def test_a_job_of_one_node_needs_no_interface_and_has_the_commands_exit_code(tmp_path):
    process = job(tmp_path, "one_node.sbatch", "--output_dir", "/o", "--", "the-command", "fails", **ONE)
    assert process.wait(30) == 7, process.stdout.read()
    start, check, command, *ended = lines(tmp_path / "commands")
    assert start == "bash scripts/ray_cluster.sh start --port 21234 --stay --num-cpus=64"
    assert check == "python -m cobalt.preflight --nodes 1 --output_dir /o"
    assert command == "the-command fails"
    assert ended == [f"ended {start}"]
    assert lines(tmp_path / "seen") == ["10.0.0.1:21234 token "]
    assert not (tmp_path / "steps").exists()


def test_the_nodes_of_a_second_component_judge_and_reserve_nothing_else(tmp_path):
    arguments = ("--interface", "ib0", "--", "the-command", "ends")
    process = job(tmp_path, "gpu_and_judge_nodes.sbatch", *arguments, steps=2, **MIXED)
    assert process.wait(30) == 0, process.stdout.read()
    workers, judges = sorted(lines(tmp_path / "steps"), key=lambda line: "--het-group" in line)
    joins = "ray_cluster.sh join 10.0.0.1:21234 --interface ib0 --stay"
    assert f"{joins} --num-cpus=64" in workers and "--nodelist=gpu2 " in workers and "--nodes=1 --ntasks=1 " in workers
    assert judges.endswith(f'{joins} --num-cpus=0 --resources={{"judge": 48}}') and "--nodes=2 --ntasks=2 " in judges
    assert "--nodes 4" in lines(tmp_path / "commands")[1]
    assert lines(tmp_path / "seen") == ["10.0.0.1:21234 token ib0"]


def test_nothing_is_run_on_nodes_that_fail_the_check(tmp_path):
    arguments = ("--interface", "ib0", "--", "the-command", "ends")
    process = job(tmp_path, "several_nodes.sbatch", *arguments, check=2, **TWO)
    assert process.wait(30) == 2
    commands = lines(tmp_path / "commands")
    assert not any("the-command" in line for line in commands)
    assert any(line.startswith("ended bash scripts/ray_cluster.sh start") for line in commands)


def test_at_the_end_of_its_time_a_job_ends_the_command_before_its_ray(tmp_path):
    process = job(tmp_path, "one_node.sbatch", "--", "the-command", "waits", **ONE)
    deadline = time.monotonic() + 30
    while not (tmp_path / "seen").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    ended = [line for line in lines(tmp_path / "commands") if line.startswith("ended")]
    assert [line.split()[1] for line in ended] == ["the-command", "bash"]


@pytest.mark.parametrize("arguments", ["--interface ib0", "--interface ib0 --", "-- the-command"])
def test_a_job_without_a_command_or_an_interface_is_refused(tmp_path, arguments):
    process = job(tmp_path, "several_nodes.sbatch", *arguments.split(), **TWO)
    assert process.wait(30) == 2
    assert process.stdout.read().startswith("error: ")
    assert not (tmp_path / "commands").exists()


def test_the_manifest_asks_for_a_token_and_lets_bubblewrap_work_on_the_nodes_that_judge():
    cluster = yaml.safe_load((ROOT / "scripts/kubernetes/raycluster.yaml").read_text())
    spec = cluster["spec"]
    assert (cluster["kind"], spec["authOptions"]) == ("RayCluster", {"mode": "token"})
    groups = {"head": spec["headGroupSpec"]} | {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    pods = {name: group["template"]["spec"] for name, group in groups.items()}
    first = {name: pod["containers"][0] for name, pod in pods.items()}
    for name, pod in first.items():
        assert {"/shared", "/dev/shm"} <= {mount["mountPath"] for mount in pod["volumeMounts"]}, name
    # KubeRay writes the value into a shell's command line, which takes off the outer quotes.
    assert json.loads(json.loads(groups["judge"]["rayStartParams"]["resources"])) == {"judge": 32}
    assert groups["judge"]["rayStartParams"]["num-cpus"] == "0"
    assert pods["judge"]["hostUsers"] is False
    for name in ("head", "gpu"):
        assert "hostUsers" not in pods[name] and "securityContext" not in pods[name] | first[name]
    rights = first["judge"]["securityContext"]
    assert rights["procMount"] == "Unmasked" and rights["seccompProfile"] == {"type": "Unconfined"}
    # What judges has no secret.
    assert "secret" in json.dumps(pods["gpu"])
    assert "secret" not in json.dumps(pods["judge"]) and not {"env", "envFrom"} & first["judge"].keys()
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert services
    assert not any({"environment", "env_file", "secrets"} & service.keys() for service in services.values())


DOCKER = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"  # noqa: E501
"""The capabilities of a container that Docker starts without further options."""


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="the capabilities of a container are taken from root's")
@pytest.mark.parametrize("masked", [False, True])
def test_in_a_container_the_judge_works_with_an_unmasked_proc_and_otherwise_names_the_option(masked):
    hide = "mount --bind /dev/null /proc/timer_list && " if masked else ""
    command = f"{hide}exec setpriv --bounding-set={DOCKER} --inh-caps=-all python -m cobalt.judge doctor"
    container = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", command]
    finished = subprocess.run(container, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert finished.returncode == (1 if masked else 0), finished.stdout[-2000:]
    assert ("systempaths=unconfined" in finished.stdout) is masked
