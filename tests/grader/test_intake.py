"""Whatever is handed in gets a mark and a reason, and the class is graded: one run, of a course unlike ours.

The course knows nothing of collectives: squares, a written answer and hidden tests, and the three lines that any
instructor adds to an nbgrader_config.py.
"""

import html
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbgrader.api import Gradebook

from autograder import course as courses
from autograder import grade, standing
from autograder.results import feedback, rendering, report
from autograder.submissions import intake

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
c = get_config()
c.CourseDirectory.course_id = "numbers"
from autograder import configure
configure(c, cell_seconds=20)
"""
ANSWER = "def square(x):\n    return x * x"
WRITTEN = "Because the sign is lost."
UNREADABLE = "Nothing in it could be graded"


def cell(kind, source, grade_id=None, **marks):
    made = getattr(nbformat.v4, f"new_{kind}_cell")(source)
    if grade_id:
        known = {"schema_version": 3, "grade_id": grade_id, "grade": False, "solution": False, "locked": False}
        made.metadata["nbgrader"] = {**known, "task": False, **marks}
    made.id = grade_id or f"free-{len(source)}"
    return made


def source():
    """The instructor's notebook: 5 points, 2 of them given by hand."""
    hidden = "import wave\nassert square(-3) == 9, 'of a negative'"
    test = f"assert square(2) == 4\n### BEGIN HIDDEN TESTS\n{hidden}\n### END HIDDEN TESTS"
    cells = [
        cell("markdown", "# Squares"),
        cell("code", "import numpy as np"),
        cell("code", f"### BEGIN SOLUTION\n{ANSWER}\n### END SOLUTION", "square", solution=True),
        cell("code", test, "square-right", grade=True, locked=True, points=2),
        cell("code", "assert np.allclose(square(np.arange(3)), [0, 1, 4])", "square-arrays", grade=True, points=1),
        cell(
            "markdown", f"### BEGIN SOLUTION\n{WRITTEN}\n### END SOLUTION", "why", solution=True, grade=True, points=2
        ),
    ]
    cells[4].metadata.nbgrader["locked"] = True
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The folder of a course whose one assignment is released."""
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "source" / "ps1").mkdir(parents=True)
    nbformat.write(source(), folder / "source" / "ps1" / "squares.ipynb")
    (folder / "source" / "ps1" / "data.csv").write_text("1,2,3\n")
    (folder / "nbgrader_config.py").write_text(CONFIG)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "ps1"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def released(course):
    return nbformat.read(course / "release" / "ps1" / "squares.ipynb", as_version=4)


def solved(course):
    """The released notebook, answered."""
    notebook = released(course)
    by_id(notebook, "square").source = ANSWER
    by_id(notebook, "why").source = WRITTEN
    return notebook


def by_id(notebook, name):
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == name)


# How a submission is spoilt: each function gets the answered notebook and where its file belongs.


def text(content):
    return lambda notebook, path: path.write_bytes(content)


def written(change):
    """Change the notebook, and write it."""

    def spoil(notebook, path):
        path.write_text(nbformat.writes(change(notebook) or notebook))

    return spoil


def as_json(change):
    """Change the notebook's JSON in a way that nbformat would not write."""

    def spoil(notebook, path):
        found = json.loads(nbformat.writes(notebook))
        path.write_text(json.dumps(change(found) or found))

    return spoil


def encoded(name):
    return lambda notebook, path: path.write_bytes(nbformat.writes(notebook).replace("sign", "sígn").encode(name))


def named(name):
    return lambda notebook, path: path.with_name(name).write_text(nbformat.writes(notebook))


def empty_beside_its_copy(notebook, path):
    named("squares-Copy1.ipynb")(notebook, path)
    by_id(notebook, "square").source = "raise NotImplementedError()"
    path.write_text(nbformat.writes(notebook))


def link(notebook, path):
    elsewhere = path.parents[3] / "elsewhere.ipynb"
    elsewhere.write_text(nbformat.writes(notebook))
    path.symlink_to(elsewhere)


