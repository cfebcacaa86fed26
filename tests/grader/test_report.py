"""The report that a teacher reads: what it counts, what it finds alike, and that nothing of a student's runs in it."""

import ast
import random
import re
import time
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest
from answers import cells_of
from gradebooks import gradebook_of
from test_grading_the_grader import tried

from autograder import release
from autograder.results import report, similar
from autograder.submissions import senders
from autograder.submissions.intake import digest

ROOT = Path(__file__).resolve().parents[2]

EVIL = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


# Nearly the same


def code_cells(exercise):
    return {cell.id: cell.source for cell in cells_of(exercise) if cell.cell_type == "code"}


def stubs(exercise):
    path = ROOT / "exercises" / exercise / f"{exercise}.ipynb"
    return {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"}


def solutions(exercise):
    return {cell: code for cell, code in code_cells(exercise).items() if "BEGIN SOLUTION" in code}


class Renamed(ast.NodeTransformer):
    """Renames all that a source binds, as somebody does who hides where it is from."""

    def __init__(self, tree):
        nodes = [*ast.walk(tree)]
        bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.new = {name: f"mine_{place}" for place, name in enumerate(sorted(bound))}

    def visit_Name(self, node):
        return ast.copy_location(ast.Name(self.new.get(node.id, node.id), node.ctx), node)

    def visit_arg(self, node):
        return ast.arg(self.new.get(node.arg, node.arg))


def disguised(source):
    """The same answer with other names, other docstrings, comments and formatting, and two lines that do nothing."""
    tree = ast.parse(source)
    tree = ast.fix_missing_locations(Renamed(tree).visit(tree))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    function.body[:0] = ast.parse('"""All my own work."""').body
    function.body[1:1] = ast.parse("verbose = False").body
    function.body.insert(-1, ast.parse("if verbose: print('here')").body[0])
    return "# written by me\n" + ast.unparse(tree).replace("\n", "  # mine\n\n")


def is_long(exercise, cell, source):
    stub = similar.read(stubs(exercise)[cell])
    return similar.Own(similar.read(source), stub.tokens, stub.prints).tokens >= similar.SHORT


def test_every_long_answer_is_found_again_in_disguise():
    found = {}
    for exercise in release.names():
        given = stubs(exercise)
        for cell, source in solutions(exercise).items():
            if "\ndef " in f"\n{source}" and is_long(exercise, cell, source):
                told = similar.alike({cell: {"ada": source, "bob": disguised(source)}}, given)
                found[exercise, cell] = [one.students for one in told]
    assert len(found) > 20
    assert {key for key, told in found.items() if told != [("ada", "bob")]} == set()


# Right answers of the exercises' tests that keep most of the solution's lines.
AFTER_THE_SOLUTION = {("08_data_parallel", "from the end", "overlapped"), ("20_plan", "near the best", "choose")}


def test_right_answers_that_were_written_apart_are_not_reported():
    """The solutions and the right answers of the exercises' tests: 144 pairs, of which two are nearly the same."""
    compared, reported = 0, set()
    for exercise in release.names():
        mine = solutions(exercise)
        for name, theirs in tried(exercise)[1].items():
            pairs = {cell: {"ada": mine[cell], "bob": dedent(theirs[cell])} for cell in mine if cell in theirs}
            reported |= {(exercise, name, one.cell) for one in similar.alike(pairs, stubs(exercise))}
            compared += len(pairs)
    assert compared > 100
    assert reported == AFTER_THE_SOLUTION


def test_what_was_handed_out_and_what_is_short_count_for_nothing():
    exercise, cell = "03_ring", "ring-reduce-scatter"
    given = stubs(exercise)
    assert similar.read(given["swap"]).tokens > similar.SHORT  # an example, which an answer may well begin with
    for source in (given[cell], given["swap"], f"{given['swap']}\n\n{given[cell]}"):
        assert similar.alike({cell: {"ada": source, "bob": source}}, given) == []
    short = {"ada": "def f(p): return 2 * (p - 1)", "bob": "def f(n): return 2 * (n - 1)"}
    assert similar.alike({"b": short}, {}) == []


def test_a_short_answer_that_many_have_is_no_surprise_and_a_long_one_is():
    lines = [f"    a = a + b * {i} - f(b, {i})" for i in range(20)]
    short, long = ("\n".join(["def f(a, b):", *lines[:count], "    return a"]) for count in (6, 20))
    for source, told in [(short, False), (long, True)]:
        tokens = similar.read(source).tokens
        assert (tokens >= similar.LONG) == told and tokens >= similar.SHORT
        class_of = {f"s{i}": source + f"\n# {i}" for i in range(similar.COMMON + 1)}
        assert bool(similar.alike({"c": class_of}, {})) == told
        assert len(similar.alike({"c": dict([*class_of.items()][:2])}, {})) == 1


def test_short_answers_tell_something_only_when_all_of_them_are_alike():
    stubs_of = {cell: f"def {cell}(a, b):\n    ..." for cell in "fgh"}
    short = {
        cell: f"def {cell}(a, b):\n    return a * {n} + b - {cell}(a - 1, b) * (a ** {n} + {n}) / abs(b - 7)"
        for n, cell in enumerate("fgh")
    }
    answers_of = {cell: {"ada": source, "bob": source.replace("b", "c")} for cell, source in short.items()}
    assert similar.alike(answers_of, stubs_of) == []
    (told,) = similar.alike(*report.together(answers_of, report.HandedOut(stubs_of, set(stubs_of))))
    assert (told.cell, told.students) == (report.TOGETHER, ("ada", "bob"))


@pytest.mark.parametrize(
    "source",
    [
        "-" * 60_000 + "1",
        "a" + ".b" * 60_000,
        "\n" * 300_000 + "a" + ".b" * 300,
        "(" * 300,
        "x = '\\ud800'",
        "\0",
        "%timeit f()\n!ls",
        "def f(:",
        "",
    ],
)
def test_code_that_would_break_a_parser_is_compared_all_the_same(source):
    told = similar.alike({"c": {"ada": source, "bob": source, "eve": "x = 1"}}, {"c": ""})
    assert [one.students for one in told] == ([("ada", "bob")] if len(source) > similar.SHORT else [])


def test_a_class_of_a_thousand_is_compared_by_an_index_not_in_pairs():
    """A thousand answers with 20 that were copied: the copies, and nothing else, within 20 s of processor time."""
    random.seed(7)
    operators = "+-*/%"

    def own_answer():
        lines = [
            f"    x{i} = {'abxy'[random.randrange(2)]} {random.choice(operators)} {random.randrange(50)}"
            f" {random.choice(operators)} f({random.randrange(50)}, {'ab'[random.randrange(2)]})"
            for i in range(15)
        ]
        return "def f(a, b):\n" + "\n".join(lines) + "\n    return x3"

    class_of = {f"s{i:03}": own_answer() for i in range(1000)}
    copied = [(f"s{i:03}", f"s{i + 500:03}") for i in range(20)]
    for one, other in copied:
        class_of[other] = disguised(class_of[one])
    begun = time.process_time()
    found = similar.alike({"c": class_of}, {})
    assert time.process_time() - begun < 20
    assert {one.students for one in found} == set(copied)


# The numbers, and the page

QUESTIONS = {"02_tree": {"a1": 4, "b1": 6}}
LATE = {"s07": b"x", "s08": b"handed in anew"}  # their graded notebooks; Canvas marked both students' x as late
SOLUTION = "\n".join(["def f(a):", *(f"    a = a * {i} + f(a - {i})" for i in range(9)), "    return a"])


def graded(place, sources, about=None):
    """Write the graded notebook of a submission."""
    notebook = nbformat.v4.new_notebook(metadata={"autograder": about or {}})
    for name, source in sources.items():
        notebook.cells.append(nbformat.v4.new_code_cell(source, metadata={"nbgrader": {"grade_id": name}}))
    place.mkdir(parents=True)
    nbformat.write(notebook, place / f"{place.name}.ipynb")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Thirty students: a third has all, a third only the first question, a third nothing; and some odd ones."""
    folder = tmp_path_factory.mktemp("course")
    got = [{"a1": 4, "b1": 6}, {"a1": 4, "b1": 0}, {"a1": 0, "b1": 0}]
    given = {(f"s{i:02}", "02_tree"): got[i % 3] for i in range(30)} | {(EVIL, "02_tree"): {"a1": 4, "b1": None}}
    given["odd", "02_tree"] = {"a1": 0, "b1": 0}
    people = {"s05": {"first_name": "Dora", "last_name": EVIL}}
    url = f"sqlite:///{folder / 'gradebook.db'}"
    gradebook_of(url, QUESTIONS, given, {("s00", "02_tree"): 1}, people, stubs={"02_tree": {"f": "def f(a):\n    ..."}})
    for number, (student, exercise) in enumerate(given):
        about = {"remarks": {"a1": "time", "b1": "memory"}} if student == "s05" else {}
        if student == "odd":
            about = {"unreadable": f"no JSON {EVIL}", "notes": [f"Nothing in it could be graded: no JSON {EVIL}."]}
        source = SOLUTION if student in ("s01", "s04") else f"def f(a):\n    return {number}"
        if student != "s06":
            graded(folder / "autograded" / student.replace("/", "-") / exercise, {"f": source}, about)
    (folder / "submitted" / "lost" / "02_tree").mkdir(parents=True)
    remembered = {student: senders.Sender("Canvas 1", "", True, taken=[digest(b"x")], late=True) for student in LATE}
    for student, content in LATE.items():
        place = folder / "submitted" / student / "02_tree"
        place.mkdir(parents=True)
        (place / "02_tree.ipynb").write_bytes(content)
    (folder / "collected" / "02_tree").mkdir(parents=True)
    senders.write(remembered, senders.file_of(folder / "collected", "02_tree"))
    return url, folder


def test_the_numbers_are_those_of_the_gradebook(course):
    url, folder = course
    found = report.read(url, folder / "autograded", folder / "submitted", folder / "collected")
    (exercise,) = found.exercises
    assert found.students == len(exercise.totals) == 32
    assert (exercise.most, exercise.open, exercise.late) == (10, 1, 1)
    assert exercise.bars == [11, 0, 0, 0, 11, 0, 0, 0, 0, 10]  # the one who was late has 9 of 10
    assert sum(exercise.totals) == 9 * 10 + 9 + 11 * 4
    rows = {row.name: row for row in exercise.rows}
    assert rows["a1"].share == pytest.approx(21 / 32) and rows["a1"].zero == pytest.approx(11 / 32)
    assert rows["b1"].share == pytest.approx(10 / 31) and rows["b1"].open == 1
    assert rows["b1"].apart == pytest.approx(10 * 11 / (20 * 11 * 10 * 21) ** 0.5)  # by hand
    looks = {look.student: look.reasons for look in found.looks}
    assert looks["s05"] == ["out of time in a1", "out of memory in b1"]
    assert looks["s06"] == ["in the gradebook, but its graded notebook is missing"]
    assert looks["odd"] == [f"could not be graded: no JSON {EVIL}"]
    assert looks["s07"] == ["late, as Canvas says"] and "s08" not in looks
    assert looks["lost"] == ["handed in, but not graded: see the output of `make grade`"]
    low = {each.student: (each.points, each.most, each.zeros) for each in found.help}
    assert list(low) == sorted(low, key=lambda student: (low[student][0], student))
    assert low["s02"] == (0, 10, ["02_tree (all)"]) and low["s01"] == (4, 10, ["02_tree (b1)"])
    assert EVIL not in low, "4 of 4 points, and an answer that nobody has read"
    assert "s00" not in low and len(low) == 21
    assert [(pair.alike.students, pair.points) for pair in found.pairs] == [(("s01", "s04"), [4, 4])]


def test_the_page_runs_nothing_asks_for_nothing_and_is_legible_in_the_dark_and_on_paper(course, tmp_path, browser):
    folder = course[1]
    assert report.main(["--course", str(folder), "--into", str(tmp_path)]) == 0
    page_path = tmp_path / "report.html"
    assert "<script" not in page_path.read_text(encoding="utf-8")
    context = browser.new_context(color_scheme="dark", viewport={"width": 390, "height": 800})
    page = context.new_page()
    heard = []
    page.on("request", lambda request: heard.append(request.url))
    page.on("console", lambda message: heard.append(message.text))
    page.goto(page_path.as_uri())
    assert heard == [page_path.as_uri()]
    assert page.title() == "default_course: report"
    assert EVIL in page.locator("body").inner_text().replace("\n", " ")
    assert page.locator("svg rect").count() == report.BINS
    edges = page.evaluate("[...document.querySelectorAll('td')].map(cell => cell.getBoundingClientRect().right)")
    assert max(edges) <= 390 >= page.evaluate("document.documentElement.scrollWidth")
    assert page.evaluate("getComputedStyle(document.body).colorScheme") in ("light dark", "normal")
    context.close()


def test_the_text_says_the_same_and_no_control_character_gets_into_a_terminal(course, tmp_path, capsys):
    url, folder = course
    report.write(url, folder / "autograded", tmp_path, folder / "submitted")
    text = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert "02_tree: 32 submissions, mean 4.5, median 4 of 10, 1 to grade by hand, 1 late" in text
    assert "Below half of the points: 21" in text and "    s02: 0 of 10\n" in text
    assert f"Dora {EVIL} (s05), 02_tree: out of time in a1; out of memory in b1" in text
    assert "02_tree, f: s01, s04 (100% of" in text
    assert report.text(report.Report("a\x1b[31mb", *[report.datetime.now(), 0, [], [], [], []])).startswith(
        "a\ufffd[31mb"
    )


def test_without_a_gradebook_one_line_says_what_to_do(tmp_path, capsys):
    assert report.main(["--course", str(tmp_path)]) == 2
    assert re.fullmatch(r"no report: there is no gradebook .*: run `make grade` first\n", capsys.readouterr().err)
    assert [*tmp_path.iterdir()] == []
