"""A class in a real browser: a student fetches, works, validates, submits; the instructor grades; the student reads."""

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from answers import solutions_of
from playwright.sync_api import Error as BrowserError

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "autograder" / "classroom" / "start.py"
EXERCISE = "04_all_reduce"
PATIENCE = 180_000  # ms: servers and the judge start on a machine that does other things, too


class Classroom:
    """A demonstration's hub, as `make classroom` starts it."""

    def __init__(self, folder: Path):
        """Start it in a folder, on a free port, and wait until it says where it is."""
        self.folder = folder
        command = [sys.executable, START, "--port", "0", "--folder", folder, "--release", EXERCISE]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if "can do here" in line:
                break
        found = re.search(r"http://localhost:\d+", self.said)
        assert found, f"it did not say where it is:\n{self.said}"
        self.url = found[0]
        self.passwords = dict(re.findall(r"^    (\w+) +(\S{8})$", self.said, re.MULTILINE))

    def log(self) -> str:
        """The end of what the hub and its servers said."""
        return "\n".join((self.folder / "hub.log").read_text(errors="replace").splitlines()[-20:])

    def interrupt(self) -> tuple[str, list[psutil.Process]]:
        """Press Ctrl-C; return what it says, and which of all its processes are left."""
        everything = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        # The hub waits 30 s for a server that a page still talks to, asks again, waits again, and kills it.
        said, _ = self.process.communicate(timeout=150)
        return said, [each for each in everything if each.is_running()]


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    """A class on this machine, closed in the end."""
    room = Classroom(tmp_path_factory.mktemp("classroom"))
    yield room
    if room.process.poll() is None:
        room.interrupt()