def piped_folder(notebook, path):
    path.parent.rmdir()
    os.mkfifo(path.parent)


def linked_folder(notebook, path):
    elsewhere = path.parents[3] / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / path.name).write_text(nbformat.writes(notebook))
    path.parent.rmdir()
    path.parent.symlink_to(elsewhere)


def huge(notebook, path):
    with path.open("wb") as file:
        file.truncate(intake.MOST_BYTES + 1)


def edit_checks(notebook):
    for name in ("square-right", "square-arrays"):
        by_id(notebook, name).source = "pass"
    by_id(notebook, "square").source = "def square(x):\n    return 0"


def drop_checks(notebook):
    notebook.cells = [
        cell for cell in notebook.cells if "square-" not in cell.metadata.get("nbgrader", {}).get("grade_id", "")
    ]


def retype(notebook):
    for name, kind in [("square", "markdown"), ("square-right", "markdown"), ("square-arrays", "raw"), ("why", "code")]:
        by_id(notebook, name).cell_type = kind
    for cell in notebook.cells:
        for field in ("outputs", "execution_count"):
            cell.pop(field, None)
            if cell.cell_type == "code":
                cell[field] = [] if field == "outputs" else None


def duplicate(notebook):
    wrong = by_id(notebook, "square").copy() | {"source": "def square(x):\n    return 0", "id": "copy"}
    notebook.cells.insert(2, nbformat.from_dict(wrong))


def version_3(found):
    cells = [{**cell, "input": cell["source"]} if cell["cell_type"] == "code" else cell for cell in found["cells"]]
    return {"nbformat": 3, "nbformat_minor": 0, "metadata": found["metadata"], "worksheets": [{"cells": cells}]}


def future(found):
    return {**found, "nbformat": 7, "nbformat_minor": 0, "surprise": [None]}


def old_schema(found):
    for cell in found["cells"]:
        if known := cell["metadata"].get("nbgrader"):
            known.update(schema_version=1)
            known.pop("task", None)


def new_schema(found):
    for cell in found["cells"]:
        cell["metadata"].get("nbgrader", {}).update(schema_version=99)


def odd_metadata(found):
    found["metadata"] = {"kernelspec": 7, "autograder": {"unreadable": "no"}, "language_info": []}
    found["cells"].insert(0, {"cell_type": "code", "metadata": None, "source": ["x = ", 3, "1"], "outputs": "none"})
    forged = {"nbgrader": {"grade_id": 5, "grade": True, "points": "many"}, "autograder": {"source": "square = abs"}}
    found["cells"].append({"cell_type": "magic", "metadata": forged, "source": "\ud800\0", "id": "\udc80"})


def look_for_what_hidden_tests_import(notebook):
    by_id(notebook, "square").source = f"import sys\nprint('preloaded:', 'wave' in sys.modules)\n{ANSWER}"


def reorder(notebook):
    notebook.cells.reverse()


def with_timestamp(words):
    def spoil(notebook, path):
        path.write_text(nbformat.writes(notebook))
        (path.parent / "timestamp.txt").write_text(words)

    return spoil


def shadow(notebook, path):
    path.write_text(nbformat.writes(notebook))
    (path.parent / "numpy.py").write_text("raise SystemExit('a file beside the notebook was imported')")


