"""Feedback pages go back: each to whoever handed in the notebook that it is about, and none to anybody else."""

import io
import json
import re
import zipfile

import pytest
from gradebooks import gradebook_of
from nbgrader.api import Gradebook
from test_submit import EXERCISE, NOTEBOOK, extracted, own, zipped

from autograder import standing
from autograder.results import handback
from autograder.submissions.intake import digest

pytestmark = pytest.mark.sandbox

QUESTIONS = {EXERCISE: {"a1": 16, "words": 4}}
PEOPLE = {
    "ada": {"first_name": "Ada", "last_name": "Lovelace", "lms_user_id": "71"},
    "bob_72_9001": {"first_name": "Bob", "last_name": "Ross", "lms_user_id": "72"},
    "20231234": {"first_name": "Tom", "last_name": "Thumb", "lms_user_id": "73"},
    "eve": {"first_name": "Eve", "last_name": "Evil", "lms_user_id": "74"},
    "zoe": {"first_name": "Zoe", "last_name": "Late", "lms_user_id": "75"},
}


def canvas_takes(name, uploads, groups=()):
    """Whom Canvas gives a file, and under which name; `uploads`: {number: (user, name)} of all last hand-ins."""
    name = name.rpartition("/")[2]
    group = next((group for group in groups if name.startswith(f"{group}_")), None)
    parts = [part for part in name.removeprefix(f"{group}_").split("_") if part != "LATE"]
    user, upload = [*(part for part in parts if re.fullmatch("[0-9]+", part)), "", ""][:2]
    owner, shown = uploads.get(upload, ("", ""))
    return (user, shown) if user == owner != "" and not parts[-1].startswith("link") and parts[0] != "anon" else None


def moodle_takes(path, participants):
    """Whom Moodle gives a file, and under which name; None if it ignores the file. `participants`: numbers."""
    parts = ["", "import", *path.split("/")]
    for place, part in enumerate(parts):
        info = part.split("_", 4)
        if len(info) >= 4 and info[1] in participants and info[2:4] == ["assignsubmission", "file"]:
            return info[1], "/".join([*info[4:], *parts[place + 1 :]]).strip("/")
    return None


