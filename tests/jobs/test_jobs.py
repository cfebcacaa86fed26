"""The job files pass their own tools' checks, and start what they name, on nodes that are all this machine."""

import contextlib
import getpass
import importlib
import importlib.util
import inspect
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml
from torch.distributed.checkpoint.staging import StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from collectives.ranks import cluster

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "jobs"
KUBERNETES = list(yaml.safe_load_all((JOBS / "kubernetes.yaml").read_text()))
SKYPILOT, SPOT = (yaml.safe_load((JOBS / f"skypilot{kind}.yaml").read_text()) for kind in ("", "_spot"))
SERVICE, JOB = KUBERNETES
POD = JOB["spec"]["template"]["spec"]
TORCHRUN = POD["containers"][0]
TEXTS = {path.name: path.read_text() for path in JOBS.iterdir() if path.suffix in {".md", ".sh", ".sbatch", ".yaml"}}
SCRIPTS = {name: TEXTS[name] for name in ("one_node.sh", "slurm.sbatch")}
SCRIPTS |= {f"skypilot {part}": SKYPILOT[part] for part in ("setup", "run")}
SCRIPTS |= {f"kubernetes {pod['name']}": pod["args"][0] for pod in POD["initContainers"] + POD["containers"]}


def of_pod(container):
    return {variable["name"]: variable["value"] for variable in container["env"]}


