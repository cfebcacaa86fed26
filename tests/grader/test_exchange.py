"""nbgrader's exchange on a hub: the instructor collects what students own, and nothing else that they put there."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from gradebooks import gradebook_of
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.exchange import ExchangeFactory, default
from nbgrader.utils import capture_log
from traitlets.config import Config, PyFileConfigLoader

from autograder import configure
from autograder.submissions import exchange

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXERCISE = "03_ring"
NOTEBOOK = f"{EXERCISE}.ipynb"
TIME = "2026-11-28 10:00:00.000000 UTC"
LATER = "2026-11-28 11:00:00.000000 UTC"
ME = pwd.getpwuid(os.getuid()).pw_name
STUDENT, OTHER = ("nobody", "daemon") if os.geteuid() == 0 else (ME, None)  # students with a system user each

two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of two other users")


class Hub:
    """A course with nbgrader's exchange, and a secret that its students can't read."""

    def __init__(self, folder):
        self.folder = folder
        self.course, self.inbound = folder / "course", folder / "exchange" / "collectives" / "inbound"
        self.course.mkdir()
        self.inbound.mkdir(parents=True)
        gradebook_of(f"sqlite:///{self.course}/gradebook.db", {EXERCISE: {}}, {})
        self.secret = self.course / "solution.ipynb"
        self.secret.write_text("the answers")
        self.secret.chmod(0o600)

    def hand_in(self, student, files, time=TIME, owner=None):
        """Put a folder in a student's name into the exchange, of `owner` or else of that student."""
        place = self.inbound / f"{student}+{EXERCISE}+{time}+{len([*self.inbound.iterdir()])}"
        place.mkdir()
        for name, content in (self.beside(time) | files).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(content)
        self.give(place, owner or student)
        return place

    @staticmethod
    def beside(time):
        """What nbgrader's `submit` writes beside a student's files."""
        return {"timestamp.txt": time, "submission_secret.txt": "5" * 128}

    def give(self, place, owner):
        """Make a user the owner of a folder and all that is in it, as far as this user may."""
        if os.geteuid() == 0:
            who = pwd.getpwnam(owner)
            for path in (place, *place.rglob("*")):
                os.chown(path, who.pw_uid, who.pw_gid, follow_symlinks=False)

    def collector(self, **settings):
        """The collector that formgrader's button starts in a configured course."""
        config = Config()
        config.CourseDirectory.update(root=str(self.course), course_id="collectives", assignment_id=EXERCISE)
        config.Exchange.root = str(self.folder / "exchange")
        config.ExchangeCollect.update(settings)
        configure(config)
        api = NbGraderAPI(config=config)
        return api.exchange.Collect(coursedir=api.coursedir, authenticator=api.authenticator, parent=api)

    def collect(self, **settings):
        """Collect; return {file: its text} of all that is in the submitted folder, and what the log says."""
        done = capture_log(self.collector(**settings))
        assert done["success"], done["error"]
        return self.submitted(), done["log"]

    def submitted(self):
        """{file below the submitted folder: its text}, without what nbgrader writes beside a student's own."""
        place, beside = self.course / "submitted", self.beside(TIME)
        files = [path for path in place.rglob("*") if path.is_file() and path.name not in beside]
        return {str(path.relative_to(place)): path.read_text() for path in files}


@pytest.fixture
def hub(tmp_path):
    return Hub(tmp_path)