ATTACK = "window.attacked = 1; fetch('http://127.0.0.1:9/stolen')"
ATTACKS = f"""<script>{ATTACK}</script><img src=x onerror="{ATTACK}"><svg onload="{ATTACK}"></svg>
<iframe srcdoc="<script>parent.attacked = 1</script>"></iframe>
<form action="http://127.0.0.1:9"><input autofocus onfocus="{ATTACK}"></form>
<meta http-equiv=refresh content="0;url=http://127.0.0.1:9"><link rel=stylesheet href=http://127.0.0.1:9/a.css>
<style>@import url(http://127.0.0.1:9/b.css); body {{ display: none }}</style><base href=http://127.0.0.1:9>
<p class=full-credit id=submit>x</p><a class=bait href="javascript:{ATTACK}">here</a> <img src=http://127.0.0.1:9/pixel.png>
<object data=http://127.0.0.1:9></object>
<video src=http://127.0.0.1:9/v autoplay onerror="{ATTACK}"></video>
<math><mtext><style><img src=x onerror="{ATTACK}"></style></math>

[there](javascript:window.attacked=1) ![](http://127.0.0.1:9/markdown.png) ![](attachment:none.png)
$$</script><img src=x onerror="{ATTACK}">$$

\\begin{{x}}<img src=x onerror="{ATTACK}">\\end{{x}}
"""
SHOWN = f"""from IPython.display import HTML, SVG, Javascript, display
attack = {ATTACKS!r}
display(HTML(attack), Javascript({ATTACK!r}), metadata={{"isolated": True}})
display({{"text/markdown": attack, "text/plain": "?"}}, raw=True)
display({{"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'><script>{ATTACK}</script></svg>"}}, raw=True)
display({{"image/png": '"><script>window.attacked = 1</script>'}}, raw=True)
display({{"application/vnd.jupyter.widget-view+json": {{"model_id": "x"}}, "text/plain": "?"}}, raw=True)
print(attack)
raise ValueError(attack)
"""


def blow_up(notebook):
    """Add 40 kB of markdown that took minutes and gigabytes to clean."""
    bold = "".join(f"<b a={number:x}>" for number in range(3_000))
    notebook.cells.append(nbformat.v4.new_markdown_cell(f"<p>{bold}{'<p>x' * 3_000}"))


def attack_the_reader(notebook):
    by_id(notebook, "why").source = f"The answer itself.\n\n{ATTACKS}"
    notebook.cells.append(nbformat.v4.new_markdown_cell(ATTACKS, metadata={"tags": ["x onload=alert(1)"]}))
    notebook.cells.append(nbformat.v4.new_code_cell(SHOWN))
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": "</script><script>"}}