def free_ports(number):
    """Ports that nothing listens at now."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


# Kubernetes


@pytest.fixture(scope="module")
def kubernetes():
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip('blocked: no Kubernetes schemas. Run `make test`, or: pip install -e ".[test]"')
    import kubernetes_validate

    return kubernetes_validate


@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_kubernetes_own_schemas_know_every_field_of_the_job(kubernetes, version):
    for resource in KUBERNETES:
        assert kubernetes.validate(resource, version, strict=True) == version
    misspelt = {**JOB, "spec": {**JOB["spec"], "completion": 2}}
    with pytest.raises(kubernetes.ValidationError, match="completion"):
        kubernetes.validate(misspelt, version, strict=True)


def cut_down(*words):
    """The Job that is left by the `sed` in the head of kubernetes.yaml that deletes the lines with these words."""
    (expression,) = re.findall(rf"sed '({'; '.join(f'/{word}/d' for word in words)})' jobs", TEXTS["kubernetes.yaml"])
    command = ["sed", expression, JOBS / "kubernetes.yaml"]
    service, job = yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert service == SERVICE
    return job


def test_the_job_asks_for_all_that_infiniband_needs():
    """E47: the card, pinned memory and the verbs library; and NCCL must not fall back to sockets unnoticed."""
    limits = TORCHRUN["resources"]["limits"]
    assert [name for name in limits if name.startswith("rdma/")] and limits["nvidia.com/gpu"] == 8
    assert TORCHRUN["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert of_pod(TORCHRUN)["NCCL_NET"] == "IB"
    assert "libibverbs1" in TORCHRUN["args"][0]


def test_without_its_gpu_or_rdma_lines_the_job_is_still_one_that_kubernetes_knows(kubernetes):
    for words, limits in ((("rdma",), {"nvidia.com/gpu": 8}), (("rdma", "nvidia.com"), None)):
        job = cut_down(*words)
        kubernetes.validate(job, "1.37", strict=True)
        (left,) = job["spec"]["template"]["spec"]["containers"]
        assert left["args"] == TORCHRUN["args"] and left["resources"]["limits"] == limits
        assert "securityContext" not in left and "NCCL_NET" not in of_pod(left)


def test_the_pods_find_each_other_by_the_names_that_the_service_gives_them():
    name = JOB["metadata"]["name"]
    assert SERVICE["spec"]["selector"] == {"job-name": name}
    assert POD["subdomain"] == SERVICE["metadata"]["name"]
    assert of_pod(TORCHRUN)["MASTER_ADDR"] == f"{name}-0.{POD['subdomain']}"
    assert JOB["spec"]["completions"] == JOB["spec"]["parallelism"]
    assert f"--nnodes={JOB['spec']['completions']} " in TORCHRUN["args"][0]


def test_every_volume_that_a_pod_mounts_is_there():
    mounts = {mount["name"] for pod in POD["initContainers"] + POD["containers"] for mount in pod["volumeMounts"]}
    assert mounts == {volume["name"] for volume in POD["volumes"]}


# SkyPilot


@pytest.mark.slow
def test_skypilots_own_schemas_know_every_field_of_the_task():
    library = Path(sys.prefix) / "skypilot"
    if not library.is_dir():
        pytest.skip(
            "blocked: no SkyPilot. Run `make test`: it puts SkyPilot's code, without what that needs, into .venv"
        )
    # The schemas are functions. What they import would import a hundred packages: two modules that lend them a list
    # each (what `autostop` may wait for, the server's daemons) are stand-ins, which our task does not use.
    check = """
        import sys, types, yaml

        def stand_in(name, **names):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__dict__.update(names)

        library, task = sys.argv[1], yaml.safe_load(open(sys.argv[2]))
        stand_in("sky", __path__=[f"{library}/sky"], __version__="0")
        modes = types.SimpleNamespace(supported_modes=list)
        stand_in("sky.skylet.autostop_lib", AutostopWaitFor=modes)
        stand_in("sky.server.daemons", INTERNAL_REQUEST_DAEMONS=[])
        for package in ("skylet", "server"):
            stand_in(f"sky.{package}", __path__=[f"{library}/sky/{package}"])
        sys.modules["sky.skylet"].autostop_lib = sys.modules["sky.skylet.autostop_lib"]
        sys.modules["sky.server"].daemons = sys.modules["sky.server.daemons"]
        from sky.skylet import constants
        from sky.utils import schemas, validator

        def check(thing, schema):
            validator.get_schema_validator()(schema).validate(thing)

        check(task, schemas.get_task_schema())
        check(task["resources"], schemas.get_resources_schema())
        for wrong in (dict(task, num_node=2), dict(task, run=["torchrun"])):
            try:
                check(wrong, schemas.get_task_schema())
            except Exception as refused:
                print(type(refused).__name__)
        print(*(value for name, value in vars(constants).items() if name.startswith("SKYPILOT_N")))
    """
    for name in ("skypilot_spot.yaml", "skypilot.yaml"):
        command = [sys.executable, "-c", textwrap.dedent(check), library, JOBS / name]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    *refused, variables = done.stdout.splitlines()
    assert refused == ["ValidationError"] * 2, "the schemas do refuse what is wrong"
    used = set(re.findall(r"\$\{?(SKYPILOT_\w+)", SKYPILOT["run"]))
    assert used and used <= set(variables.split())


# What the files say


def test_nobody_gets_a_slow_network_or_a_part_of_a_node_by_default():
    """E48: SkyPilot's fast network, Slurm's whole memory, GPUs by node, and a job that may start again."""
    assert SKYPILOT["resources"]["network_tier"] == "best"
    options = re.findall(r"^#SBATCH (\S+)", TEXTS["slurm.sbatch"], re.MULTILINE)
    assert {"--exclusive", "--mem=0", "--requeue", "--open-mode=append"} <= set(options)
    asked = [
        text for text in (*TEXTS.values(), cluster.__doc__) if re.search(r"(sbatch|submit=)[^\n]*--gpus-per-task", text)
    ]
    assert asked == [], "each rank would see its own GPU alone"


def test_a_run_on_spot_nodes_goes_on_from_a_bucket_when_it_is_started_again():
    assert (SPOT["setup"], SPOT["run"]) == (SKYPILOT["setup"], SKYPILOT["run"])
    (folder, bucket), *others = SPOT["file_mounts"].items()
    assert others == [] and bucket == {"name": "$BUCKET", "mode": "MOUNT"} and SPOT["envs"]["BUCKET"] is None
    assert f"--checkpoint {folder}" in SPOT["envs"]["PROGRAM"]
    resources = SPOT["resources"]
    assert resources["use_spot"] and resources["network_tier"] == "best" and resources["job_recovery"]


def test_every_launcher_leaves_time_to_save_the_state_after_sigterm():
    """More than torchrun's 30 seconds, and less than until the launcher itself kills."""
    slurm = TEXTS["slurm.sbatch"]
    (warned,) = re.findall(r"#SBATCH --signal=TERM@(\d+)", slurm)
    (torchrun,) = re.findall(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", slurm)
    assert 30 < int(torchrun) < int(warned)
    assert 30 < int(of_pod(TORCHRUN)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < POD["terminationGracePeriodSeconds"]
    assert "exec torchrun" in TORCHRUN["args"][0] and "exec torchrun" in slurm, "so that the signal reaches it"


def test_what_16_gpus_cost_is_16_times_what_one_costs():
    rows = re.findall(r"\| \$([\d.]+) \| \$(\d+) \| \$([\d,]+) \|", TEXTS["README.md"])
    assert len(rows) >= 3
    for one, all_of_them, weekend in rows:
        assert round(16 * float(one)) == int(all_of_them)
        assert abs(60 * 16 * float(one) - int(weekend.replace(",", ""))) < 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_can_read_every_script(name):
    done = subprocess.run(["bash", "-n"], input=SCRIPTS[name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_file_and_module_that_is_named_exists():
    text = "\n".join(TEXTS.values())
    files = set(re.findall(r"(?<![\w/])jobs/[\w.]+\w", text))
    assert files >= {f"jobs/{name}" for name in ("train.py", "one_node.sh", "slurm.sbatch", "kubernetes.yaml")}
    assert [name for name in files if not (ROOT / name).exists()] == []
    modules = set(re.findall(r"-m (collectives\.\w+)", text))
    assert modules and [name for name in modules if importlib.util.find_spec(name) is None] == []
    imported = re.findall(r"^from (collectives[\w.]*) import (\w+)", text, re.MULTILINE)
    assert ("collectives.ranks", "cluster") in imported
    for module, name in imported:
        assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")


def test_the_code_fits_into_a_config_map_of_kubernetes():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("collectives", "jobs", "pyproject.toml", "README.md"):
            archive.add(ROOT / name, name, filter=lambda info: None if "__pycache__" in info.name else info)
    assert len(packed.getvalue()) < 2**20, "bytes, the most that a ConfigMap may hold"


def test_every_option_that_is_named_is_one_that_the_program_knows():
    programs = {
        "jobs/train.py": ["jobs/train.py"],
        "collectives.measure.bandwidth": ["-m", "collectives.measure.bandwidth"],
    }
    for name, program in programs.items():
        command = [sys.executable, *program, "--help"]
        known = set(re.findall(r"--[a-z]+", subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout))
        for text in TEXTS.values():
            for words in re.findall(rf"{re.escape(name)}((?: --[a-z]+(?: [a-z]+)*)+)", text):
                assert set(re.findall(r"--[a-z]+", words)) <= known


def test_the_variables_that_find_a_hang_are_ones_that_the_pinned_torch_reads():
    """Chapter 19 and the README name them. Those with NCCL in their name are only in torch's build for GPUs."""
    page = (ROOT / "book" / "19_failures.md").read_text() + TEXTS["README.md"]
    named = set(re.findall(r"`?(TORCH_(?!NCCL)[A-Z_]+)=", page))
    assert named >= {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_DISTRIBUTED_DEBUG"}
    package = Path(torch.__file__).parent
    places = [package / "lib" / "libtorch_cpu.so", *(package / "distributed").rglob("*.py")]
    readers = b"".join(place.read_bytes() for place in places)
    assert [name for name in named if name.encode() not in readers] == []
    assert shutil.which("torchfrtrace", path=Path(sys.executable).parent), "which reads what they make ranks write"


def test_the_flight_recorder_is_on_and_as_long_as_chapter_19_says():
    header = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d" / "FlightRecorder.hpp"
    (entries,) = re.findall(r'"TORCH_NCCL_TRACE_BUFFER_SIZE"\}, (\d+)\)', header.read_text())
    assert f"remembers its last {int(entries):,} collectives" in (ROOT / "book" / "19_failures.md").read_text()


def test_saving_in_the_background_on_gpus_needs_what_chapter_19_says():
    code = inspect.getsource(async_save)
    assert "with 'cpu:gloo,cuda:nccl'" in code
    assert re.search(r"StagingOptions\(\s*False,", code), "the first option is use_pinned_memory"
    assert next(iter(inspect.signature(StagingOptions).parameters)) == "use_pinned_memory"


# What the files do


@pytest.fixture
def beside_a_recorder(tmp_path, monkeypatch):
    """Run a script where `torchrun` writes down what it is called with; return a function that does."""
    recorder = tmp_path / "bin" / "torchrun"
    recorder.parent.mkdir()
    recorder.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    recorder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{recorder.parent}:{os.environ['PATH']}")

    def run(*command, **environment):
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_one_node_starts_two_ranks_without_gpus_and_one_a_gpu_with_them(beside_a_recorder, tmp_path):
    script = tmp_path / "jobs" / "one_node.sh"  # where there is no .venv, whose torchrun would come first
    script.parent.mkdir()
    shutil.copy(JOBS / "one_node.sh", script)
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexit 9\n")  # as without a driver
    smi.chmod(0o755)
    train = ["jobs/train.py", "--strategy", "fsdp"]
    assert beside_a_recorder("bash", script) == ["--standalone", "--nproc-per-node=2", *train]
    smi.write_text("#!/bin/sh\nfor i in 0 1 2 3; do echo GPU $i; done\n")
    assert beside_a_recorder("bash", script) == ["--standalone", "--nproc-per-node=4", *train]
    asked = beside_a_recorder("bash", script, "-m", "collectives.measure.bandwidth", RANKS_PER_NODE="3")
    assert asked == ["--standalone", "--nproc-per-node=3", "-m", "collectives.measure.bandwidth"]


def test_a_pod_starts_its_part_of_the_ranks_by_its_index(beside_a_recorder):
    variables = of_pod(TORCHRUN) | {"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "localhost"}
    *waited, nnodes, index, ranks, address, port, program, option, value = beside_a_recorder(
        *TORCHRUN["command"], *TORCHRUN["args"], **variables
    )
    assert all("localhost" in line for line in waited), "getent says the address that it found"
    assert [nnodes, index, address, port] == [
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=localhost",
        "--master-port=29500",
    ]
    assert ranks.startswith("--nproc-per-node=")
    assert [program, option, value] == ["jobs/train.py", "--strategy", "fsdp"]


@pytest.mark.slow
def test_two_nodes_of_skypilot_meet_and_train_together(tmp_path):
    """A real torchrun for each of two nodes, which are both this machine, by the task's own commands."""
    saved = tmp_path / "trained.json"
    program = f"jobs/train.py --strategy fsdp --steps 1 --layers 1 --width 32 --sequence 16 --save {saved}"
    variables = {"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1", "SKYPILOT_NUM_NODES": "2", "PROGRAM": program}
    variables |= {"SKYPILOT_NUM_GPUS_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": ""}  # one rank a node, over gloo
    variables |= {"MASTER_PORT": str(free_ports(1)[0]), "PYTHONPATH": str(ROOT)}
    nodes = [
        subprocess.Popen(
            ["bash", "-ec", SKYPILOT["run"]],
            cwd=ROOT,
            env=os.environ | variables | {"SKYPILOT_NODE_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [node.communicate(timeout=150)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(printed)
    (result,) = json.loads(saved.read_text())
    assert (result["world_size"], result["backend"]) == (2, "gloo")
    assert ["fsdp" in each for each in printed] == [True, False], "rank 0 alone speaks"


# Slurm: a real one, of two nodes that are both this machine


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment by which Slurm's commands find a Slurm of our own, with nodes node0 and node1."""
    programs = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
    where = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    if missing := [program for program in programs if shutil.which(program, path=where) is None]:
        pytest.skip(
            f"blocked: no Slurm ({', '.join(missing)}). Run `make test` where you may install packages, or: "
            "apt-get install --no-install-recommends slurmctld slurmd slurm-client"
        )
    folder = tmp_path_factory.mktemp("slurm")
    here, user = socket.gethostname().partition(".")[0], getpass.getuser()
    control, *ports = free_ports(3)
    lines = f"""
        ClusterName=course
        SlurmctldHost={here}(127.0.0.1)
        SlurmctldPort={control}
        SlurmUser={user}
        SlurmdUser={user}
        AuthType=auth/none
        CredType=cred/none
        StateSaveLocation={folder}/state
        SlurmdSpoolDir={folder}/spool-%n
        SlurmctldPidFile={folder}/control.pid
        SlurmdPidFile={folder}/%n.pid
        SlurmctldLogFile={folder}/control.log
        SlurmdLogFile={folder}/%n.log
        ProctrackType=proctrack/linuxproc
        TaskPlugin=task/none
        JobAcctGatherType=jobacct_gather/none
        SelectType=select/cons_tres
        SelectTypeParameters=CR_Core
        SlurmdParameters=config_overrides
        GresTypes=gpu
        NodeName=node0 NodeHostname={here} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=2 Gres=gpu:8
        NodeName=node1 NodeHostname={here} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:8
        PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
    """
    (folder / "state").mkdir()
    for node in range(2):
        (folder / f"spool-node{node}").mkdir()
    (folder / "slurm.conf").write_text(textwrap.dedent(lines))
    for gpu in range(8):  # in name only: a job may ask for them
        (folder / f"gpu{gpu}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": where}

    def asked(*command):
        return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)

    try:
        for command in (["slurmctld", "-c"], ["slurmd", "-N", "node0"], ["slurmd", "-N", "node1"]):
            assert (started := asked(*command)).returncode == 0, started.stderr
        awaited = until(lambda: asked("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle", "idle"])
        assert awaited, "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
        yield environment
    finally:
        asked("scancel", f"--user={user}")
        until(lambda: asked("squeue", "-h").stdout == "")  # a step outlives the daemons that it reports to
        for path in folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGTERM)
        until(lambda: not list(folder.glob("*.pid")))


def until(happened, seconds=20.0):
    """Wait for it to happen; return whether it did."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_slurm_accepts_the_job_and_refuses_what_it_does_not_know(slurm):
    def asked(*arguments):
        command = ["sbatch", "--test-only", *arguments, "jobs/slurm.sbatch"]
        return subprocess.run(command, cwd=ROOT, env=os.environ | slurm, capture_output=True, text=True)

    accepted = asked()
    assert accepted.returncode == 0
    assert "on nodes node[0-1]" in accepted.stderr
    assert asked("--gpus-per-node=8").returncode == 0, "and with the GPUs that its first lines speak of"
    assert asked("--gpus-per-node=9").returncode != 0
    assert asked("--nodes=3").returncode != 0
    assert "unrecognized option" in asked("--node-count=2").stderr


def test_slurm_runs_the_job_on_two_nodes(slurm, tmp_path):
    measure = ["-m", "collectives.measure.bandwidth", "--collective", "all_reduce", "--to", "2K", "--iterations", "2"]
    command = ["sbatch", "--parsable", f"--output={tmp_path}/log", "jobs/slurm.sbatch", *measure]
    environment = os.environ | slurm | {"RANKS_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    job = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    states = []

    def over():  # `sbatch --wait` looks after 2, 10 and 42 seconds
        told = subprocess.run(["scontrol", "show", "job", job], env=environment, capture_output=True, text=True)
        states.append(re.search(r"JobState=(\w+)", told.stdout).group(1))
        return states[-1] not in ("PENDING", "RUNNING", "COMPLETING")

    until(over, 90)
    log = (tmp_path / "log").read_text()
    assert states[-1] == "COMPLETED", log
    assert log.count("# all_reduce on 2 ranks over gloo") == 1, log  # rank 0 alone speaks


@pytest.mark.slow
def test_a_job_that_slurm_requeues_goes_on_from_its_state(slurm, tmp_path):
    log, state = tmp_path / "losses", tmp_path / "state"
    small = ["--layers=1", "--width=32", "--heads=2", "--sequence=16", "--vocabulary=256", "--steps=60", "--every=5"]
    program = ["jobs/train.py", *small, "--checkpoint", state, "--losses", log]
    command = ["sbatch", "--parsable", f"--output={tmp_path}/log", "jobs/slurm.sbatch", *map(str, program)]
    environment = os.environ | slurm | {"RANKS_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": ""}

    def asked(*command):
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    job = asked(*command).strip()
    assert until(lambda: log.exists() and len(log.read_text().splitlines()) > 12, 180), (tmp_path / "log").read_text()
    asked("scontrol", "requeue", job)
    begin_now = ["scontrol", "update", f"JobId={job}", "StartTime=now"]  # a requeued job waits two minutes

    def over():
        told = asked("scontrol", "show", "job", job)
        if "Reason=BeginTime" in told:
            subprocess.run(begin_now, env=environment)
        return "JobState=COMPLETED" in told

    assert until(over, 240), (tmp_path / "log").read_text()
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert sorted(set(steps)) == list(range(63)) and len(steps) < 2 * 63 - 5, "it didn't begin anew"
    assert "Restarts=1" in asked("scontrol", "show", "job", job)


def node_and_sum(rank, world_size):
    total = torch.full((4,), float(rank + 1))
    dist.all_reduce(total)
    return os.environ["SLURMD_NODENAME"], total.tolist()


def test_a_notebook_s_function_runs_on_engines_that_slurm_starts(slurm, tmp_path, monkeypatch):
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    results = cluster.run(node_and_sum, 2, launcher="slurm", submit=["--nodes=2"])
    assert sorted(node for node, _ in results) == ["node0", "node1"]
    assert [total for _, total in results] == [[3.0] * 4] * 2
    assert list(tmp_path.iterdir()) == [], "the engines' files are gone"
    queue = subprocess.run(["squeue", "-h", "-t", "RUNNING,PENDING"], capture_output=True, text=True, check=True)
    assert queue.stdout == "", "and so is the job"
