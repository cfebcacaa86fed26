"""The page that a student reads: points and reasons first, an unread answer is no zero, a phone shows all of it."""

import base64
import contextlib
import html
import io
import random
import re

import pytest
from answers import cells_of
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from nbgrader.server_extensions.formgrader import handlers
from PIL import Image
from traitlets.config import Config

from autograder import release
from autograder.results import feedback
from collectives.practice import ch04_all_reduce, checks

HIDDEN = """check(f, 1)
### BEGIN HIDDEN TESTS
from checks import fresh
with fresh() as seed:
    check(f, seed)
check(f, 2)
### END HIDDEN TESTS
print("right")"""
LONG = "rank 3 returns " + "[0.25, 0.5], " * 40


def about(name, got=None, most=2.0, **more):
    grade = {} if got is None else {"score": got, "points": most}
    settings = {"grade_id": name, "grade": got is not None, "solution": False, "locked": True, "task": False}
    return {"nbgrader": {**settings, **grade, **more}}


def error(words):
    return new_output("error", ename="NotYet", evalue=words, traceback=[f"NotYet: {words}"])


@pytest.fixture(scope="module")
def page():
    cells = [
        new_code_cell("setup = 1", metadata=about("setup")),
        new_code_cell("def f(): ...", metadata=about("f", solution=True, locked=False, comment="Well *named*")),
        new_code_cell("assert f()", metadata=about("a1-sums", 2.0)),
        new_code_cell("assert f(1)", metadata=about("a2-<b>", 0.0), outputs=[error(LONG)]),
        new_code_cell("1.5", metadata=about("b1-part", 1.5, 4.0)),
        new_markdown_cell("My answer", metadata=about("d-why", 0.0, 4.0, solution=True, locked=False, unread=True)),
    ]
    found = {"notebook": "03_ring", "whose": "Ana <b> (ana)", "score": 3.5, "max_score": 12.0, "late_penalty": 0.0}
    return feedback.InertPage().from_notebook_node(new_notebook(cells=cells), {"nbgrader": found})[0]


@pytest.mark.parametrize("text", ["\n" * 200_000, "\u05d0a" * 200_000], ids=["empty lines", "changes of direction"])
@pytest.mark.parametrize("of", ["stream", "display_data", "execute_result"])
def test_a_page_shows_no_more_lines_than_a_browser_lays_out_in_seconds(text, of):
    fields = {"text": text} if of == "stream" else {"data": {"text/plain": text}}
    shown = new_notebook(cells=[new_code_cell("x", outputs=[new_output(of, **fields)])])
    feedback.limit_outputs(shown)
    *kept, note = shown.cells[0].outputs
    assert note.text == feedback.NOTE and len(str(kept)) < 5_000
    shown = new_notebook(cells=[new_code_cell("x", outputs=[new_output("stream", text=text[:50_000])])])
    feedback.limit_outputs(shown)
    assert shown.cells[0].outputs[0].text == text[:50_000]


def test_a_rubric_is_below_the_answer_for_graders_and_not_on_the_students_page():
    answer = new_markdown_cell("My answer", metadata=about("d-why", 0.0, 4.0, solution=True, locked=False))
    graded = new_notebook(cells=[answer], metadata={"autograder": {"rubrics": {"d-why": "Two points for *why*."}}})
    shown, _ = feedback.Inert().preprocess(graded, {})
    assert "Two points for *why*." in shown.cells[1].source
    page, _ = feedback.InertPage().from_notebook_node(shown)
    assert "My answer" in page and "Two points" not in page