# student: (how it is spoilt, its line in the report, what its feedback says)
HANDED_IN = {
    "honest": (written(lambda notebook: None), "3/5, 2 to grade", ""),
    "attacker": (written(attack_the_reader), "3/5, 2 to grade", "The answer itself"),
    "exploding": (written(blow_up), "3/5, 2 to grade", "Shown as plain text, because it"),
    "not_json": (text(b"my answers"), "0/5 (unreadable: the file is not a notebook: it is not valid JSON", UNREADABLE),
    "other_json": (text(b"{}"), "0/5 (unreadable: the file is JSON, but not a notebook", UNREADABLE),
    "empty_file": (text(b""), "0/5 (unreadable: the notebook is empty; was it saved?", "was it saved"),
    "too_deep": (text(b"[" * 100_000), "0/5 (unreadable: the notebook's JSON is nested too deeply", UNREADABLE),
    "too_many_parts": (text(b"[" * 300_000), "0/5 (unreadable: the notebook's JSON has more than", UNREADABLE),
    "huge": (huge, "0/5 (unreadable: squares.ipynb has 20 MB, and the limit is 20 MB", "clear its outputs"),
    "no_file": (
        lambda notebook, path: None,
        "0/5 (unreadable: there is no squares.ipynb in what was handed in",
        UNREADABLE,
    ),
    "two_files": (
        lambda notebook, path: [named(name)(notebook, path) for name in ("a.ipynb", "b.ipynb")],
        "0/5 (unreadable: there is no squares.ipynb in what was handed in, but a.ipynb, b.ipynb",
        "hand in one notebook of that name",
    ),
    "other_notebook": (
        written(lambda notebook: nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])),
        "0/5 (unreadable: the notebook has none of the exercise's cells in it",
        "is it another exercise's",
    ),
    "is_a_folder": (lambda notebook, path: path.mkdir(), "0/5 (unreadable: squares.ipynb is not a file", UNREADABLE),
    "is_a_pipe": (lambda notebook, path: os.mkfifo(path), "0/5 (unreadable: squares.ipynb is not a file", UNREADABLE),
    "is_a_socket": (
        lambda notebook, path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)),
        "0/5 (unreadable: squares.ipynb cannot be opened",
        UNREADABLE,
    ),
    "is_a_link": (link, "0/5 (unreadable: squares.ipynb is a link; hand in the notebook itself", "is a link"),
    "is_a_linked_folder": (linked_folder, "0/5 (unreadable: a link was handed in", UNREADABLE),
    "is_a_piped_folder": (
        piped_folder,
        "0/5 (unreadable: what was handed in is neither a file nor a folder",
        UNREADABLE,
    ),
    "byte_order_mark": (encoded("utf-8-sig"), "3/5, 2 to grade (", "the sígn is lost"),
    "utf_16": (encoded("utf-16"), "3/5, 2 to grade (The file was written as UTF-16", "the sígn is lost"),
    "latin_1": (encoded("latin-1"), "3/5, 2 to grade (The file was written as LATIN-1", "the sígn is lost"),
    "odd_name": (named("squares (1).ipynb"), "3/5, 2 to grade (The file is called squares (1).ipynb", "squares (1)"),
    "worked_copy": (
        empty_beside_its_copy,
        "0/5, 2 to grade (squares-Copy1.ipynb beside it has more answers, but squares.ipynb was graded.",
        "squares-Copy1.ipynb beside it has more answers",
    ),
    "edited_checks": (
        written(edit_checks),
        "0/5, 2 to grade (`square-right`, `square-arrays` changed",
        "as it was handed out",
    ),
    "missing_checks": (written(drop_checks), "3/5, 2 to grade (`square-right`, `square-arrays` missing", "put back"),
    "missing_answer": (
        written(lambda notebook: notebook.cells.pop(2) and None),
        "0/5, 2 to grade (`square`: not in the notebook",
        "YOUR CODE HERE",
    ),
    "retyped": (written(retype), "3/5, 2 to grade (`square`, `why` of another kind", "graded as the original kind"),
    "duplicated": (written(duplicate), "3/5, 2 to grade (`square` in the notebook more than once", "the last one that"),
    "reordered": (written(reorder), "3/5, 2 to grade (", ""),
    "old_format": (as_json(version_3), "3/5, 2 to grade (", ""),
    "future_format": (as_json(future), "3/5, 2 to grade (", ""),
    "old_schema": (as_json(old_schema), "3/5, 2 to grade (", ""),
    "new_schema": (as_json(new_schema), "3/5, 2 to grade (", ""),
    "odd_metadata": (as_json(odd_metadata), "3/5, 2 to grade (", ""),
    "shadow": (shadow, "3/5, 2 to grade (", ""),
    "curious": (written(look_for_what_hidden_tests_import), "3/5, 2 to grade (", "preloaded: False"),
    "no_time": (with_timestamp("yesterday, I think"), "3/5, 2 to grade (timestamp.txt is not a time", ""),
    "absurd_time": (with_timestamp("9999-12-31 23:59:59 UTC"), "3/5, 2 to grade (timestamp.txt is not a time", ""),
    "terminal": (with_timestamp("\x1b[2J\n2"), "3/5, 2 to grade (timestamp.txt is not a time (write it like", ""),
    "zone_that_is_a_file": (
        with_timestamp("2026-11-01 10:00:00 /etc/localtime"),
        "3/5, 2 to grade (timestamp.txt is not a time (write it like",
        "",
    ),
    "-rf [a-z]* 'ö' \"$(id)\"; ../ {0}".replace("/", "∕"): (written(lambda notebook: None), "3/5, 2 to grade (", ""),
    "x" * 129: (written(lambda notebook: None), "NOT GRADED: the folder's name has 129 characters", None),
    "two\nlines": (written(lambda notebook: None), "NOT GRADED: the folder's name has blanks at an end, or", None),
    os.fsdecode(b"latin-\xe9"): (written(lambda notebook: None), "NOT GRADED: the folder's name is not UTF-8", None),
}
NOT_GRADED = [student for student, (_, _, said) in HANDED_IN.items() if said is None]


