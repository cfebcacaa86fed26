"""Set-up installs what a command needs and no more, and says in one line what it can't do."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ONLY_FOR_TESTS = ["slurm", "postgresql", "chromium"]
NOT_FOR_READERS = {"distributed", "jupyterhub", "ipyparallel", "playwright", "psycopg[binary]", "skypilot", "pytest"}


def program(folder, name, script):
    """Put a shell script where the set-up looks for a program."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path):
    """A PATH on which there is a user, who isn't root, and next to nothing else."""
    path = tmp_path / "bin"
    program(path, "id", "echo 1000")
    for name in ("uname", "grep"):
        (path / name).symlink_to(shutil.which(name))
    return path


def system_packages(tier, path):
    command = [shutil.which("bash"), ROOT / "tools" / "system_packages.sh", tier]
    done = subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True)
    assert done.returncode == 0, f"set-up must go on: {done.stderr}"
    return done.stdout.splitlines()


def test_without_apt_one_line_names_what_is_missing(bare):
    (line,) = system_packages("book", bare)
    assert "going on without iproute2 (chapters measure on emulated network lines)" in line
    assert "package manager" in line


def test_without_root_one_line_says_what_to_type_and_apt_is_not_run(bare, tmp_path):
    program(bare, "apt-get", f"echo $* >> {tmp_path}/asked")
    program(bare, "sudo", "exit 1")  # it wants a password
    (line,) = system_packages("grade", bare)
    assert "To install them: sudo apt-get install iproute2 bubblewrap" in line
    assert not (tmp_path / "asked").exists()


def test_a_reader_s_apt_is_asked_for_iproute2_alone_and_told_why(bare, tmp_path):
    program(bare, "id", "echo 0")
    program(bare, "apt-get", f"echo $* >> {tmp_path}/asked")
    (bare / "env").symlink_to(shutil.which("env"))
    (line,) = system_packages("book", bare)
    assert line == "env: installing iproute2 by apt: chapters measure on emulated network lines"
    assert (tmp_path / "asked").read_text().splitlines()[1:] == ["install -y -qq --no-install-recommends iproute2"]


def test_the_book_needs_nothing_that_only_tests_need(bare):
    for_book, for_tests = ("\n".join(system_packages(tier, bare)) for tier in ("book", "test"))
    assert [name for name in ONLY_FOR_TESTS if name in for_book] == []
    assert "slurmctld" in for_tests and "chromium" in for_tests
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert NOT_FOR_READERS.isdisjoint(requirement.partition(">")[0] for requirement in extras["book"])


@pytest.mark.skipif(
    not shutil.which("bwrap"), reason="blocked: no bubblewrap, which gives this test a system of its own"
)
def test_apt_starts_no_service_and_what_forbids_it_is_gone_afterwards(bare, tmp_path):
    program(bare, "id", "echo 0")
    program(bare, "apt-get", "/usr/sbin/policy-rc.d; echo starts: $?; cat /etc/postgresql-common/createcluster.d/*")
    program(bare, "dpkg", "exit 1")  # no package has the folder
    for name in ("env", "install", "rm", "rmdir", "cat", "sh"):
        (bare / name).symlink_to(shutil.which(name))
    system = tmp_path / "system"
    for folder in ("sbin", "etc"):
        (system / folder).mkdir(parents=True)
    its_own = ["--dev-bind", "/", "/", "--bind", system / "sbin", "/usr/sbin", "--bind", system / "etc", "/etc"]
    command = [shutil.which("bwrap"), *its_own, shutil.which("bash"), ROOT / "tools" / "system_packages.sh", "test"]
    done = subprocess.run(command, env={"PATH": str(bare)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "starts: 101" in done.stderr, "101 forbids it"
    assert "create_main_cluster = false" in done.stderr
    assert [path for path in system.rglob("*") if path.is_file() or path.name == "postgresql-common"] == []


@pytest.mark.parametrize(
    ("command", "tier"),
    [("book", "book"), ("lab", "book"), ("submit", "book"), ("grade", "grade"), ("quick", "test"), ("test", "test")],
)
def test_a_command_asks_for_the_smallest_tier_that_serves_it(command, tier, tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "package.json", "package-lock.json"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    done = subprocess.run(["make", "-n", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in done.stdout.splitlines() if "tools/env.sh" in line] == [tier]


def set_up(folder, **environment):
    """Set up the book's tier in a folder of its own; return what it complains of."""
    shutil.copytree(ROOT / "tools", folder / "tools", dirs_exist_ok=True)
    for name in ("pyproject.toml", "constraints.txt", "README.md"):
        shutil.copy(ROOT / name, folder)
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    command = ["bash", folder / "tools" / "env.sh", "book"]
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert not (folder / ".venv" / ".ready-book").exists()
    return done.stderr.splitlines()


def test_a_wrong_python_gives_one_line_that_says_what_to_do(tmp_path):
    old = program(tmp_path / "bin", "python3", "echo 3.9")
    (line,) = set_up(tmp_path, PYTHON=str(old))
    assert line.startswith("env: Python 3.11 or newer is needed") and "is 3.9" in line and "make env PYTHON=" in line


def test_a_python_that_is_not_there_gives_one_line(tmp_path):
    (line,) = set_up(tmp_path, PYTHON="python-of-nowhere")
    assert line.startswith("env: Python 3.11 or newer is needed") and "python-of-nowhere is missing" in line


def test_a_python_without_venv_gives_one_line(tmp_path):
    lame = program(tmp_path / "bin", "python3", '[ "$1" = -c ] && echo 3.12')
    (line,) = set_up(tmp_path, PYTHON=str(lame))
    assert "apt-get install python3-venv" in line


@pytest.mark.slow
def test_no_network_gives_one_line(tmp_path):
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    (line,) = set_up(tmp_path, PYTHON=sys.executable, **offline)
    assert line.startswith("env: Python packages for: book") and "Check the network" in line