def test_mathjax_passes_over_what_a_student_wrote_and_not_over_the_instructors_texts():
    """A formula of a student's may redefine the symbols of the rubric, cover the page, or take the tab's memory."""
    tex = r"$\def\le{\ge}\alpha$ $$x$$"
    outputs = [new_output("display_data", {kind: tex}) for kind in ("text/html", "text/markdown", "text/latex")]
    plain = new_output("display_data", {"text/plain": tex})
    cells = [
        new_markdown_cell("INSTRUCTOR $a$", metadata={"autograder": {"author": "instructor"}}),
        new_markdown_cell(f"INSTRUCTOR {tex}", metadata=about("given")),
        new_markdown_cell(tex, metadata=about("d-why", 0.0, 4.0, solution=True, locked=False)),
        new_markdown_cell(f"plain &#13;&#13;`x` {tex}\n\n</div>{tex}<b class=tex2jax_process>{tex}"),
        new_raw_cell(f"{tex}</div>{tex}", metadata={"raw_mimetype": ""}),
        new_code_cell(f"# {tex}", outputs=[*outputs, plain, new_output("stream", text=tex), error(tex)]),
    ]
    rubrics = {"d-why": "INSTRUCTOR $b$"}
    graded, _ = feedback.Inert().preprocess(
        new_notebook(cells=cells, metadata={"autograder": {"rubrics": rubrics}}), {}
    )
    shown, _ = HTMLExporter(template_name="classic").from_notebook_node(graded)  # formgrader's extends this one
    body = BeautifulSoup(shown, "html.parser").body
    passed_over = {True: [], False: []}  # as MathJax's tex2jax decides
    for text in body.find_all(string=lambda words: "$" in words):
        inside = text.find_parent(["pre", "code"]) or text.find_parent(class_="tex2jax_ignore")
        passed_over[bool(inside)].append(text.strip())
        assert text.find_parent(class_="tex2jax_process") is None
    assert len(passed_over[False]) == 3 and all("INSTRUCTOR" in text for text in passed_over[False])
    assert sum(r"\alpha" in text for text in passed_over[True]) >= 10
    page, _ = feedback.InertPage().from_notebook_node(graded)
    assert page.count(html.escape(r"\alpha")) >= 10, "the student's page shows it all, too"


def test_a_cell_of_a_students_that_imitates_the_rubric_is_marked_and_has_another_form():
    forged = (
        "<div class='alert alert-info' style='color: red'>\n\n**For graders only: the instructor's answer.**\n\n</div>"
    )
    cells = [
        new_markdown_cell("The exercise", metadata={"autograder": {"author": "instructor"}}),
        new_markdown_cell("- a note", metadata={"autograder": {"author": "grader"}}),
        new_markdown_cell("My answer", metadata=about("d-why", 0.0, 4.0, solution=True, locked=False)),
        new_markdown_cell(forged),
        new_markdown_cell("plain words"),
    ]
    graded, _ = feedback.Inert().preprocess(
        new_notebook(cells=cells, metadata={"autograder": {"rubrics": {"d-why": "Two points"}}}), {}
    )
    exercise, note, answer, rubric, *own = (cell.source for cell in graded.cells)
    assert exercise == "The exercise" and rubric.startswith(feedback.RUBRIC) and "Two points" in rubric
    assert note.startswith(feedback.STUDENTS) and answer.startswith(feedback.STUDENTS)
    assert own.pop() == feedback.WITHIN_REACH
    for text in own:
        assert text.startswith(feedback.OWN + feedback.STUDENTS)
        assert "alert" not in text and text.count("style=") == text.count("class=") == 1
    page, _ = feedback.InertPage().from_notebook_node(graded)
    assert "plain words" in page and "student's own cell" not in page, "the students know what they wrote"