def run(course, *arguments, **options):
    """Run the command as its user does."""
    command = [sys.executable, "-m", "autograder.grade", "--course", course, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=900, **options)


@pytest.fixture(scope="module")
def graded(course, monkeypatch_module):
    """The whole table, graded at once: what was printed."""
    monkeypatch_module.chdir(course)  # a socket's path is short
    for student, (spoil, _, _) in HANDED_IN.items():
        path = course / "submitted" / student / "ps1" / "squares.ipynb"
        path.parent.mkdir(parents=True)
        spoil(solved(course), path)
    return run(course, "--jobs", 2)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def line_of(printed, student):
    shown = courses.printable(student)
    (line,) = [line for line in printed.splitlines() if line.startswith((f"{shown}/ps1: ", f"{shown}: "))]
    return line.partition(": ")[2]


def page(course, student):
    return course / "feedback" / student / "ps1" / "squares.html"


def words(text):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


@pytest.mark.parametrize("student", HANDED_IN)
def test_whatever_is_handed_in_gets_a_mark_and_a_reason(course, graded, student):
    _, said_to_the_teacher, said_to_the_student = HANDED_IN[student]
    assert line_of(graded.stdout, student).startswith(said_to_the_teacher)
    if said_to_the_student is not None:
        assert said_to_the_student in words(page(course, student).read_text())


def test_the_class_is_graded_and_nothing_else_is_said(graded):
    assert graded.returncode == 1
    assert graded.stderr == ""
    assert "Traceback" not in graded.stdout
    assert f"{len(NOT_GRADED)} of {len(HANDED_IN)} submissions were not graded" in graded.stdout


def test_what_is_unreadable_has_no_points_and_waits_for_nobody(course, graded):
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        grades = gradebook.find_submission("ps1", "not_json").notebooks[0].grades
        assert {(grade.auto_score, grade.needs_manual_grade) for grade in grades} == {(0.0, False)}


def test_hidden_tests_stay_hidden_and_say_what_they_have_to_say(course, graded):
    for student in ("honest", "edited_checks", "not_json"):
        assert "square(-3)" not in words(page(course, student).read_text())
    assert "assert square(2) == 4 AssertionError" in words(page(course, "edited_checks").read_text())


def test_the_report_tells_a_teacher_whose_notebook_was_changed(course, graded):
    found = report.read(f"sqlite:///{course}/gradebook.db", course / "autograded", course / "submitted")
    looks = {look.student: " ".join(look.reasons) for look in found.looks}
    assert "`square-right`, `square-arrays` changed" in looks["edited_checks"]
    assert "`square-right`, `square-arrays` missing" in looks["missing_checks"]
    assert "could not be graded" in looks["not_json"]
    assert "honest" not in looks


def test_what_takes_too_long_to_colour_is_shown_as_it_was_written(monkeypatch):
    """Pygments needs quadratic time for the first of these, and nbconvert's filters for the second."""
    monkeypatch.setattr(feedback, "MOST_SECONDS", 0.5)
    code, text = "a" + ".b" * 30_000, "[" * 40_000 + "](a" * 9
    slow = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code), nbformat.v4.new_markdown_cell(text)])
    cleaned, _ = feedback.Inert().preprocess(slow, {})
    shown, _ = feedback.InertPage().from_notebook_node(cleaned)
    assert ".b" * 30_000 in shown
    assert "[" not in cleaned.cells[1].source and "&#91;" * 40_000 in cleaned.cells[1].source