def test_nbgrader_s_own_command_collects_an_honest_hand_in_with_all_its_folders(hub):
    """Of several the last, and without what the course's settings leave out: all as nbgrader's own collector does."""
    files = {NOTEBOOK: "my answers", "data/deep/er/x.csv": "1,2", "data/ü y.txt": "z"}
    hub.hand_in(STUDENT, {NOTEBOOK: "too early"})
    last = hub.hand_in(STUDENT, files | {".ipynb_checkpoints/old": "no", "a.pyc": "no", "empty/.keep": ""}, LATER)
    settings = f"""
c = get_config()
c.CourseDirectory.course_id = "collectives"
c.Exchange.root = {str(hub.folder / "exchange")!r}
import sys
sys.path.insert(0, {str(ROOT)!r})
from autograder import configure
configure(c)
"""
    (hub.course / "nbgrader_config.py").write_text(settings)
    command = [sys.executable, "-m", "nbgrader", "collect", EXERCISE]
    paths = os.environ | {"PATH": f"{Path(sys.prefix, 'bin')}:{os.environ['PATH']}"}  # nbgrader runs `alembic` by name
    done = subprocess.run(command, cwd=hub.course, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "eft out" not in done.stderr
    place = f"{STUDENT}/{EXERCISE}"
    assert hub.submitted() == {f"{place}/{name}": text for name, text in (files | {"empty/.keep": ""}).items()}
    stock = hub.folder / "stock"
    collector = hub.collector()
    default.ExchangeCollect.do_copy(collector, str(last), str(stock))
    ours = hub.course / "submitted" / place
    assert {p.relative_to(ours) for p in ours.rglob("*")} == {p.relative_to(stock) for p in stock.rglob("*")}
    assert (ours / "timestamp.txt").read_text() == f"{LATER}\n"


def test_no_link_of_a_student_s_is_followed(hub):
    place = hub.hand_in(STUDENT, {"mine.txt": "mine"})
    (place / NOTEBOOK).symlink_to(hub.secret)
    (place / "folder").symlink_to(hub.course)
    (place / "nowhere").symlink_to("nowhere")
    hub.give(place, STUDENT)
    got, said = hub.collect()
    assert got == {f"{STUDENT}/{EXERCISE}/mine.txt": "mine"}
    assert f"left out 3 that can't be read or aren't the student's own files, such as links: {NOTEBOOK}, folder" in said
    assert place.name in said


def test_neither_is_a_link_in_place_of_the_folder(hub):
    (hub.inbound / f"{STUDENT}+{EXERCISE}+{LATER}+x").symlink_to(hub.course)
    hub.hand_in(STUDENT, {NOTEBOOK: "mine"})
    got, said = hub.collect()
    assert got == {f"{STUDENT}/{EXERCISE}/{NOTEBOOK}": "mine"}
    assert "it is a link or a file, not a folder" in said


@two_users
def test_a_hard_link_brings_nobody_else_s_file(hub):
    """Where the kernel allows one (fs.protected_hardlinks = 0), it needs no right to read."""
    place = hub.hand_in(STUDENT, {"mine.txt": "mine"})
    other = hub.hand_in(OTHER, {NOTEBOOK: "of the other"})
    os.link(hub.secret, place / "solution.ipynb")
    os.link(other / NOTEBOOK, place / NOTEBOOK)
    (place / "folder").mkdir()  # of the instructor's user
    got, said = hub.collect()
    assert got == {f"{STUDENT}/{EXERCISE}/mine.txt": "mine", f"{OTHER}/{EXERCISE}/{NOTEBOOK}": "of the other"}
    assert f"left out 3 that can't be read or aren't the student's own files, such as links: {NOTEBOOK}, folder" in said


@two_users
def test_a_later_folder_in_another_s_name_leaves_the_honest_one_to_be_collected(hub):
    hub.hand_in(STUDENT, {NOTEBOOK: "honest"})
    forged = hub.hand_in(STUDENT, {NOTEBOOK: "empty"}, LATER, owner=OTHER)
    alone = hub.hand_in("who", {NOTEBOOK: "of a user that isn't there"}, owner=OTHER)
    got, said = hub.collect()
    assert got == {f"{STUDENT}/{EXERCISE}/{NOTEBOOK}": "honest"}
    assert f"Left out {forged.name}: its name says {STUDENT}, but {OTHER} owns it. Ask {OTHER} why" in said
    assert f"Left out {alone.name}: its name says who, but {OTHER} owns it" in said


@two_users
def test_the_last_honest_one_before_the_due_date_is_collected_where_the_course_asks_for_it(hub):
    with Gradebook(f"sqlite:///{hub.course}/gradebook.db", "collectives") as gradebook:
        gradebook.update_or_create_assignment(EXERCISE, duedate=TIME)
    hub.hand_in(STUDENT, {NOTEBOOK: "honest"})
    hub.hand_in(STUDENT, {NOTEBOOK: "too late"}, LATER)
    hub.hand_in(STUDENT, {NOTEBOOK: "forged"}, owner=OTHER)
    hub.hand_in(OTHER, {NOTEBOOK: "forged"}, owner=STUDENT)
    got, _ = hub.collect(before_duedate=True)
    assert got == {f"{STUDENT}/{EXERCISE}/{NOTEBOOK}": "honest"}


@two_users
def test_a_folder_that_changes_hands_after_it_was_chosen_is_not_collected(hub, caplog):
    place = hub.hand_in(STUDENT, {NOTEBOOK: "mine"})
    collector = hub.collector()
    collector.log.addHandler(caplog.handler)
    collector.init_src()
    assert len(collector.src_records) == 1
    shutil.rmtree(place)
    os.rename(hub.hand_in(OTHER, {NOTEBOOK: "of the other"}), place)
    collector.copy_files()
    assert hub.submitted() == {}
    assert f"Not collected, {place.name}: its name says {STUDENT}, but {OTHER} owns it" in caplog.text
    shutil.rmtree(place)
    place.symlink_to(hub.course)
    collector.copy_files()
    assert hub.submitted() == {}
    assert f"Not collected, {place.name}: it can't be opened" in caplog.text


def pipes(place, monkeypatch):
    os.mkfifo(place / NOTEBOOK)
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(place)  # because a socket's path is short
        bound.bind("socket")


def huge(place, monkeypatch):
    os.truncate(place / "mine.txt", 2**40)  # it takes no room on the disk


def many(place, monkeypatch):
    monkeypatch.setattr(exchange, "MOST_ENTRIES", 20)
    for number in range(21):
        (place / f"{number}").touch()


def many_in_folders(place, monkeypatch):
    monkeypatch.setattr(exchange, "MOST_ENTRIES", 20)
    for number in range(30):
        (place / f"{number % 3}").mkdir(exist_ok=True)
        (place / f"{number % 3}" / f"{number}").touch()


def deep(place, monkeypatch):
    for _ in range(40):  # longer than a path may be
        monkeypatch.chdir(place)
        os.mkdir("d" * 200)
        place = "d" * 200


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (pipes, f"left out 2 that can't be read or aren't the student's own files, such as links: {NOTEBOOK}, socket"),
        (huge, "it is larger than CourseDirectory.max_dir_size"),
        (many, "it has more than 20 files and folders"),
        (many_in_folders, "it has more than 20 files and folders"),
        (deep, "it has more than 10 folders in each other"),
    ],
)
def test_a_hostile_hand_in_costs_its_student_a_line_and_the_others_nothing(hub, monkeypatch, spoil, reason):
    """Each of these is the student's own. nbgrader's own collector ends at a folder without a time."""
    place = hub.hand_in(STUDENT, {"mine.txt": "mine"})
    spoil(place, monkeypatch)
    monkeypatch.chdir(hub.folder)
    hub.hand_in("zoe", {NOTEBOOK: "of another"}, owner=STUDENT)
    if spoil is not deep:
        hub.give(place, STUDENT)
    elif os.geteuid() == 0:
        subprocess.run(["chown", "-R", STUDENT, place], check=True)
    (hub.inbound / f"{STUDENT}+{EXERCISE}+no time+x").mkdir()
    got, said = hub.collect(check_owner=False)
    assert got.pop(f"zoe/{EXERCISE}/{NOTEBOOK}") == "of another"
    assert got == ({f"{STUDENT}/{EXERCISE}/mine.txt": "mine"} if spoil is pipes else {})
    assert reason in said
    assert f"Left out {STUDENT}+{EXERCISE}+no time+x: " in said
    if spoil is deep:  # too deep for pytest
        subprocess.run(["rm", "-r", place], check=True)