class Person:
    """Somebody with a browser of their own, who does one thing after the other."""

    def __init__(self, browser, classroom, name, pictures):
        self.classroom, self.name, self.pictures = classroom, name, pictures
        self.context = browser.new_context(viewport={"width": 1400, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.steps = 0

    @contextmanager
    def step(self, words):
        """Do what the words say; leave a picture, and if it fails say which step that was and where the picture is."""
        self.steps += 1
        picture = self.pictures / f"{self.name}-{self.steps:02}-{re.sub(r'[^a-z]+', '-', words.lower())}.png"
        began = time.perf_counter()
        try:
            yield self.page
        except (BrowserError, AssertionError) as error:
            self.page.screenshot(path=picture)
            reason = "\n".join(str(error).splitlines()[:12])
            pytest.fail(
                f"{self.name} {words}: {reason}\npicture: {picture}\nhub:\n{self.classroom.log()}", pytrace=False
            )
        self.page.screenshot(path=picture)
        print(f"{time.perf_counter() - began:6.1f} s  {self.name} {words}")

    def log_in(self, password, then=""):
        """Fill in the hub's form; `then` is a page of the hub's to go to, other than one's own server."""
        self.page.goto(f"{self.classroom.url}/hub/login" + (f"?next={then}" if then else ""))
        self.page.fill("#username_input", self.name)
        self.page.fill("#password_input", password)
        self.page.click("#login_submit")


def type_into(page, cell, text):
    """Replace what stands in a cell of the open notebook, as a person does who pastes."""
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def validated(page):
    """Press Validate, and return what it says."""
    page.locator(".validate-button").click()
    said = page.locator(".jp-Dialog", has=page.locator("#validation-message"))
    said.wait_for()
    words = said.inner_text()
    said.locator("button").last.click()
    said.wait_for(state="detached")
    return words


def confirmed(pages, words):
    """Wait for formgrader's note of success, and close it."""
    note = pages.locator("#success-modal, #error-modal").first
    note.wait_for()
    assert words in note.inner_text(), note.inner_text()
    note.get_by_text("OK", exact=True).click()
    note.wait_for(state="detached")


def test_a_student_works_and_the_instructor_grades_and_the_student_reads_it(browser, classroom, tmp_path):
    """All of it in a real browser, with the judge that formgrader's own button runs."""
    right = solutions_of(EXERCISE)
    ana = Person(browser, classroom, "ana", tmp_path)
    with ana.step("logs in and is told what to do") as page:
        ana.log_in(classroom.passwords["ana"])
        page.get_by_role("heading", name="Your exercises").wait_for()
    with ana.step("opens the assignment list") as page:
        page.get_by_role("menuitem", name="Nbgrader").click()
        page.get_by_role("menuitem", name="Assignment List").click()
        released = page.locator("#released_assignments_list .list_item", has_text=EXERCISE)
        released.wait_for()
    with ana.step("fetches the exercise") as page:
        released.get_by_role("button", name="Fetch").click()
        fetched = page.locator("#fetched_assignments_list")
        fetched.get_by_text(EXERCISE).first.click()
    with ana.step("opens the notebook") as page:
        fetched.locator(".nested_list_item a", has_text=EXERCISE).click()
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    cells = page.locator(".jp-Notebook-cell")
    with ana.step("answers two parts and runs a check") as page:
        type_into(page, cells.filter(has_text="def ring_bytes").first, right["bytes-of-a-rank"])
        type_into(page, cells.filter(has_text="def ring_all_gather").first, right["rings"])
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        cells.filter(has_text="a1: right").first.wait_for()
    with ana.step("validates, and is told what is missing") as page:
        said = validated(page)
        assert "wrong_slots is not written yet" in said, said
    with ana.step("answers the rest, and validates again") as page:
        type_into(page, cells.filter(has_text="def wrong_slots").first, right["wrong-slots"])
        written = cells.filter(has_text="YOUR ANSWER HERE").first
        written.get_by_role("paragraph").dblclick()
        type_into(page, written, right["d-worth-it"])
        said = validated(page)
        assert "Success! Your notebook passes all the tests." in said, said
    with ana.step("submits") as page:
        page.locator(".lm-TabBar-tab", has_text="Assignments").click()
        fetched.get_by_role("button", name="Submit").click()
        submitted = page.locator("#submitted_assignments_list")
        submitted.get_by_text(EXERCISE).first.wait_for()

    teacher = Person(browser, classroom, "instructor", tmp_path)
    with teacher.step("logs in, and formgrader is open") as page:
        teacher.log_in(classroom.passwords["instructor"])
        pages = page.frame_locator("#formgrader-iframe iframe")
        row = pages.locator("tr", has_text=EXERCISE)
        row.wait_for()
    with teacher.step("collects") as page:
        row.locator(".collect a").click()
        confirmed(pages, "Successfully collected")
    with teacher.step("autogrades") as page:
        row.locator(".num-submissions a").click()
        row = pages.locator("tr", has_text="ana")
        row.locator(".autograde a").click()
        confirmed(pages, "Successfully autograded")
        assert row.locator(".score").inner_text() == "16 / 20"
    with teacher.step("reads the sentences and gives 3 points for them") as page:
        pages.get_by_role("link", name="Manual Grading").click()
        pages.locator(f"a[href$='/gradebook/{EXERCISE}']").click()
        pages.locator(f"a[href$='/gradebook/{EXERCISE}/{EXERCISE}']").click()
        pages.locator("td a[href*='/formgrader/submissions/']").first.click()
        score = pages.locator(
            "input.score.needs_manual_grade[id='d-worth-it']"
        )  # so it is only when the points are there
        score.fill("3")
        with page.expect_response(
            lambda answer: "/api/grade/" in answer.url and answer.request.method == "PUT"
        ) as saved:
            score.press("Tab")
        assert saved.value.ok, saved.value.text()
    with teacher.step("generates and releases feedback") as page:
        pages.get_by_role("link", name="Manual Grading").click()
        pages.get_by_role("link", name="Manage Assignments").click()
        row = pages.locator("tr", has_text=EXERCISE)
        row.locator(".generate-feedback a").click()
        confirmed(pages, "Successfully generated feedback")
        row.locator(".release-feedback a").click()
        confirmed(pages, "Successfully released feedback")

    with ana.step("fetches the feedback") as page:
        page.locator("#refresh_assignments_list").click()
        submitted.get_by_role("button", name="Fetch Feedback").click()
        submitted.get_by_text("(view feedback)").click()
    with ana.step("reads her points") as page:
        page.locator(".jp-DirListing-item", has_text=f"{EXERCISE}.html").dblclick()
        feedback = page.frame_locator(".jp-HTMLViewer iframe")
        feedback.get_by_text("19 of 20 points").wait_for()
    with ana.step("opens her own files by their address, as others will try to"):
        assert status_of(ana, "ana", "start.md") == 200


def status_of(person, owner, path):
    """The HTTP status of the page on which the owner's server shows a file, for a person."""
    url = re.sub("localhost", f"{owner}.localhost", person.classroom.url)
    page = person.context.new_page()  # it stays open: to close it while JupyterLab begins may wait for ever
    return page.goto(f"{url}/user/{owner}/lab/tree/{path}", wait_until="commit").status


def test_a_wrong_password_is_refused(browser, classroom, tmp_path):
    ana = Person(browser, classroom, "ana", tmp_path)
    with ana.step("logs in with the instructor's password") as page:
        ana.log_in(classroom.passwords["instructor"])
        page.get_by_text("Invalid username or password").wait_for()


def test_a_student_cannot_open_anothers_server(browser, classroom, tmp_path):
    """Neither the files of a student, nor the instructor's with the solutions, are to be had through the hub."""
    ben = Person(browser, classroom, "ben", tmp_path)
    with ben.step("logs in") as page:
        ben.log_in(classroom.passwords["ben"], then="/hub/home")
        page.get_by_text("Start My Server").wait_for()
    for owner, path in [("ana", "start.md"), ("instructor", "course")]:
        with ben.step(f"opens files of {owner}"):
            assert status_of(ben, owner, path) in (403, 404)


def test_ctrl_c_leaves_no_process_behind(classroom):
    """Last in this file: it closes the class."""
    said, left = classroom.interrupt()
    assert left == []
    assert "no server is left running" in said
    assert classroom.process.returncode == 0