class World:
    """A class whose hand-ins are collected, and graded: each page holds its notebook and nothing else."""

    def __init__(self, place):
        self.place, self.course = place, place / "grade"
        (self.course / "judged").mkdir(parents=True)
        self.url = f"sqlite:///{self.course / 'gradebook.db'}"
        self.told = ""

    def collect(self, source, files, people=PEOPLE, points=None):
        """Take these files in; return {student: notebook}."""
        folder = self.place / "submissions-downloaded" / EXERCISE
        folder.mkdir(parents=True)
        given = {(student, EXERCISE): {"a1": 16, "words": 4} | (points or {}).get(student, {}) for student in people}
        gradebook_of(self.url, QUESTIONS, given, students=people)
        found, self.refused = extracted(folder, files, self.url, source)
        return {student: notebook for student, (_, notebook) in found.items()}

    def grade(self, notebooks):
        """Leave what `make grade` does: a page and its mark."""
        with Gradebook(self.url) as gradebook:
            for student, notebook in notebooks.items():
                page = self.course / "feedback" / student / EXERCISE / f"{EXERCISE}.html"
                page.parent.mkdir(parents=True, exist_ok=True)
                page.write_bytes(notebook)
                now = standing.read(gradebook, EXERCISE, student)
                mark = {"what": [], "grades": now.digest, "handed_in": {EXERCISE: digest(notebook)}}
                standing.mark_of(self.course / "judged", EXERCISE, student).write_text(json.dumps(mark))

    def give_back(self, platform, capsys, *arguments, code=0):
        """{name in the zip: its content}, unpacked where it is a zip itself."""
        to = self.place / "out.zip"
        folders = ["--course", str(self.course), "--submissions", str(self.place / "submissions"), "--to", str(to)]
        assert handback.main([EXERCISE, "--from", platform, *folders, *arguments]) == code
        self.told = "".join(capsys.readouterr())
        if code:
            assert [*self.place.glob("out.zip*")] == []
            return {}
        with zipfile.ZipFile(to) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def page_in(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == [f"{EXERCISE}.html"]
        return archive.read(f"{EXERCISE}.html")


def test_canvas_attaches_each_page_to_the_hand_in_that_it_is_about_whatever_the_students_names(world, capsys):
    files = {
        f"lovelaceada_LATE_71_9001_{own()}": zipped((NOTEBOOK, b"of 71")),
        f"rossbob_72_9002_{EXERCISE}-1.ipynb": b"of 72",
        f"71_9001_thumbtom_73_9003_{NOTEBOOK}": b"of 73",  # he calls himself by the numbers of Ada's hand-in
        f"evileve_74_9004_71_9001_{own('eve')}": zipped((NOTEBOOK, b"of 74")),  # she calls her file by them
        f"latezoe_75_9005_{own('zoe')}": zipped((NOTEBOOK, b"of 75")),
    }
    found = world.collect("canvas", files)
    world.grade({student: found.get(student, b"by hand") for student in PEOPLE})
    back = world.give_back("canvas", capsys)
    uploads = {"9001": ("71", own()), "9002": ("72", NOTEBOOK), "9003": ("73", NOTEBOOK)}
    uploads |= {"9004": ("74", f"71_9001_{own('eve')}"), "9005": ("75", own("zoe"))}
    for groups in ((), ("for-ada", "for-bob-72-9001", "for-bob-72-9001_72"), ("for-ada_71", "for-zoe_75_9005")):
        for name, content in back.items():
            if attached := canvas_takes(name, uploads, groups):
                user, shown = attached
                assert (page_in(content) if shown.endswith(".zip") else content) == f"of {user}".encode()
        assert groups or all(canvas_takes(name, uploads) for name in back)
    assert {name.split("_")[0] for name in back} == {"for-ada", "for-bob-72-9001", "for-20231234", "for-zoe"}
    assert "they came otherwise than from Canvas, so give them out yourself (1): eve\n" in world.told, "it was refused"
    assert "Canvas will call 2 of the pages" in world.told and "Re-Upload Submissions" in world.told


def test_moodle_attaches_each_page_to_the_participant_who_handed_in(world, capsys):
    whole = zipped(
        (f"Ada Lovelace_801_assignsubmission_file/{own()}", zipped((NOTEBOOK, b"of 801"))),
        (f"Bob Ross_802_assignsubmission_file_/{NOTEBOOK}", b"of 802"),
        (f"Tom Thumb_803_assignsubmission_file_{NOTEBOOK}", b"of 803"),
    )
    found = world.collect("moodle", {"COMP-Ring-17.zip": whole})
    assert len(found) == 3, world.refused
    world.grade(found)
    back = world.give_back("moodle", capsys)
    numbers = {"801", "802", "803", "804"}
    assert {moodle_takes(name, numbers): content for name, content in back.items()} == {
        (number, f"{EXERCISE}.html"): f"of {number}".encode() for number in ("801", "802", "803")
    }
    assert all(moodle_takes(name, {"901", "902"}) is None for name in back), "in another assignment nobody has them"
    assert (
        "left out, because they came otherwise than from Moodle, so give them out yourself (2): eve, zoe" in world.told
    )


def test_a_page_stays_here_with_a_reason_unless_it_is_of_the_sender_s_notebook_and_of_today_s_points(world, capsys):
    people = PEOPLE | {"renumbered": {"lms_user_id": "76"}}
    waiting = {"zoe": {"words": None}}
    files = {
        f"{name}_{user}_90{user}_{NOTEBOOK}": f"of {user}".encode()
        for name, user in (("ada", 71), ("bob", 72), ("tom", 73), ("zoe", 75), ("renumbered", 76))
    }
    found = world.collect("canvas", files, people, waiting)
    assert len(found) == 5
    # Bob's notebook of before was graded, and Eve's was put there by hand.
    world.grade(found | {"bob_72_9001": b"an earlier one", "eve": b"by hand"})
    with Gradebook(world.url) as gradebook:
        gradebook.find_grade("words", EXERCISE, EXERCISE, "20231234").manual_score = 3
        gradebook.find_student("renumbered").lms_user_id = "77"
        gradebook.db.commit()
    assert [*world.give_back("canvas", capsys)] == ["for-ada_71_9071_page.html"]
    for why, student in (
        (handback.OTHERWISE.format("Canvas"), "eve"),
        (handback.ANOTHER.format("Canvas"), "bob_72_9001"),
        (handback.OLD, "20231234"),
        (handback.WAITING, "zoe"),
        (handback.NUMBER, "renumbered"),
    ):
        assert f"left out, because {why} (1): {student}\n" in world.told
    assert len(world.give_back("canvas", capsys, "--unfinished")) == 2
    assert [*world.give_back("canvas", capsys, "--student", "ada")] == ["for-ada_71_9071_page.html"]
    world.place.joinpath("out.zip").unlink()
    world.give_back("moodle", capsys, code=2)
    assert "(6)" in world.told and "cannot return: no page goes back to a hand-in" in world.told


def test_without_points_one_line_says_what_to_do(world, capsys):
    world.give_back("canvas", capsys, code=2)
    assert "cannot return: there is no gradebook" in world.told and "make grade" in world.told