def test_a_hand_in_without_a_time_or_a_secret_gets_both(hub):
    """nbgrader asks every hand-in for them where it releases feedback, and would end there for the class."""
    place = hub.hand_in(STUDENT, {NOTEBOOK: "my answers"})
    (place / "timestamp.txt").unlink()
    (place / "submission_secret.txt").unlink()
    (place / "submission_secret.txt").mkdir()
    hub.give(place, STUDENT)
    hub.collect()
    beside = {name: (hub.course / "submitted" / STUDENT / EXERCISE / name).read_text() for name in hub.beside(TIME)}
    assert beside["timestamp.txt"] == "2026-11-28 10:00:00 UTC\n" and len(beside["submission_secret.txt"]) == 64


def test_an_update_that_is_not_taken_leaves_the_earlier_hand_in(hub, monkeypatch):
    hub.hand_in(STUDENT, {NOTEBOOK: "first"})
    hub.collect()
    huge(hub.hand_in(STUDENT, {NOTEBOOK: "second", "mine.txt": ""}, LATER), monkeypatch)
    got, said = hub.collect(update=True)
    assert got == {f"{STUDENT}/{EXERCISE}/{NOTEBOOK}": "first"}
    assert "Not collected" in said and "it is larger than CourseDirectory.max_dir_size" in said