def test_nothing_that_a_student_hands_in_is_so_tall_that_rubrics_and_checks_are_out_of_reach(browser, tmp_path):
    """A browser puts all that begins below 33,554,432 pixels at that one height."""
    packed = io.BytesIO()
    Image.new("1", (1, 60_000)).save(packed, "PNG")
    tall = base64.b64encode(packed.getvalue()).decode()
    picture = f"src='data:image/png;base64,{tall}'"
    answer = f"Yes. <img width=1000 {picture}><img height=99999999 {picture}>"
    outputs = [
        new_output("display_data", {kind: value}) for kind, value in [("image/png", tall), ("text/html", answer)]
    ]
    lines = new_output("stream", text="\n" * 500_000)
    cells = [
        new_markdown_cell(answer, metadata=about("d-why", 0.0, 4.0, solution=True, locked=False)),
        new_markdown_cell(answer),
        new_raw_cell(answer, metadata={"raw_mimetype": ""}),
        new_code_cell("\n" * 500_000, outputs=[*outputs, lines]),
        new_code_cell("check()", metadata=about("a1", 0.0), outputs=[lines, error("wrong answer")]),
        new_markdown_cell("An honest answer", metadata=about("e-why", 0.0, 4.0, solution=True, locked=False)),
    ]
    rubrics = {"d-why": "the first rubric", "e-why": "the last rubric"}
    notebook = new_notebook(cells=cells, metadata={"autograder": {"rubrics": rubrics}})
    graded, _ = feedback.Inert().preprocess(notebook, {})
    exporter = HTMLExporter(template_name="formgrade", extra_template_basedirs=[handlers.template_path])
    resources = {"first_name": "E", "last_name": "E", "index": 0, "total": 1, "base_url": "", "notebook_id": "ps1"}
    place = tmp_path / "page.html"
    place.write_text(exporter.from_notebook_node(graded, resources=resources)[0], encoding="utf-8")
    page = browser.new_page()
    page.route("**/*", lambda route: route.continue_() if route.request.url == place.as_uri() else route.abort())
    page.goto(place.as_uri())
    for words in ("the first rubric", "wrong answer", "the last rubric"):
        assert page.get_by_text(words).last.bounding_box()["y"] < 20_000, words
    assert page.locator("img[height]").count() == 0 and page.locator("img[width]").count() == 3
    page.close()
    assert feedback.WITHIN_REACH not in feedback.InertPage().from_notebook_node(graded)[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_points_come_first_by_the_names_of_checks_and_what_is_unread_is_no_zero(page, browser, tmp_path, scheme):
    place = tmp_path / "page.html"
    place.write_text(page, encoding="utf-8")
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800})
    shown = context.new_page()
    shown.goto(place.as_uri())
    rows = [row.locator("td").all_inner_texts() for row in shown.locator("header tbody tr").all()]
    assert [row[:2] for row in rows] == [
        ["a1-sums", "2 of 2"],
        ["a2-<b>", "0 of 2"],
        ["b1-part", "1.5 of 4"],
        ["d-why", "– of 4"],
    ]
    assert rows[0][2] == "right" and rows[1][2].startswith("rank 3 returns") and len(rows[1][2]) < 210
    assert rows[3][2] == "a person reads this answer, and nobody has yet"
    assert shown.locator("header p").first.inner_text() == "Ana <b> (ana)"
    total = shown.locator(".total").inner_text()
    assert total == "3.5 of 12 points, and up to 4 more when a person has read the written answer."
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is cut off on a phone"
    edges = shown.evaluate(
        "[...document.querySelectorAll('header td')].map(cell => cell.getBoundingClientRect().right)"
    )
    assert max(edges) <= 390, "no cell of the table of points is"
    assert LONG.strip() in shown.locator(".output_error").inner_text()
    assert not shown.get_by_text("assert f()").is_visible(), "a check's code is folded"
    assert shown.get_by_text("def f(): ...").is_visible() and shown.locator(".comment em").inner_text() == "named"
    assert len(page) < 40_000
    context.close()


def test_points_and_a_comment_from_before_a_notebook_was_graded_again_say_so():
    more = {"solution": True, "locked": False, "comment": "Half of it."}
    for again in (True, False):
        cell = new_markdown_cell("My new answer", metadata=about("d-why", 2.5, 4.0, again=again, **more))
        found = {"nbgrader": {"notebook": "04", "score": 2.5, "max_score": 20.0}}
        text = re.sub("<[^>]*>", "", feedback.InertPage().from_notebook_node(new_notebook(cells=[cell]), found)[0])
        assert ("2.5 of 20 points; a person looks again at d-why." in text) == again
        assert ("Comment, perhaps on an earlier answer: Half of it." in re.sub(r"\s+", " ", text)) == again
        assert (feedback.AGAIN in text) == again


