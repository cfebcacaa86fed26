"""A class is judged on the workers of a Dask scheduler, by its address, and gets the points that it gets here."""

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from distributed.comm import CommClosedError
from nbgrader.api import Gradebook
from test_intake import course, solved  # noqa: F401 (the course is a fixture)

from autograder.judging import cluster
from autograder.judging.judges import GraderFault, Judges, Settings
from autograder.sandbox.envelope import CannotSandbox

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).resolve().parents[2]


def test_a_scheduler_by_address_grades_a_class_and_every_worker_proves_its_own_sandbox(course, tmp_path):  # noqa: F811
    place = tmp_path / "class"
    shutil.copytree(course, place)
    notebook = solved(course)
    for student in ("ana", "ben", "eve"):
        folder = place / "submitted" / student / "ps1"
        folder.mkdir(parents=True)
        notebook.cells[2].source += f"  # {student}" if student != "eve" else "\nsquare = print"
        nbformat.write(notebook, folder / "squares.ipynb")
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("dask_cluster.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        try:
            address = cluster.stdout.readline().strip()
            command = [sys.executable, "-m", "autograder.grade", "--course", place, "--dask", address]
            done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        finally:
            cluster.stdin.close()
    assert done.returncode == 0, done.stderr
    assert f"1 workers at {address}; each contained:" in done.stdout
    with Gradebook(f"sqlite:///{place / 'gradebook.db'}", "numbers") as gradebook:
        points = {student: gradebook.find_submission("ps1", student).score for student in ("ana", "ben", "eve")}
    assert points == {"ana": 3, "ben": 3, "eve": 0}


def test_a_scheduler_that_does_not_answer_is_told_of(course):  # noqa: F811
    command = [sys.executable, "-m", "autograder.grade", "--course", course, "--dask", "tcp://127.0.0.1:1"]
    done = subprocess.run([*command, course / "source"], capture_output=True, text=True)
    assert done.returncode == 2 and "cannot grade" in done.stderr


class Workers:
    """A Dask client of whose workers each answers, or has died: what `client.run` returns, call by call."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self, *_, **__):
        return contextlib.nullcontext(self)

    def run(self, *_, on_error):
        assert on_error == "return", "else one worker that dies ends the whole command"
        return self.answers.pop(0)

    def nthreads(self):
        return {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([{"a": CommClosedError("died"), "b": "contained: so"}], id="one of two dies"),
        pytest.param(
            [{"a": CommClosedError("died")}, {"c": "contained: so"}], id="the only one dies, and another comes"
        ),
    ],
)
def test_a_worker_that_dies_while_it_proves_its_sandbox_holds_nobody_up(monkeypatch, answers):
    monkeypatch.setattr(cluster, "Client", Workers(*answers))
    monkeypatch.setattr(cluster.time, "sleep", lambda _: None)
    with contextlib.ExitStack() as stack:
        _, proof, threads = cluster.connect("tcp://here", Settings(), stack)
    assert proof == "1 workers at tcp://here; each contained: so" and threads == 2


def test_a_worker_whose_sandbox_does_not_contain_stops_the_command_whatever_the_others_say(monkeypatch):
    leaking = CannotSandbox("the sandbox does not contain")
    monkeypatch.setattr(cluster, "Client", Workers({"a": "contained: so", "b": leaking}))
    with pytest.raises(CannotSandbox, match="does not contain"), contextlib.ExitStack() as stack:
        cluster.connect("tcp://here", Settings(), stack)


def test_a_judge_that_is_ended_from_outside_is_asked_again_and_then_it_is_the_graders_own_fault(monkeypatch):
    with Judges(Settings(preload=(), unsandboxed=True)) as judges:
        judge, asked = judges._ask, []

        def failing(times):
            def ask(answer, *what):
                asked.append(what)
                if len(asked) > times:
                    judge(answer, *what)
                else:
                    answer.remarks = {"a1": "fault"}

            asked.clear()
            return ask

        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
        monkeypatch.setattr(judges, "_ask", failing(times=2))
        assert judges.judge(notebook).notebook.cells[0].outputs[0].data["text/plain"] == "2" and len(asked) == 3
        monkeypatch.setattr(judges, "_ask", failing(times=3))
        with pytest.raises(GraderFault, match="3 times"):
            judges.judge(notebook)