def test_no_script_of_a_students_runs_in_a_readers_browser(course, graded, browser):
    """Neither on the feedback page nor in the notebook as formgrader shows it, which renders without cleaning."""
    from nbconvert.exporters import HTMLExporter

    notebook = nbformat.read(course / "autograded" / "attacker" / "ps1" / "squares.ipynb", as_version=4)
    shown, _ = HTMLExporter(
        template_name="classic", require_js_url="", mathjax_url="", jquery_url=""
    ).from_notebook_node(notebook)
    formgrader = course / "formgrader.html"
    formgrader.write_text(re.sub(r"<head>.*?</head>", "<head><title>x</title></head>", shown, count=1, flags=re.DOTALL))
    for path in (page(course, "attacker"), formgrader):
        context = browser.new_context()
        opened, asked_for, complaints = context.new_page(), [], []
        opened.on("request", lambda request, asked_for=asked_for: asked_for.append(request.url))
        opened.on("console", lambda message, complaints=complaints: complaints.append(message.text))
        opened.goto(path.as_uri())
        for bait in opened.query_selector_all("a:has-text('here')"):
            bait.dispatch_event("click")
        opened.wait_for_timeout(300)
        assert opened.evaluate("window.attacked") is None
        assert [url for url in asked_for if not url.startswith("data:")] == [path.as_uri()]
        assert complaints == []
        assert opened.locator("body").is_visible()
        assert (
            opened.locator("iframe, object, form, video, base, link, script, .full-credit, .bait, #submit").count() == 0
        )
        assert "The answer itself" in opened.inner_text("body")
        context.close()


def test_a_submissions_line_says_what_was_taken_off_because_it_was_late():
    grade = SimpleNamespace(max_score=5.0, manual_score=None, needs_manual_grade=False)
    notebook = SimpleNamespace(grades=[grade], late_submission_penalty=3.0)
    submission = SimpleNamespace(notebooks=[notebook], score=5.0, max_score=5.0)
    assert standing.in_words(submission) == "2/5, 3 off because it was late"


def test_a_second_run_grades_nothing_again_and_keeps_what_a_person_has_given(course, graded):
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        gradebook.find_grade("why", "squares", "ps1", "honest").manual_score = 1.5
        gradebook.find_grade("why", "squares", "ps1", "honest").needs_manual_grade = False
        gradebook.find_comment("why", "squares", "ps1", "honest").manual_comment = "Half of it."
        gradebook.db.commit()
    again = run(course, "--jobs", 2, "--student", "honest")
    assert "4.5/5 (graded before)" in line_of(again.stdout, "honest")
    assert "Half of it." in page(course, "honest").read_text()
    anew = run(course, "--student", "honest", "--exercise", "ps1", "--regrade")
    assert line_of(anew.stdout, "honest").startswith("4.5/5, 1.5 to confirm")
    assert "Half of it." in page(course, "honest").read_text()
    assert "a person looks again at why" in page(course, "honest").read_text()
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:  # the same points, confirmed
        gradebook.find_grade("why", "squares", "ps1", "honest").needs_manual_grade = False
        gradebook.db.commit()
    run(course, "--student", "honest")
    assert "looks again" not in page(course, "honest").read_text()
    notebook = course / "submitted" / "honest" / "ps1" / "squares.ipynb"
    notebook.write_bytes(notebook.read_bytes() + b"\n")  # the same answers in another file: the page is about that one
    assert "(graded before)" in line_of(run(course, "--student", "honest").stdout, "honest")
    mark = standing.marked(course / "judged", "ps1", "honest")
    assert mark["handed_in"] == {"squares": intake.digest(notebook.read_bytes())}