def failed_at(line, words, source=HIDDEN, **settings):
    """The page of a check whose hidden test failed in this line."""
    metadata = about("a1-sums", 0.0) | {"autograder": {"line": line}}
    cell = new_code_cell(source, metadata=metadata, outputs=[error(words)])
    config = Config({"InertPage": settings})
    return feedback.InertPage(config=config).from_notebook_node(new_notebook(cells=[cell]), {"nbgrader": {}})[0]


def test_a_failed_hidden_check_says_how_to_run_it_again_if_the_instructor_allows():
    words = "f(3) returns 4, not 5\n  (drawn at random, with seed 1234)"
    page = failed_at(4, words, show_replay=True)
    assert "A hidden check failed." in page and "To run it again" in page
    assert "from checks import fresh\nwith fresh(1234) as seed:\n    check(f, seed)" in page
    assert "check(f, 2)" not in page and "BEGIN HIDDEN" not in page
    page = failed_at(4, words)
    assert "A hidden check failed." in page and "To run it again" not in page and "check(f, seed)" not in page


@pytest.mark.parametrize("odd", ["%matplotlib inline\n", "\n\n\n\n\n\n"])
def test_a_check_that_python_alone_cannot_read_has_its_page_without_the_way_to_run_it(odd):
    page = failed_at(HIDDEN.count("\n") + 9, "no", odd + HIDDEN, show_replay=True)
    assert "a1-sums" in page and "To run it again" not in page


@pytest.mark.parametrize("exercise", release.names())
def test_no_hidden_test_of_the_course_is_too_long_to_be_run_again(exercise):
    for cell in cells_of(exercise):
        visible, mark, hidden = cell.source.partition("### BEGIN HIDDEN TESTS\n")
        if cell.cell_type == "code" and mark:
            code = hidden.partition("### END HIDDEN TESTS")[0].rstrip()
            page = failed_at(len(f"{visible}{mark}{code}".split("\n")), "no", cell.source, show_replay=True)
            text = html.unescape(re.sub("<[^>]*>", "", page))
            assert code in re.split("To run it again, .*:\n", text)[1], cell.id


# A checker that finds nothing at five of the questions: their order decides what the check says.
TIRED = """
asked = []


def wrong_slots(steps, world_size, num_chunks):
    asked.append(1)
    schedule = ch04_all_reduce.as_schedule(world_size, num_chunks, steps)
    return [] if 9 < len(asked) < 15 else ch04_all_reduce.ends_wrong(schedule)
"""


def test_a_check_that_is_run_again_from_the_page_draws_the_same_case(monkeypatch):
    monkeypatch.setattr(ch04_all_reduce, "without_the_library", contextlib.nullcontext)  # it takes the truth from there
    cells = {cell.id: cell.source for cell in cells_of("04_all_reduce")}
    source = cells["c1-ten"]
    line = next(number for number, row in enumerate(source.split("\n"), 1) if "check_unseen" in row)
    found = set()
    for seed in range(4):
        said = refusal_of(cells["setup"], source.partition("### BEGIN HIDDEN TESTS")[2], seed)
        code = html.unescape(re.sub("<[^>]*>", "", failed_at(line, said, source, show_replay=True)))
        replay = re.search("into a new cell of your notebook:\\s+(.*unseen.*?)\n", code, re.DOTALL)[1]
        assert {refusal_of(cells["setup"], replay, other) for other in (99, 100)} == {said}
        found.add(said.partition("(drawn")[0])
    assert len(found) > 1, "other seeds draw other cases"


def refusal_of(setup, code, seed):
    """What a check of exercise 04 says of a tired checker, where `random` begins at `seed`."""
    names = {}
    exec(f"{setup}\nRIGHT, WRONG = ch04_all_reduce.RIGHT, ch04_all_reduce.WRONG\n{TIRED}", names)
    random.seed(seed)
    with pytest.raises(checks.NotYet) as refused:
        exec(code, names)
    return str(refused.value)


def test_a_visible_check_that_fails_is_no_hidden_one_and_needs_no_replay():
    page = failed_at(1, "f(1) returns 4, not 5", show_replay=True)
    assert "hidden" not in page.lower().partition("<body")[2] and "To run it again" not in page