def test_a_folder_that_is_gone_when_its_turn_comes_costs_no_other_student(hub):
    gone = hub.hand_in(STUDENT, {NOTEBOOK: "first"})
    hub.hand_in("zoe", {NOTEBOOK: "of another"}, owner=STUDENT)
    collector = hub.collector(check_owner=False)
    choose = collector.init_src
    collector.init_src = lambda: [choose(), shutil.rmtree(gone)]
    said = capture_log(collector)
    assert said["success"] and f"Not collected, {gone.name}: " in said["log"]
    assert hub.submitted() == {f"zoe/{EXERCISE}/{NOTEBOOK}": "of another"}


def test_feedback_is_released_to_all_that_handed_in_through_the_exchange(hub):
    """nbgrader's own ends at the first student without a secret, as of a hand-in from elsewhere."""
    for student, beside in (("ana", hub.beside(TIME)), ("ben", {}), ("cleo", hub.beside(TIME))):
        page = hub.course / "feedback" / student / EXERCISE
        page.mkdir(parents=True)
        for name, text in (beside | {f"{EXERCISE}.html": student}).items():
            (page / name).write_text(text.replace("5", student[0]) if "secret" in name else text)
    collector = hub.collector()
    said = capture_log(exchange.SafeRelease(coursedir=collector.coursedir, parent=collector.parent))
    assert said["success"] and f"Not released, feedback/ben/{EXERCISE}" in said["log"]
    assert {page.read_text() for page in hub.inbound.parent.rglob("*.html")} == {"ana", "cleo"}
    for student in ("ana", "cleo"):
        shutil.rmtree(hub.course / "feedback" / student)
    said = capture_log(exchange.SafeRelease(coursedir=collector.coursedir, parent=collector.parent))
    assert not said["success"]  # it may be what no page got through, such as a full disk


@pytest.mark.parametrize(
    "words",
    ["no time", "2026-11-01 10:00:00 /etc/localtime", "9" * 10_000, "2026-11-01 10:00:00" + "\n" * 200 + "and more"],
)
def test_a_time_that_nbgrader_can_t_read_is_left_out_so_that_it_can_collect_again(hub, words):
    """nbgrader reads the time of every hand-in that it has collected, each time, and would end there for the class."""
    hub.hand_in(STUDENT, {NOTEBOOK: "my answers", "timestamp.txt": words})
    files, log = hub.collect()
    assert "left out its time: timestamp.txt is not a time" in log
    assert hub.collect()[0] == files == {f"{STUDENT}/{EXERCISE}/{NOTEBOOK}": "my answers"}


def test_where_one_user_owns_all_hand_ins_their_names_count(hub):
    """As in the demonstration class, whose settings say so."""
    for name in ("ana", "ben"):
        hub.hand_in(name, {NOTEBOOK: name}, owner=STUDENT)
    got, said = hub.collect()
    assert got == {}
    assert "set c.ExchangeCollect.check_owner = False" in said
    got, said = hub.collect(check_owner=False)
    assert got == {f"{name}/{EXERCISE}/{NOTEBOOK}": name for name in ("ana", "ben")}


@pytest.mark.parametrize("folder", ["autograder", "autograder/classroom/instructor"])
def test_the_course_s_own_settings_name_the_collector(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CLASSROOM", str(tmp_path))
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / folder)).load_config()
    steps = ExchangeFactory(config=config)
    assert (steps.collect, steps.release_feedback) == (exchange.SafeCollect, exchange.SafeRelease)


def test_a_course_keeps_the_collector_of_another_exchange():
    config = Config()
    config.ExchangeFactory.collect = "another.exchange.Collect"
    configure(config)
    assert config.ExchangeFactory.collect == "another.exchange.Collect"