@pytest.mark.sandbox
def test_a_grader_that_is_killed_goes_on_from_there(course, graded, tmp_path):
    """And while it is at work, no second one writes beside it."""
    for number in range(4):
        notebook = solved(course)
        by_id(notebook, "square").source = f"{ANSWER}  # {number}\nimport time\ntime.sleep({0 if number == 0 else 9})"
        place = tmp_path / f"student{number}" / "ps1"
        place.mkdir(parents=True)
        nbformat.write(notebook, place / "squares.ipynb")
    command = [sys.executable, "-m", "autograder.grade", "--course", course, tmp_path, "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    line = next(line for line in first.stdout if line.startswith("student"))
    second = run(course, tmp_path)
    assert (second.returncode, second.stdout) == (2, "")
    assert "another grade command is at work" in second.stderr
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = run(course, tmp_path, "--jobs", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(4):
        assert line_of(done.stdout, f"student{number}").startswith("3/5, 2 to grade")
    assert "(graded before)" in line_of(done.stdout, line.partition("/")[0])


@pytest.mark.sandbox
def test_an_interrupt_is_answered_in_one_line(course, tmp_path):
    place = tmp_path / "sleeper" / "ps1"
    place.mkdir(parents=True)
    notebook = solved(course)
    by_id(notebook, "square").source = f"{ANSWER}\nimport time\ntime.sleep(15)"
    nbformat.write(notebook, place / "squares.ipynb")
    command = [sys.executable, "-m", "autograder.grade", "--course", course, tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heeded = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, preexec_fn=heeded, **pipes)
    assert process.stdout.readline().startswith("contained")
    os.killpg(process.pid, signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert said == "stopped: every submission with a line above is graded; run it again to continue\n"
    assert (process.returncode, printed) == (130, "")


@pytest.mark.parametrize("heeded", [signal.default_int_handler, signal.SIG_IGN])  # as of a command in the background
def test_an_interrupt_waits_until_the_threads_have_started(heeded):
    started = []
    before = signal.signal(signal.SIGINT, heeded)
    try:
        with nullcontext() if heeded == signal.SIG_IGN else pytest.raises(KeyboardInterrupt), grade.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            started.append(True)
        assert signal.getsignal(signal.SIGINT) == heeded
    finally:
        signal.signal(signal.SIGINT, before)
    assert started


@pytest.mark.parametrize(
    "lines, reason",
    [
        ("raise ValueError('half a config')", "ValueError: half a config"),
        (
            "c.Autograde.autograde_preprocessors.append('nbgrader.preprocessors.Execute')",
            "would run students' code unsandboxed",
        ),
        ("c.Autograde.autograde_preprocessors = ['nbgrader.preprocessors.SaveAutoGrades']", "Judge is 0 times in"),
        (
            "c.Autograde.exporter_class = 'nbconvert.exporters.NotebookExporter'",
            "exporter_class is not the autograder's",
        ),
        ("c.Judge.enabled = False", "Judge.enabled is False"),
        ("c.Autograde.pre_convert_hook = 'no.such_hook'", "ModuleNotFoundError: No module named 'no'"),
        ("c.Judge.cell_seconds = 'long'", "TraitError"),
        ("c.CourseDirectory.db_url = 'postgresql://nobody@127.0.0.1:9/none'", "the gradebook cannot be opened"),
    ],
)
def test_a_broken_configuration_is_refused(course, tmp_path, monkeypatch, lines, reason):
    (tmp_path / "nbgrader_config.py").write_text(CONFIG + lines)
    monkeypatch.chdir(tmp_path)
    asked = grade.options().parse_args(["--course", str(tmp_path)])
    with pytest.raises(courses.NothingGraded, match=re.escape(reason)):
        courses.opened(asked).check()


@pytest.mark.parametrize(
    "url", ["grader:s3cret/pass@db.host/grades", "grader:s3cret:pass@db.host/grades", "db.host/grades?password=s3cret"]
)
def test_the_password_of_a_gradebook_is_not_printed(url):
    words = courses.shown_url(f"postgresql+psycopg://{url}")
    assert "s3cret" not in words and words.endswith("db.host/grades")


@pytest.mark.sandbox
def test_a_failing_hook_stops_the_grader(course, graded, tmp_path):
    """nbgrader's own logs it, and goes on."""
    config = course / "nbgrader_config.py"
    config.write_text(CONFIG + "def hook(**_):\n    1 / 0\nc.Autograde.pre_convert_hook = hook\n")
    try:
        done = run(course, "--student", "honest", "--regrade")
    finally:
        config.write_text(CONFIG)
    assert done.returncode == 2
    assert "a hook of the course's nbgrader_config.py fails: ZeroDivisionError" in done.stderr


@pytest.mark.sandbox
def test_without_bubblewrap_nothing_is_graded(course, graded, tmp_path):
    command = [sys.executable, "-m", "autograder.grade", "--course", course, "--student", "honest", "--regrade"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 2
    assert "bubblewrap" in done.stderr


def test_math_and_tables_survive_cleaning():
    kept, _ = rendering.markdown("| a | b |\n|---|---|\n| $x < y$ | **2** |\n\n[link](https://example.org) `<b>`")
    assert "<table>" in kept and "$x &lt; y$" in kept and "<strong>2</strong>" in kept
    assert 'href="https://example.org"' in kept and "<code>&lt;b&gt;</code>" in kept


def test_an_edited_import_runs_in_the_sandbox_and_the_instructors_own_in_the_judge():
    cells = source().cells
    template = intake.Template("squares", nbformat.from_dict({}), cells, [cell.source for cell in cells])
    given = [
        intake.Cell("code", "import numpy as np, math", None, cells[1].id, {}),
        intake.Cell("code", "1", "square", None, {}),
    ]
    rebuilt = intake.rebuilt(template, given, []).notebook.cells
    (edited,) = [cell for cell in rebuilt if cell.source == "import numpy as np, math"]
    assert edited.metadata.autograder.source == "import numpy as np"


def test_a_copy_in_the_same_folder_is_noted_if_it_may_be_the_one_that_was_meant(tmp_path):
    empty = b'{"grade_id": "a", "source": "raise NotImplementedError()", "words": "YOUR ANSWER HERE"}'
    answered, mended = (empty.replace(b"raise NotImplementedError()", answer) for answer in (b"1", b"2"))
    in_words = empty.replace(b"YOUR ANSWER HERE", b"because")
    folder = tmp_path / "squares"
    for name, mine, other, note in [
        ("squares (1).ipynb", empty, answered, "squares (1).ipynb beside it has more answers, but squares.ipynb was"),
        ("squares-1.ipynb", answered, mended, "squares-1.ipynb beside it differs"),
        ("work/squares.ipynb", empty, answered, "work/squares.ipynb beside it has more answers"),
        ("squares-Copy1.ipynb", empty, in_words, "squares-Copy1.ipynb beside it has more answers"),
        ("squares-Copy1.ipynb", answered, mended, None),
        ("squares (1).ipynb", answered, empty, None),
        ("squares (1).ipynb", answered, answered, None),
        ("triangles.ipynb", empty, answered, None),
    ]:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / name).parent.mkdir(parents=True)
        (folder / "squares.ipynb").write_bytes(mine)
        (folder / name).write_bytes(other)
        notes = intake.better_copies(folder / "squares.ipynb", mine, "squares")
        assert [note] == [each[: len(note)] for each in notes] if note else notes == []


def test_a_notebook_beside_the_folder_that_counts_is_named(tmp_path, capsys):
    """The instructor has put a mended one there by hand, after a collection has made the folder."""
    (tmp_path / "ada" / "03_ring").mkdir(parents=True)
    (tmp_path / "ada" / "03_ring" / "03_ring.ipynb").touch()
    for name in ("03_ring", "05_crossover"):
        (tmp_path / "ada" / f"{name}.ipynb").touch()
    found, skipped = grade.find(tmp_path, ["03_ring", "05_crossover"])
    assert sorted(str(each) for each in found) == ["ada/03_ring", "ada/05_crossover"] and skipped == []
    assert capsys.readouterr().out == "ada/03_ring.ipynb: left alone: the folder beside it counts\n"


def test_a_folder_that_cannot_be_looked_into_is_named_and_the_others_are_graded(tmp_path, monkeypatch, capsys):
    """As of an archive whose folders have mode 0444."""
    for student in ("ana", "eve"):
        (tmp_path / student / "03_ring").mkdir(parents=True)
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: os.open("/", os.O_RDWR) if "eve" in path.parts else is_file(path))
    found, skipped = grade.find(tmp_path, ["03_ring"])
    assert [(each.student, each.exercise) for each in found] == [("ana", "03_ring")]
    assert [each.student for each in skipped] == ["eve"] and "eve: NOT GRADED: " in capsys.readouterr().out
