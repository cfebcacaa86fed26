"""Handing in without a hub: what a student packs is what nbgrader's zip collector takes in, and nothing else is."""

import contextlib
import csv
import errno
import io
import os
import re
import shutil
import stat
import subprocess
import time
import tracemalloc
import warnings
import zipfile
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import nbformat
import pytest
import submit
from gradebooks import gradebook_of
from nbgrader.apps import ZipCollectApp
from nbgrader.coursedir import CourseDirectory
from test_grading import answers, fill

from autograder import cage
from autograder.submissions import unzip, zips

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).resolve().parents[2]

EXERCISE = "04_all_reduce"
NOTEBOOK = f"{EXERCISE}.ipynb"
GOOD = b"a notebook"
FOUR = {"ada": "71", "bob": "72", "eve": "73", "tom": "74"}


def own(student="ada", time="20260302T090000Z"):
    """The name that `make submit` gives."""
    return f"{student}_{EXERCISE}_{time}.zip"


def zipped(*files, method=zipfile.ZIP_DEFLATED):
    """A zip as bytes; `files`: (name or ZipInfo, content). Its files are of noon, 1 March 2026."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive, warnings.catch_warnings(action="ignore"):  # of duplicate names
        for name, content in files:
            info = name if isinstance(name, zipfile.ZipInfo) else zipfile.ZipInfo(name, (2026, 3, 1, 12, 0, 0))
            info.compress_type = method
            archive.writestr(info, content)
    return packed.getvalue()


def extracted(folder, files, db_url="sqlite:////nowhere.db", source="mail"):
    """What the extractor makes of these files: {student: (time, notebook)} and {file: the reason to refuse it}."""
    archive, out = folder / "archive", folder / "extracted"
    out.mkdir()
    for name, content in files.items():
        (archive / name).parent.mkdir(parents=True, exist_ok=True)
        (archive / name).write_bytes(content)
        os.utime(archive / name, (1_772_000_000, 1_772_000_000))  # 25 February 2026
    before = {*folder.parent.rglob("*")}
    app = ZipCollectApp()
    app.coursedir = CourseDirectory(assignment_id=EXERCISE, db_url=db_url)
    zips.SafeExtractor(parent=app, source=source).extract(str(archive), str(out))
    made = {path for path in folder.parent.rglob("*") if path.is_file()} - before
    assert all(path.name in (NOTEBOOK, "refused.csv", "notes.txt", "senders.json") for path in made)
    _, *refused = csv.reader((folder / "refused.csv").open(encoding="utf-8"))
    refused = {shown.removeprefix("'"): reason for shown, reason in refused}
    return {path.parts[-3]: (path.parts[-2], path.read_bytes()) for path in out.rglob("*.ipynb")}, refused


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "downloaded"
    place.mkdir()
    return place


@pytest.fixture
def here(monkeypatch):
    """nbgrader's `zip_collect` in this process: to start it takes seconds, and one test does."""

    def run(command, cwd, env, capture_output, text):
        assert command[1:4] == ["-m", "nbgrader", "zip_collect"]
        try:
            with contextlib.chdir(cwd):
                app = ZipCollectApp()
                app.initialize(command[4:])
                app.start()
        except OSError as error:
            return subprocess.CompletedProcess(command, 1, "", str(error))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(zips, "subprocess", SimpleNamespace(run=run))


def with_flag(packed):
    """A zip whose file says that it has a password."""
    return packed.replace(b"PK\x03\x04\x14\x00\x00", b"PK\x03\x04\x14\x00\x01").replace(
        b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
    )


def with_wrong_size(packed, size):
    """A zip that says that its only file has `size` bytes unpacked."""
    told = bytearray(packed)
    for place in (22, packed.index(b"PK\x01\x02") + 24):
        told[place : place + 4] = size.to_bytes(4, "little")
    return bytes(told)


LINK = zipfile.ZipInfo(NOTEBOOK)
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16
BOMB = bytes(unzip.MOST_BYTES + 1)  # zeros: 20 MB that pack into 20 KB

HOSTILE = {
    "path traversal": (zipped(("../../../evil.ipynb", GOOD), (NOTEBOOK, GOOD)), "leads out of its folder"),
    "backslashes": (zipped(("..\\..\\evil.ipynb", GOOD), (NOTEBOOK, GOOD)), "leads out of its folder"),
    "absolute name": (zipped(("/tmp/evil.ipynb", GOOD), (NOTEBOOK, GOOD)), "leads out of its folder"),
    "drive": (zipped(("C:/evil.ipynb", GOOD), (NOTEBOOK, GOOD)), "leads out of its folder"),
    "symbolic link": (zipped((LINK, b"/etc/passwd")), "holds a link"),
    "bomb": (zipped((NOTEBOOK, BOMB)), "larger than 20 MB"),
    "bomb that lies": (with_wrong_size(zipped((NOTEBOOK, BOMB)), 10), "cannot be unpacked"),
    "many files": (zipped(*((f"{i}", b"") for i in range(unzip.MOST_FILES + 1))), "holds 1001 files"),
    "password": (with_flag(zipped((NOTEBOOK, GOOD))), "has a password"),
    "no zip": (b"PK, but no zip", "cannot be read"),
    "cut off": (zipped((NOTEBOOK, os.urandom(5000)))[:-200], "cannot be read"),
    "damaged": (zipped((NOTEBOOK, GOOD * 100)).replace(GOOD[:3], b"xxx", 1)[:40] + bytes(9), "cannot be read"),
    "zip in a zip": (zipped(("inner.zip", zipped((NOTEBOOK, GOOD)))), "a zip in a zip"),
    "two of one name": (zipped((NOTEBOOK, GOOD), (NOTEBOOK, b"another")), "holds 2 notebooks"),
    "two folders": (zipped((f"a/{NOTEBOOK}", GOOD), (f"b/{NOTEBOOK}", b"another")), "holds 2 notebooks"),
    "another exercise": (zipped(("03_ring.ipynb", GOOD)), f"holds no {NOTEBOOK}"),
    "empty": (zipped(), f"holds no {NOTEBOOK}"),
    # zipfile unpacks these in one piece, however little is asked for: 2 kB become gigabytes.
    "bzip2": (zipped((NOTEBOOK, GOOD), method=zipfile.ZIP_BZIP2), "is compressed by bzip2"),
    "lzma": (zipped((NOTEBOOK, GOOD), method=zipfile.ZIP_LZMA), "is compressed by lzma"),
    "long name": (zipped(("_1" * 10_000, b""), (NOTEBOOK, GOOD)), "whose name has 20,000 characters; the limit is 255"),
}


def test_a_hostile_zip_is_refused_with_a_reason_and_the_others_are_taken_in(folder):
    files = {own(f"s{i}"): packed for i, (packed, _) in enumerate(HOSTILE.values())}
    tracemalloc.start()
    found, refused = extracted(folder, files | {own(): zipped((NOTEBOOK, GOOD))})
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == {"ada": ("20260302T090000Z", GOOD)}
    for name, (_, reason) in zip(files, HOSTILE.values(), strict=True):
        assert reason in refused.pop(name)
    assert refused == {}
    assert most < 5 * unzip.MOST_BYTES  # bytes in memory at once: a zip, what was unpacked, and their copies
    assert [path.name for path in folder.parent.rglob("*evil*")] == []


def test_a_hand_in_that_the_cage_cannot_unpack_is_refused_and_the_one_beside_it_is_taken_in(folder, monkeypatch):
    """As with zips that take more memory than there is, of which one used to end `make collect`."""
    monkeypatch.setattr(cage, "MOST_ANSWER", 1_000_000)
    large = zipped((NOTEBOOK, bytes(2_000_000)))
    found, refused = extracted(folder, {own("bomb"): large, own(): zipped((NOTEBOOK, GOOD)), own("zoe"): large})
    assert found == {"ada": ("20260302T090000Z", GOOD)}
    assert set(refused) == {own("bomb"), own("zoe")} and all("it becomes larger" in why for why in refused.values())


class SlowChild:
    """The cage's child on a clock of its own. A notebook that is SLOW takes longer than any limit."""

    def __init__(self, clock, items):
        self.clock, self.items, self.lives = clock, list(items), True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answer(self, seconds, *_):
        notebook = unzip.unpacked(self.items.pop(0))
        self.clock[0] += seconds if notebook == SLOW else 0.001
        self.lives = notebook != SLOW
        return notebook if self.lives else cage.Failed(f"it takes longer than {seconds:g} seconds to read")


SLOW = b"slow"


@pytest.mark.parametrize("source", zips.SOURCES)
def test_one_sender_s_files_take_a_bounded_time_and_nobody_else_s(source, folder, tmp_path, monkeypatch):
    """Each file might take 20 s, and a student may hand in any number of them."""
    people = {"ada": {"lms_user_id": "71", "first_name": "A", "last_name": "L"}}
    people |= {f"eve{n}": {"lms_user_id": f"{72 + n}", "first_name": "Eve", "last_name": f"{n}"} for n in range(10)}
    db_url = gradebook_of(f"sqlite:///{tmp_path}/gradebook.db", {}, {}, students=people)
    slow, good = zipped((NOTEBOOK, SLOW)), zipped((NOTEBOOK, GOOD))
    names = {
        "canvas": ("eve_72_{}_work.zip", "l_71_600_work.zip"),
        "moodle": ("Eve 0_5_assignsubmission_file/{}.zip", "A L_6_assignsubmission_file/work.zip"),
        "mail": (f"{{0}}/eve{{1}}_{EXERCISE}_20260302T090000Z.zip", own()),  # one zip in many names
    }
    theirs, mine = names[source]
    everything = zipped(*((theirs.format(501 + n, n % 10), slow) for n in range(30)), (mine, good))
    clock = [0.0]
    monkeypatch.setattr(cage, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(cage, "Child", lambda work, items, seconds: SlowChild(clock, items))
    monkeypatch.setattr(zips.cage, "ask", lambda work, item, seconds: work(item))
    found, refused = extracted(folder, {"all.zip": everything}, db_url, source)
    assert {student: notebook for student, (_, notebook) in found.items()} == {"ada": GOOD}
    assert clock[0] < 25 and len(refused) == 30
    advice = "folder of its own" if source == "mail" else "hand in one notebook alone"
    assert sum("no time left" in why and advice in why for why in refused.values()) >= 19


def test_a_mail_that_is_slow_to_unpack_takes_no_time_from_those_beside_it(folder, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(cage, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(cage, "Child", lambda work, items, seconds: SlowChild(clock, items))
    mails = {own(f"eve{n}"): zipped((NOTEBOOK, SLOW)) for n in range(20)}
    found, refused = extracted(folder, mails | {own("zoe"): zipped((NOTEBOOK, GOOD))})
    assert [*found] == ["zoe"] and refused.keys() == mails.keys() and clock[0] < 26


def test_attachments_take_a_bounded_time_together_however_they_are_wrapped(folder, monkeypatch):
    """Each zip in a zip of 3 kB might take 20 s."""
    clock = [0.0]
    monkeypatch.setattr(cage, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(cage, "Child", lambda work, items, seconds: SlowChild(clock, items))
    slow, good = zipped((NOTEBOOK, SLOW)), zipped((NOTEBOOK, GOOD))
    mails = {f"work{n}.zip": zipped((own("eve", f"202603{n + 1:02}T090000Z"), slow)) for n in range(20)}
    mails |= {"ours.zip": zipped((own("zoe"), good), ("pad", os.urandom(9_999))), own(): good}
    monkeypatch.setattr(zips.cage, "ask", lambda work, item, seconds: work(item))
    found, _ = extracted(folder, mails)
    assert {*found} == {"ada", "zoe"} and clock[0] < 26


def test_one_student_s_attachments_leave_room_on_the_disk_for_others(folder, monkeypatch):
    """Each was its zip's newest, and larger ones came first."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_000_000))
    sizes = [900_000, 500_000, 260_000, 120_000, 40_000]  # whatever is left, one of these fits
    mails = {
        f"work{n}.zip": zipped((own("eve"), zipped((NOTEBOOK, bytes(size)), ("pad", os.urandom(9_000 - n)))))
        for n, size in enumerate(sizes)
    }
    found, refused = extracted(folder, mails | {own(): zipped((NOTEBOOK, b"x" * 60_000))})
    assert {*found} == {"ada", "eve"} and own() not in refused


def unsure(name, number, upload, typed):
    """A hand-in on Canvas for which a student's number was typed, which might be Canvas's own."""
    return f"{name}_{number}_{upload}_{own(str(typed))}"


def test_whatever_numbers_one_types_on_canvas_the_files_are_one_sender_s(folder, tmp_path, monkeypatch):
    """All whose number was typed shared one account, and each other number was another newest file."""
    people = {"ada": {"lms_user_id": "71"}, "eve": {"lms_user_id": "72"}}
    db_url = gradebook_of(f"sqlite:///{tmp_path}/gradebook.db", {}, {}, students=people)
    clock = [0.0]
    monkeypatch.setattr(cage, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(cage, "Child", lambda work, items, seconds: SlowChild(clock, items))
    monkeypatch.setattr(zips.cage, "ask", lambda work, item, seconds: work(item))
    monkeypatch.setattr(zips, "MOST_KEPT", 250)
    monkeypatch.setattr(zips, "OWN_BYTES", 10)
    content = [b"%100d" % n if n < 9 else SLOW for n in range(50)]
    files = [(unsure("eve", 72, 500 + n, 260_000_000 + n), zipped((NOTEBOOK, each))) for n, each in enumerate(content)]
    files.append((unsure("zada", 71, 600, 260_712_345), zipped((NOTEBOOK, b"x" * 200))))
    kept, keep = [], zips.keep
    monkeypatch.setattr(zips, "keep", lambda notebook, *rest: kept.append(notebook) or keep(notebook, *rest))
    found, _ = extracted(folder, {"all.zip": zipped(*files)}, db_url, "canvas")
    assert found["ada"][1] == b"x" * 200 and clock[0] < 21 and sum(map(len, kept)) <= 250 + 200


@pytest.mark.parametrize("source", ["canvas", "mail"])
def test_an_honest_class_with_large_notebooks_and_typed_numbers_is_taken_in_whole(
    source, folder, tmp_path, monkeypatch
):
    """300 notebooks of 1.5 MB; here all have a tenth of their bytes, as have the limits."""
    monkeypatch.setattr(zips, "MOST_KEPT", zips.MOST_KEPT // 10)
    monkeypatch.setattr(zips, "OWN_BYTES", zips.OWN_BYTES // 10)
    people = {f"s{n}": {"lms_user_id": f"{1_000 + n}"} for n in range(300)}
    db_url = gradebook_of(f"sqlite:///{tmp_path}/gradebook.db", {}, {}, students=people)
    names = [unsure(f"s{n}", 1_000 + n, 9_000 + n, 260_000_000 + n) for n in range(300)]
    names = names if source == "canvas" else [*map(own, people)]
    files = {name: zipped((NOTEBOOK, b"%150000d" % n)) for n, name in enumerate(names)}
    found, refused = extracted(folder, files, db_url, source)
    assert not refused and {student: int(notebook) for student, (_, notebook) in found.items()} == {
        f"s{n}": n for n in range(300)
    }


def test_the_limit_of_an_item_is_its_share_of_what_is_left():
    wait, budget = b"__import__('time').sleep(60)", cage.Budget(0.5, "the others took it")
    shares = [cage.Share(budget, 0), cage.Share(budget, 0), cage.Share(budget, 0.1), cage.Share(budget, 5)]
    slow, unread, own_time, honest = cage.each(eval, [wait, wait, wait, b"b'honest'"], 20, shares=shares)
    assert str(slow) == "it takes longer than 0.5 seconds to read, and the others took it"
    assert str(unread) == "the others took it" and "longer than 0.1 seconds" in str(own_time) and honest == b"honest"


def test_one_sender_s_notebooks_take_bounded_room_and_the_newest_counts(folder, tmp_path, monkeypatch):
    """Each might be 20 MB from 20 kB, and all were on disk until the last was read."""
    people = {"ada": {"lms_user_id": "71"}, "eve": {"lms_user_id": "72"}}
    db_url = gradebook_of(f"sqlite:///{tmp_path}/gradebook.db", {}, {}, students=people)
    monkeypatch.setattr(zips, "MOST_KEPT", 250)
    monkeypatch.setattr(zips, "OWN_BYTES", 10)
    large = [(f"eve_72_{500 + n}_work.zip", zipped((NOTEBOOK, b"%100d" % n))) for n in range(9)]
    kept, keep = [], zips.keep
    monkeypatch.setattr(zips, "keep", lambda notebook, *rest: kept.append(notebook) or keep(notebook, *rest))
    found, refused = extracted(
        folder, {"all.zip": zipped(*large, ("ada_71_600_w.zip", zipped((NOTEBOOK, GOOD))))}, db_url, "canvas"
    )
    assert sorted(map(len, kept)) == [len(GOOD), 100, 100] and found["ada"][1] == GOOD
    assert int(found["eve"][1]) == 8
    assert refused.keys() == {f"all.zip/{name}" for name, _ in large[:7]}
    assert all("hand in one notebook alone" in why for why in refused.values())


@pytest.mark.parametrize("noticed", [True, False])
def test_a_hand_in_for_which_the_disk_has_no_room_is_refused_and_the_others_are_taken_in(folder, noticed, monkeypatch):
    """Without this it ended `make collect`. On some disks, a user's quota ends before the room that is told."""
    large = b"x" * 5_000_000
    free = 9_000_000 if noticed else 10**12
    write = Path.write_bytes

    def full(path, content):
        if content == large:
            write(path, content[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    files = {own("eve"): zipped((NOTEBOOK, large)), own(): zipped((NOTEBOOK, GOOD))}
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    found, refused = extracted(folder, files)
    assert [*found] == ["ada"] and refused == {own("eve"): zips.NO_ROOM}


def test_the_names_of_a_downloads_members_cost_no_time_and_spreadsheets_run_none_of_them(folder):
    """The expression for Moodle's names took 14 s for one of these, and names went into refused.csv as they were."""
    evil, odd = "=cmd|' ' /C calc'!A0.ipynb", os.fsdecode(b"th\xe9.txt")
    begun = time.monotonic()
    download = zipped((own("bob"), zipped((NOTEBOOK, GOOD))), *((f"{i}" + "_1" * 15_000, b"") for i in range(20)))
    found, refused = extracted(folder, {"homework.zip": download, evil: GOOD, odd: GOOD})
    assert time.monotonic() - begun < 10
    assert found == {"bob": ("20260302T090000Z", GOOD)}
    assert sum("the limit is 255" in reason for reason in refused.values()) == 20
    assert f"'{evil}," in (folder / "refused.csv").read_text(encoding="utf-8") and "th?.txt" in refused


def test_names_that_cannot_be_a_student_or_a_time_are_refused(folder):
    good = zipped((NOTEBOOK, GOOD))
    names = {
        own("..") if os.sep == "/" else "": "is no student's id",
        own("-rf"): "is no student's id",
        own("x" * 65): "is no student's id",
        own("a b"): "is no student's id",
        own("eve", "20269999T999999Z"): "is no time",
        own("eve", "29990101T000000Z"): "in the future",
        own("mal", "00010101T000000Z"): "is no time",
        own("mel", "09991231T235959Z"): "is no time",
        "03_ring_homework.zip": f"should be <student>_{EXERCISE}_<time>.zip",
        NOTEBOOK: "its name has no student",
        "essay.pdf": "its name has no student",
    }
    found, refused = extracted(folder, dict.fromkeys(names, good) | {own("josé"): good, own("a.b@c-d_e"): good})
    assert set(found) == {"josé", "a.b@c-d_e"}
    for name, reason in names.items():
        assert reason in refused[name]


def test_what_canvas_lets_a_teacher_download_is_told_apart_by_its_users_numbers(folder, tmp_path):
    people = {"ada": {"lms_user_id": "71"}, "bob": {"lms_user_id": "72"}}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    download = zipped(
        (f"lovelaceada_71_9001_{own('ada')}", zipped((NOTEBOOK, b"first"))),
        (f"lovelaceada_LATE_71_9007_{EXERCISE}-1.ipynb", b"second"),  # its time is the zip's, noon on 1 March
        (f"rossbob_72_9002_{own('ada')}", zipped((NOTEBOOK, b"of bob, who says that he is ada"))),
        (f"stranger_99_9003_{EXERCISE}.ipynb", b"of one who is not in the class list"),
        (f"stranger_98_9005_{own('zoe')}", zipped((NOTEBOOK, b"of one who is not in it, and says another id"))),
        ("__MACOSX/._x", b""),
    )
    found, refused = extracted(folder, {"submissions.zip": download}, url, "canvas")
    noon = datetime(2026, 3, 1, 12).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")  # by this machine's clock
    assert found == {
        "ada": (noon, b"second"),  # the later upload, whatever the name of the first one says
        "bob": ("20260302T090000Z", b"of bob, who says that he is ada"),
    }
    assert len(refused) == 2
    assert all("isn't in the class list; read in a newer one" in reason for reason in refused.values())
    notes = (folder / "notes.txt").read_text(encoding="utf-8")
    assert notes.endswith("late, as Canvas says (1): ada\n")
    several = f"of several: ada's submissions.zip/lovelaceada_LATE_71_9007_{EXERCISE}-1.ipynb counts, and not "
    assert notes.startswith(f"{several}submissions.zip/lovelaceada_71_9001_")  # both are of one attempt


def test_a_file_beside_a_notebook_is_left_alone_and_a_notebook_of_another_name_says_how_to_take_it(folder, tmp_path):
    url = gradebook_of(
        f"sqlite:///{tmp_path}/g.db", {}, {}, students={name: {"lms_user_id": number} for name, number in FOUR.items()}
    )
    beside = {f"lovelaceada_71_9001_{NOTEBOOK}": b"hers", "lovelaceada_71_9002_notes.pdf": b"beside it"}
    alone = {"rossbob_72_9003_essay.pdf": b"in place of it"}
    renamed = {"evileve_73_9004_Untitled7.ipynb": b"eve's"}
    moodle = "Tom Thumb_5_assignsubmission_file"
    found, refused = extracted(folder, beside | alone | renamed, url, "canvas")
    assert [*found] == ["ada"] and refused.keys() == (alone | renamed).keys()
    note = "left alone, because the notebook beside them counts (1): lovelaceada_71_9002_notes.pdf\n"
    assert (folder / "notes.txt").read_text(encoding="utf-8") == note
    assert f"change Untitled7.ipynb in its name to {NOTEBOOK}" in refused["evileve_73_9004_Untitled7.ipynb"]
    (folder / "again").mkdir()
    found, refused = extracted(folder / "again", {f"evileve_73_9004_{NOTEBOOK}": b"eve's"}, url, "canvas")
    assert found["eve"][1] == b"eve's" and refused == {}
    (folder / "moodle").mkdir()
    whole = zipped((f"{moodle}/{NOTEBOOK}", b"tom's"), (f"{moodle}/photo.jpg", b"beside it"))
    found, refused = extracted(folder / "moodle", {"all.zip": whole}, source="moodle")
    assert len(found) == 1 and refused == {}


def test_a_typed_number_makes_no_second_sender_where_canvas_has_no_such_upload(tmp_path, here):
    """`make submit STUDENT=2011` of bob, whom the list has as 73: uploads of this time have larger numbers."""
    people = {"ada": {"lms_user_id": "71"}, "bob": {"lms_user_id": "73"}}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    plain = f"rossbob_73_9004_{NOTEBOOK}", b"plain"
    typed = f"rossbob_73_9050_{own('2011')}", zipped((NOTEBOOK, b"typed"))
    later = f"rossbob_73_9100_{NOTEBOOK}", b"later"

    def collected(into, *files):
        folder = tmp_path / f"{into}{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name, content in (*files, (f"lovelaceada_71_9001_{NOTEBOOK}", b"of ada")):
            (folder / name).write_bytes(content)
        found = zips.collect([folder], EXERCISE, tmp_path / into, "canvas", url)
        assert found.refused == []
        return (tmp_path / into / "bob" / EXERCISE / NOTEBOOK).read_bytes()

    assert [collected("one", each) for each in (plain, typed, later)] == [b"plain", b"typed", b"later"]
    assert [collected("two", each) for each in (typed, plain)] == [b"typed", b"typed"]
    assert collected("three", plain, typed) == b"typed"
    named = f"ada_71_71_9002_{own('ada')}", zipped((NOTEBOOK, b"of ada, whose edited name ends in her number"))
    assert collected("four", plain, named) == b"plain" and collected("four", typed, named) == b"typed"


@pytest.mark.parametrize(
    "name",
    [
        f"Ross, Bob_73_9060_9110_{NOTEBOOK}",  # of 9060, who isn't in the list, by an edited name
        f"evileve_72_4000_73_99999999_{NOTEBOOK}",  # an upload of long ago, in a file of such a name
    ],
)
def test_a_number_that_no_upload_has_makes_nobodys_hand_in_anothers(name, tmp_path, here):
    people = {"ada": {"lms_user_id": "71"}, "eve": {"lms_user_id": "72"}, "bob": {"lms_user_id": "73"}}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    for file in (name, f"lovelaceada_71_9001_{NOTEBOOK}"):
        (downloads / file).write_bytes(file.encode())
    found = zips.collect([downloads], EXERCISE, tmp_path / "into", "canvas", url)
    assert found.students == ["ada"] and [shown for shown, _ in found.refused] == [name]


def test_of_uploads_with_a_long_typed_number_and_without_the_older_never_takes_the_newer_ones_place(tmp_path, here):
    """Such a number could be an upload's, so that the two look like two senders."""
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"bob": {"lms_user_id": "73"}})

    def typed(upload, content):
        return f"rossbob_73_{upload}_{own('20231234')}", zipped((NOTEBOOK, content))

    def collected(into, *files):
        folder = tmp_path / f"{into}{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name, content in files:
            (folder / name).write_bytes(content)
        found = zips.collect([folder], EXERCISE, tmp_path / into, "canvas", url)
        return (tmp_path / into / "bob" / EXERCISE / NOTEBOOK).read_bytes(), len(found.refused), found.notes

    older, newer = (f"rossbob_73_9004_{NOTEBOOK}", b"older"), (f"rossbob_73_9050_{NOTEBOOK}", b"newer")
    content, refused, notes = collected("one", typed(9004, b"older"), newer)
    assert (content, refused) == (b"newer", 0) and "a later upload is this student's" in notes[0]
    assert collected("two", typed(9050, b"newer"))[:2] == (b"newer", 0)
    assert collected("two", typed(9050, b"newer"), older)[:2] == (b"newer", 1)


def test_a_zip_of_the_courses_own_folder_holds_one_students_notebook(folder):
    """The bundle has each exercise once more in `released`, and the repository a chapter of the same name."""

    def dated(name, day):
        return zipfile.ZipInfo(name, (2026, 3, day, 12, 0, 0))

    mine, good = f"collectives/exercises/{EXERCISE}/{NOTEBOOK}", b'{"grade_id": "b1"} worked on'
    chapter, given_out = b"no cell of nbgrader's", b'{"grade_id": "b1"}'
    for other, content, day in (("collectives/released", given_out, 1), ("book", chapter, 1), ("book", chapter, 3)):
        packed = zipped((dated(f"{other}/{NOTEBOOK}", day), content), (dated(mine, 2), good))
        assert unzip.only_notebook(packed, EXERCISE) == good
    on_windows = zipped((mine.replace("/", "\\"), good))
    assert unzip.only_notebook(on_windows, EXERCISE) == good
    for other, day in (("released", 2), ("released", 3), ("book", 3)):  # perhaps worked on there
        packed = zipped((dated(f"{other}/{NOTEBOOK}", day), given_out), (dated(mine, 2), good))
        with pytest.raises(cage.Failed, match="holds 2 notebooks"):
            unzip.only_notebook(packed, EXERCISE)
    stripped = zipped((f"a/{NOTEBOOK}", b"of another tool, without nbgrader's names"), (mine, given_out))
    with pytest.raises(cage.Failed, match="holds 2 notebooks"):
        unzip.only_notebook(stripped, EXERCISE)


@pytest.mark.parametrize("name", [f"{EXERCISE}{end}" for end in ("-Copy1", "_ada", "2")] + ["Copy of 04_All_Reduce"])
def test_a_copy_that_has_more_answers_or_newer_ones_is_named(name):
    def dated(name, day):
        return zipfile.ZipInfo(name, (2026, 3, day, 12, 0, 0))

    def notebook(*answers, run=b"null"):
        cells = b", ".join(
            b'{"grade_id": "a", "source": "%s", "execution_count": %s}' % (each, run) for each in answers
        )
        return b'{"cells": [%s]}' % cells

    empty = b"raise NotImplementedError()"
    given_out, half, worked, mended = (
        notebook(*two) for two in [(empty, empty), (b"1", empty), (b"1", b"2"), (b"1", b"3")]
    )
    rerun, ours = notebook(b"1", b"2", run=b"7"), dated(NOTEBOOK, 2)
    for mine, other, day in [(given_out, worked, 1), (half, worked, 3), (worked, mended, 3)]:
        with pytest.raises(cage.Failed, match=f"{name}.ipynb beside {NOTEBOOK} is newer, or has more"):
            unzip.only_notebook(zipped((ours, mine), (dated(f"x/{name}.ipynb", day), other)), EXERCISE)
    older, no_exercise, too_large = (
        (worked, mended, 1),
        (worked, b'{"cells": []}', 3),
        (given_out, bytes(21_000_000), 3),
    )
    for mine, other, day in [
        older,
        (worked, rerun, 3),
        (worked, half, 3),
        (worked, given_out, 3),
        no_exercise,
        too_large,
    ]:
        packed = zipped((ours, mine), (dated(f"x/{name}.ipynb", day), other))
        assert unzip.only_notebook(packed, EXERCISE) == mine
    hidden = zipped((NOTEBOOK, given_out), (f".virtual_documents/{NOTEBOOK}", b"x = 1"), ("ring_copy.ipynb", worked))
    assert unzip.only_notebook(hidden, EXERCISE) == given_out


def test_another_exercise_is_no_copy():
    beside = ("hw10.ipynb", "hw1_bonus/hw1_bonus.ipynb", "prehw1.ipynb", "hw1.ipynb", "hw1(1).ipynb")
    own = PurePosixPath("hw1/hw1.ipynb")
    assert not any(unzip.is_copy(PurePosixPath(path), own, "hw1") for path in beside)
    assert unzip.is_copy(PurePosixPath("hw1/hw1-Copy1.ipynb"), own, "hw1")
    named = PurePosixPath("hw1_ada")
    assert unzip.is_copy(named / "hw1_ada.ipynb", named / "hw1.ipynb", "hw1")


@pytest.mark.parametrize("source", ["canvas", "moodle"])
def test_a_download_of_another_exercise_in_the_same_folder_is_left_alone_in_one_line(folder, tmp_path, source):
    about = {"lms_user_id": "71", "first_name": "Ada", "last_name": "Lovelace"}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": about})
    before = {"canvas": "lovelaceada_71_950{}_", "moodle": f"Ada Lovelace_50{{}}{zips.MOODLE}file_"}[source]
    downloads = {
        f"{name}.zip": zipped((f"{before.format(number)}{name}.ipynb", name.encode()))
        for number, name in enumerate((EXERCISE, "03_ring", "05_crossover"))
    }
    found, refused = extracted(folder, downloads, url, source)
    assert {student: notebook for student, (_, notebook) in found.items()} == {"ada": EXERCISE.encode()}
    assert refused == {}
    notes = (folder / "notes.txt").read_text(encoding="utf-8")
    assert notes == "left alone, because they are of other exercises (2): 03_ring.zip, 05_crossover.zip\n"


def test_what_moodle_lets_a_teacher_download_is_told_apart_by_full_names(folder, tmp_path):
    names = {"ada": "Ada Lovelace", "li": "Wei Li", "wei": "Wei Li", "eva": "Eva Noether"}
    people = {
        student: dict(zip(("first_name", "last_name"), name.split(), strict=True)) for student, name in names.items()
    }
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people | {"jose": {}})
    download = zipped(
        ("Ada Lovelace_501_assignsubmission_file_/homework_1_2_b.zip", zipped((NOTEBOOK, b"of ada"))),
        ("Ada Lovelace_501_assignsubmission_onlinetext_/onlinetext.html", b"see my file"),
        (f"Wei Li_505_assignsubmission_file_/{own('wei')}", zipped((NOTEBOOK, b"of wei"))),
        (f"Wei Li_506_assignsubmission_file_/{NOTEBOOK}", b"of li or wei"),
        (f"Eva Noether_507_assignsubmission_file/{NOTEBOOK}", b"of eva, by Moodle 4"),
        ("Eva Noether_507_assignsubmission_onlinetext/onlinetext.html", b"see my file"),
        (f"José Ñandú_502_assignsubmission_file_/sub/{own('jose')}", zipped((NOTEBOOK, b"of jose"))),
        (f"Bob Ross_503_assignsubmission_file_{NOTEBOOK}", b"of bob"),
        ("Eve_504_assignsubmission_file_/../../../evil.ipynb", b"of eve"),
    )
    found, refused = extracted(folder, {"course-ring-7.zip": download}, url, "moodle")
    assert {student: notebook for student, (_, notebook) in found.items()} == {
        "ada": b"of ada",
        "jose": b"of jose",  # of whom the list has the id alone
        "wei": b"of wei",
        "eva": b"of eva, by Moodle 4",
    }
    namesake, stranger, evil = (refused[name] for name in sorted(refused, key=lambda name: "WBE".index(name[18])))
    assert "may be li or wei; hand in the zip that `make submit` packs" in namesake
    assert "Bob Ross_503 isn't in the class list" in stranger and "leads out of its folder" in evil


def test_nobody_comes_between_a_listed_student_and_a_hand_in_by_a_name_of_the_own_choice(folder, tmp_path):
    """Students can edit their names on most platforms, and name their zips as they like."""
    people = {
        "ada": {"first_name": "Ada", "last_name": "Lovelace", "email": "ada@uni.edu", "lms_user_id": "71"},
        "eve": {"first_name": "7", "last_name": "1", "lms_user_id": "74"},
    }
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    canvas = zipped(
        (f"lovelaceada_71_9001_{EXERCISE}.ipynb", b"of ada"),
        (f"71_74_9002_{EXERCISE}.ipynb", b"of eve"),
        (f"mallory_99_9003_{own('ada')}", zipped((NOTEBOOK, b"of mallory, who is not in the list"))),
    )
    found, refused = extracted(folder, {"canvas.zip": canvas}, url, "canvas")
    assert {student: notebook for student, (_, notebook) in found.items()} == {"ada": b"of ada", "eve": b"of eve"}
    (reason,) = refused.values()
    assert reason == "it says that it is ada's, but Canvas's mallory_99 isn't ada in the class list"
    (folder / "moodle").mkdir()
    moodle = zipped((f"ada@uni.edu_504_assignsubmission_file_/{NOTEBOOK}", b"of one who calls himself so"))
    found, refused = extracted(folder / "moodle", {"moodle.zip": moodle}, url, "moodle")
    assert not found and "Moodle's ada@uni.edu_504 isn't in the class list" in "".join(refused.values())


def test_a_number_or_an_id_in_a_name_of_the_own_choice_keeps_no_listed_students_hand_in_out(folder, tmp_path):
    """On Canvas a student may be called eve_71, and on Moodle one may call himself what no list has."""
    people = {
        "ada": {"first_name": "Ada", "last_name": "Lovelace", "lms_user_id": "71"},
        "4711": {"first_name": "Bob", "last_name": "Ross", "lms_user_id": "73"},
        "tom": {"first_name": "Tom", "last_name": "Thumb", "lms_user_id": "75"},
    }
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    of_eve = zipped((NOTEBOOK, b"of eve"))
    canvas = zipped(
        (f"lovelaceada_71_9001_{EXERCISE}.ipynb", b"of ada"),
        (f"eve_71_72_9002_{own('eve')}", of_eve),
        (f"eve_75_72_9003_{own('tom')}", of_eve),
        (f"rossbob_73_9004_{own('4711')}", zipped((NOTEBOOK, b"of bob"))),
    )
    moodle = zipped(
        (f"Tom Thumb_501_assignsubmission_file_/{NOTEBOOK}", b"of tom"),
        (f"Stranger_502_assignsubmission_file_/{own('tom')}", of_eve),
    )
    found, refused = extracted(folder, {"canvas.zip": canvas}, url, "canvas")
    assert {student: notebook for student, (_, notebook) in found.items()} == {"ada": b"of ada", "4711": b"of bob"}
    of_canvas, also_of_canvas = refused.values()
    (folder / "moodle").mkdir()
    found, refused = extracted(folder / "moodle", {"moodle.zip": moodle}, url, "moodle")
    assert {student: notebook for student, (_, notebook) in found.items()} == {"tom": b"of tom"}
    (of_moodle,) = refused.values()
    (folder / "later").mkdir()
    found, refused = extracted(
        folder / "later",
        {"moodle.zip": zipped((f"Stranger_502_assignsubmission_file_/{own('tom')}", of_eve))},
        url,
        "moodle",
    )
    assert not found and [*refused.values()] == [of_moodle]
    for alias in ("ADA", "71"):
        (folder / alias).mkdir()
        found, refused = extracted(folder / alias, {own(alias): of_eve}, url)
        assert not found and f"{alias} is in the class list, but as" in "".join(refused.values())
    assert "Canvas's user 71 or 72" in of_canvas and "Canvas's user 75 or 72" in also_of_canvas
    assert of_moodle == "it says that it is tom's, but Moodle's Stranger_502 isn't tom in the class list"


def test_numbers_in_a_name_on_canvas_make_no_hand_in_somebody_elses_and_keep_no_honest_one_out(folder, tmp_path):
    """Canvas takes dots out of a name last, so `x_7.1_9._x` becomes `x_71_9_x`; and it keeps marks on letters."""
    people = {
        "ada@uni.edu": {"lms_user_id": "71", "first_name": "Ada", "last_name": "Lovelace"},
        "eve": {"lms_user_id": "72"},
        "neha": {"lms_user_id": "73"},
        "bob": {"lms_user_id": "74"},
    }
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    files = {
        f"lovelaceada_71_9001_{own('20231234', '20260301T090000Z')}": zipped((NOTEBOOK, b"of ada")),
        f"lovelaceada_71_9_x_72_9002_{own('eve')}": zipped((NOTEBOOK, b"of eve, whose name says 71")),
        f"evileve_72_9003_{NOTEBOOK}": b"of eve",
        f"evileve_72_9008_71_1_{own('ada@uni.edu')}": zipped((NOTEBOOK, b"of eve, whose file's name says 71")),
        f"eve_71_99_{own('9004')}": zipped((NOTEBOOK, b"of 99, who isn't listed; no upload has the number 99")),
        f"lovelaceada_5_assignsubmission_file_x_72_9009_{NOTEBOOK}": b"of eve, as Moodle's Ada",
        f"Eve Evil_502_assignsubmission_onlinetext_/{own('bob')}": zipped((NOTEBOOK, b"of eve, beside a text")),
        f"नेहाशर्मा_73_9005_{NOTEBOOK}": b"of neha",
        f"eve_72_9006_q_5_assignsubmission_file_{own('bob')}": zipped((NOTEBOOK, b"of eve, as if it were Moodle's")),
        f"eve_72_9007_a/Bob Ross_501_assignsubmission_file_{NOTEBOOK}": b"of eve, in a folder",
    }
    found, refused = extracted(folder, {"submissions_2026_03_02.zip": zipped(*files.items())}, url, "canvas")
    assert {student: notebook for student, (_, notebook) in found.items()} == {
        "eve": b"of eve, as Moodle's Ada",  # her last upload, and nobody else's
        "neha": b"of neha",
    }
    of_ada, by_name, _, by_file, of_another, _, beside, _, as_moodles, in_folder = files
    why = {name.partition("/")[2]: reason for name, reason in refused.items()}
    assert "Canvas's user 71 or 72" in why[by_name] and "several people" in why[of_another]
    assert "Canvas's user 72 or 71" in why[by_file]  # 9008 has no upload 71
    assert as_moodles not in why and "a slash" in why[in_folder]
    assert "Canvas doesn't write such a name" in why[beside]
    (folder / "later").mkdir()
    later = {
        f"lovelaceada_71_72_9010_{EXERCISE}_20260302T100000Z.zip": zipped((NOTEBOOK, b"of eve, whose name ends so"))
    }
    found, refused = extracted(folder / "later", later, url, "canvas")
    assert not found and "Canvas's user 71 or 72" in "".join(refused.values())
    (folder / "alone").mkdir()
    again = f"lovelaceada_71_9300_{own('20231234', '20260228T090000Z')}"  # packed earlier, handed in later
    found, refused = extracted(folder / "alone", {of_ada: files[of_ada], again: files[of_ada]}, url, "canvas")
    assert found == {"ada@uni.edu": ("20260228T090000Z", b"of ada")} and not refused
    for place, people in {"no list": {}, "ids alone": {"20231234": {}, "al_2_17": {}}}.items():
        url = gradebook_of(f"sqlite:///{tmp_path / f'{place}.db'}", {}, {}, students=people)
        (folder / place).mkdir()
        typed = {f"lovelaceada_71_9001_{own('20231234')}": "20231234", f"turing_72_9002_{own('al_2_17')}": "al_2_17"}
        found, refused = extracted(folder / place, dict.fromkeys(typed, zipped((NOTEBOOK, GOOD))), url, "canvas")
        assert {*found} == {*typed.values()} and not refused


def test_names_as_a_platform_writes_them_count_in_what_came_from_it_alone(folder, tmp_path):
    """They can stand on any file, and in any zip."""
    people = {"ada": {"lms_user_id": "71", "first_name": "Ada", "last_name": "Lovelace"}, "eve": {"lms_user_id": "72"}}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    mailed = {
        own("eve"): zipped((NOTEBOOK, b"of eve")),
        f"homework_71_1_{NOTEBOOK}": b"of eve, as ada",
        f"Ada Lovelace_501_assignsubmission_file_{NOTEBOOK}": b"of eve, as ada",
        "hw\udcff.zip": zipped((f"x_71_99999_{own('ada')}", zipped((NOTEBOOK, b"of eve, as ada")))),
    }
    found, refused = extracted(folder, mailed, url)
    assert {student: notebook for student, (_, notebook) in found.items()} == {"eve": b"of eve"}
    assert len(refused) == 3
    for source, name in (
        ("canvas", f"lovelaceada_71_9001_{NOTEBOOK}"),
        ("moodle", f"Ada Lovelace_5{zips.MOODLE}file_x.zip"),
    ):
        (folder / source).mkdir()
        content = b"of ada" if source == "canvas" else zipped((NOTEBOOK, b"of ada"))
        found, refused = extracted(folder / source, {name: content, own("eve"): mailed[own("eve")]}, url, source)
        assert {student: notebook for student, (_, notebook) in found.items()} == {"ada": b"of ada"}
        assert f"{source.capitalize()} doesn't write such a name" in "".join(refused.values())


def test_an_exercise_with_numbers_in_its_name_is_no_upload_of_canvas():
    (reading,) = zips.readings("lovelaceada_71_9001_week_3_1_ring.ipynb", "week_3_1_ring")
    assert (reading.user, reading.upload, reading.file) == ("71", 9001, "week_3_1_ring.ipynb")
    assert zips.readings("ada_week_3_1_ring_20260302T090000Z.zip", "week_3_1_ring") == []


def test_nobody_replaces_anothers_hand_in_of_an_earlier_download_but_the_instructor(tmp_path, here):
    """By an edited name on Moodle, by what is typed, or on Canvas by somebody whose number the list lacks."""
    names = {"first_name": "Ada", "last_name": "Lovelace"}
    for source, about, honest, attacks in (
        (
            "canvas",
            {"lms_user_id": "71"},
            f"lovelaceada_71_9001_{NOTEBOOK}",
            [("mail", own("ada")), ("canvas", f"lovelaceada_71_99_9004_{EXERCISE}_20260302T100000Z.zip")],
        ),
        (
            "moodle",
            names,
            f"Ada Lovelace_501_assignsubmission_file_{NOTEBOOK}",
            [
                ("mail", own("ada")),
                ("moodle", f"Ada Lovelace_502_assignsubmission_file_{NOTEBOOK}"),
                ("canvas", f"lovelaceada_72_9002_{NOTEBOOK}"),
            ],
        ),
    ):
        place = tmp_path / source
        place.mkdir()
        url = gradebook_of(f"sqlite:///{place / 'gradebook.db'}", {}, {}, students={"ada": about})
        into = place / "into"

        def collected(number, came_from, name, replace=False, place=place, into=into, url=url):
            downloads, content = place / f"{number}", f"{number}".encode()
            downloads.mkdir(exist_ok=True)
            (downloads / name).write_bytes(zipped((NOTEBOOK, content)) if name.endswith(".zip") else content)
            found = zips.collect([downloads], EXERCISE, into, came_from, url, replace)
            return found, (into / "ada" / EXERCISE / NOTEBOOK).read_bytes()

        assert collected(0, source, honest)[1] == b"0"
        for number, attack in enumerate(attacks, 1):
            found, there = collected(number, *attack)
            assert not found.students and len(found.refused) == 1 and there == b"0", attack
        assert collected(8, source, honest.replace(EXERCISE, f"{EXERCISE}-1"))[1] == b"8"
        found, there = collected(9, *attacks[0], replace=True)
        assert there == b"9" and "in place of another: ada's from a file of no platform" in found.notes[-1]
        found, there = collected(10, *attacks[0])
        assert there == b"9" and "collect it by itself with REPLACE=1" in found.refused[0][1]
        found, there = collected(8, source, honest)  # the platform's next download still holds what was replaced
        assert there == b"9" and not found.refused
        found, there = collected(11, source, honest)
        assert there == b"9" and "collect it by itself with REPLACE=1" in found.refused[0][1]
        assert collected(11, source, honest, replace=True)[1] == b"11"


def test_what_nobody_remembers_gives_way_to_whom_the_platform_names_and_to_nobody_by_mail(tmp_path, here):
    """Such as a notebook that the instructor has put there, or one of another teacher's machine."""
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": {"lms_user_id": "71"}})
    into = tmp_path / "into"
    there = into / "ada" / EXERCISE / NOTEBOOK
    there.parent.mkdir(parents=True)
    there.write_bytes(b"by hand")
    mail, canvas = tmp_path / "mail", tmp_path / "canvas"
    for folder, name, content in (
        (mail, own("ada"), zipped((NOTEBOOK, b"by mail"))),
        (canvas, f"lovelaceada_71_9001_{NOTEBOOK}", b"by Canvas"),
    ):
        folder.mkdir()
        (folder / name).write_bytes(content)
    found = zips.collect([mail], EXERCISE, into, "mail", url)
    assert "before is from elsewhere" in found.refused[0][1] and there.read_bytes() == b"by hand"
    assert "in place of another: ada's" in zips.collect([canvas], EXERCISE, into, "canvas", url).notes[-1]
    assert there.read_bytes() == b"by Canvas"
    there.write_bytes(b"by hand, repaired")
    for folder, came_from, refused in ((canvas, "canvas", 0), (mail, "mail", 1)):  # Canvas's is the same as before
        assert len(zips.collect([folder], EXERCISE, into, came_from, url).refused) == refused
        assert there.read_bytes() == b"by hand, repaired"
    (there.parent / "original.ipynb").write_bytes(b"by Canvas")  # kept beside, and not graded
    found = zips.collect([canvas], EXERCISE, into, "canvas", url)
    assert there.read_bytes() == b"by hand, repaired" and found.notes[-1].startswith("passed over, because you have")
    (there.parent / "original.ipynb").unlink()
    (canvas / f"lovelaceada_71_9005_{EXERCISE}-1.ipynb").write_bytes(b"newer")
    assert zips.collect([canvas], EXERCISE, into, "canvas", url).students == ["ada"]
    there.write_bytes(b"by Canvas")  # the earlier one counts, says the instructor
    assert zips.collect([canvas], EXERCISE, into, "canvas", url).notes[-1].startswith("passed over, because you have")
    assert there.read_bytes() == b"by Canvas"
    there.rename(into / "ada" / NOTEBOOK)  # where the grader accepts it, too
    shutil.rmtree(there.parent)
    assert len(zips.collect([mail], EXERCISE, into, "mail", url).refused) == 1
    with pytest.raises(zips.BadZip, match="copy the hand-ins to a folder of their own"):
        zips.collect([tmp_path / "into-downloaded" / EXERCISE / "archive"], EXERCISE, into, "canvas", url)
    with pytest.raises(zips.BadZip, match="copy the hand-ins to a folder of their own"):
        zips.collect([tmp_path], EXERCISE, into, "canvas", url)


def test_what_a_failed_collection_has_not_brought_is_taken_in_by_the_next_one(tmp_path, here):
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": {"lms_user_id": "71"}})
    canvas, into = tmp_path / "canvas", tmp_path / "into"
    canvas.mkdir()
    (canvas / f"lovelaceada_71_9001_{NOTEBOOK}").write_bytes(b"first")
    assert zips.collect([canvas], EXERCISE, into, "canvas", url).students == ["ada"]
    (canvas / f"lovelaceada_71_9002_{NOTEBOOK}").write_bytes(b"second")
    (into / "ada").rename(tmp_path / "elsewhere")
    (into / "ada").mkdir()
    (into / "ada" / EXERCISE).symlink_to(tmp_path / "elsewhere" / EXERCISE)  # which nbgrader refuses to replace
    with pytest.raises(zips.BadZip, match="zip_collect failed"):
        zips.collect([canvas], EXERCISE, into, "canvas", url)
    (into / "ada" / EXERCISE).unlink()
    (tmp_path / "elsewhere" / EXERCISE).rename(into / "ada" / EXERCISE)
    found = zips.collect([canvas], EXERCISE, into, "canvas", url)
    assert found.students == ["ada"] and (into / "ada" / EXERCISE / NOTEBOOK).read_bytes() == b"second"


def test_an_older_download_brings_no_older_upload_back_and_what_a_system_leaves_behind_is_no_hand_in(tmp_path, here):
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": {"lms_user_id": "71"}})
    for upload, content in ((9002, b"second"), (9001, b"first")):
        canvas = tmp_path / f"{upload}"
        canvas.mkdir()
        (canvas / f"lovelaceada_71_{upload}_{NOTEBOOK}").write_bytes(content)
        (canvas / f"._lovelaceada_71_{upload}_{NOTEBOOK}").write_bytes(b"macOS")
        (canvas / f"lovelaceada_71_{upload}_{NOTEBOOK}:Zone.Identifier").write_bytes(b"Windows")
        found = zips.collect([canvas], EXERCISE, tmp_path / "into", "canvas", url)
        assert (tmp_path / "into" / "ada" / EXERCISE / NOTEBOOK).read_bytes() == b"second" and not found.refused
    assert found.notes[0].startswith("passed over, because a later download or upload was taken in: ada's")


@pytest.mark.parametrize("source", ["canvas", "moodle"])
def test_an_older_hand_in_comes_back_by_replace_alone_and_then_stays(source, tmp_path, here):
    """On Moodle the downloads' times say which is older, on Canvas the uploads' numbers."""
    about = {"lms_user_id": "71", "first_name": "Ada", "last_name": "Lovelace"}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": about})
    there = tmp_path / "into" / "ada" / EXERCISE / NOTEBOOK
    downloads = {}
    for upload, content in ((9001, b"first"), (9002, b"second")):
        downloads[content] = folder = tmp_path / f"{upload}"
        folder.mkdir()
        moodle = f"Ada Lovelace_501_assignsubmission_file_{NOTEBOOK}"
        file = folder / (moodle if source == "moodle" else f"lovelaceada_71_{upload}_{NOTEBOOK}")
        file.write_bytes(content)
        os.utime(file, (1e5 * upload, 1e5 * upload))

    def collected(content, replace=False):
        found = zips.collect([downloads[content]], EXERCISE, tmp_path / "into", source, url, replace)
        return there.read_bytes(), [note.partition(",")[0] for note in found.notes]

    assert collected(b"second") == (b"second", [])
    assert collected(b"first") == (b"second", ["passed over"])
    there.write_bytes(b"second, repaired")
    assert collected(b"first") == (b"second, repaired", ["passed over"])
    there.write_bytes(b"second")
    assert collected(b"first", replace=True) == (b"first", [])
    assert collected(b"second") == (b"first", ["passed over"])
    assert collected(b"first") == (b"first", [])


def test_what_an_older_upload_says_lets_nothing_that_is_older_than_the_newest_come_back(tmp_path, here):
    """Not by REPLACE=1 for the first of three, nor by the same once more from an older download."""
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": {"lms_user_id": "71"}})

    def collected(into, upload, content, replace=False):
        folder = tmp_path / f"{into} {upload} {content}"
        folder.mkdir(exist_ok=True)
        (folder / f"lovelaceada_71_{upload}_{NOTEBOOK}").write_bytes(content.encode())
        zips.collect([folder], EXERCISE, tmp_path / into, "canvas", url, replace)
        return (tmp_path / into / "ada" / EXERCISE / NOTEBOOK).read_text()

    assert [collected("into", *each) for each in ((9001, "first"), (9002, "second"), (9003, "third"))][-1] == "third"
    assert collected("into", 9001, "first", replace=True) == "first"
    assert collected("into", 9003, "third") == collected("into", 9002, "second") == "first"
    assert collected("into", 9004, "third") == "third"  # the student hands it in once more
    assert collected("other", 9003, "first") == collected("other", 9001, "first") == "first"
    assert collected("other", 9002, "second") == "first"


def test_on_moodle_the_newest_download_counts_whatever_clock_a_packed_hand_in_was_dated_by(tmp_path, here):
    names = {"first_name": "Ada", "last_name": "Lovelace"}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": names})
    plain, packed = f"Ada Lovelace_501_assignsubmission_file/{NOTEBOOK}", "Ada Lovelace_501_assignsubmission_file/{}"
    downloads = [
        (1, plain, b"first"),
        (2, packed.format(own("ada", "20260101T090000Z")), zipped((NOTEBOOK, b"second"))),
        (3, plain, b"third"),
        (4, packed.format(own("ada", "20260101T090000Z")), zipped((NOTEBOOK, b"second"))),  # that one again
    ]
    grown = tmp_path / "grown"
    grown.mkdir()
    for day, name, content in downloads:
        with zipfile.ZipFile(grown / f"{day}.zip", "w") as download:
            download.writestr(zipfile.ZipInfo(name, (2026, 2, day, 12, 0, 0)), content)
        want = (b"first", b"second", b"third", b"second")[day - 1]
        for into, sources in (("one by one", [grown / f"{day}.zip"]), ("all", [grown])):
            zips.collect(sources, EXERCISE, tmp_path / into, "moodle", url)
            assert (tmp_path / into / "ada" / EXERCISE / NOTEBOOK).read_bytes() == want, (day, into)


def test_a_refused_mail_hides_none_that_was_refused_with_it(tmp_path, here):
    mail, into = tmp_path / "mail", tmp_path / "into"
    (into / "ada" / EXERCISE).mkdir(parents=True)
    (into / "ada" / EXERCISE / NOTEBOOK).write_bytes(b"by hand")
    mail.mkdir()
    for when, content in (("20260303T090000Z", b"of ada"), ("20260304T090000Z", b"of eve")):
        (mail / own("ada", when)).write_bytes(zipped((NOTEBOOK, content)))
    found = zips.collect([mail], EXERCISE, into, "mail")
    assert sorted(file for file, _ in found.refused) == sorted(path.name for path in mail.iterdir())


def test_what_is_mailed_once_more_is_no_less_the_instructors(tmp_path, here):
    """The same notebook by mail makes one that was put there by hand no mailed one, with REPLACE=1 or without."""
    for replace in (False, True):
        mail, into = tmp_path / f"mail {replace}", tmp_path / f"into {replace}"
        there = into / "ada" / EXERCISE / NOTEBOOK
        there.parent.mkdir(parents=True)
        there.write_bytes(b"of ada")
        mail.mkdir()
        (mail / own("ada")).write_bytes(zipped((NOTEBOOK, b"of ada")))
        zips.collect([mail], EXERCISE, into, "mail", replace=replace)
        (mail / own("ada", "20260304T090000Z")).write_bytes(zipped((NOTEBOOK, b"of eve")))
        found = zips.collect([mail], EXERCISE, into, "mail")
        assert there.read_bytes() == b"of ada" and "REPLACE=1" in found.refused[0][1]


def test_what_the_instructor_has_put_beside_a_collected_notebook_is_not_lost(tmp_path, here):
    mail, into = tmp_path / "mail", tmp_path / "into"
    mail.mkdir()
    (mail / own("ada")).write_bytes(zipped((NOTEBOOK, b"of ada")))
    zips.collect([mail], EXERCISE, into, "mail")
    mended = into / "ada" / EXERCISE / f"{EXERCISE} (1).ipynb"
    mended.write_bytes(b"of ada, by web mail")
    ((file, reason),) = zips.collect([mail], EXERCISE, into, "mail").refused
    assert file == own("ada") and f"holds {mended.name}, which would be lost" in reason
    assert mended.read_bytes() == b"of ada, by web mail"
    assert zips.collect([mail], EXERCISE, into, "mail", replace=True).refused == [] and not mended.exists()


@pytest.mark.parametrize("name", [f"{EXERCISE} (1).ipynb", f"{EXERCISE}.IPYNB", "mended.ipynb"])
def test_a_hand_in_that_was_refused_for_a_copy_in_its_place_comes_when_the_copy_has_moved_away(tmp_path, here, name):
    """What is refused isn't remembered as taken in, so collecting once more doesn't pass it over."""
    mail, into = tmp_path / "mail", tmp_path / "into"
    mail.mkdir()
    (mail / own("ada")).write_bytes(zipped((NOTEBOOK, b"of ada")))
    zips.collect([mail], EXERCISE, into, "mail")
    there = into / "ada" / EXERCISE / NOTEBOOK
    (there.parent / name).write_bytes(b"mended")
    (mail / own("ada", "20260304T090000Z")).write_bytes(zipped((NOTEBOOK, b"of ada, newer")))
    ((_, reason),) = zips.collect([mail], EXERCISE, into, "mail").refused
    assert "move it away and collect again" in reason and there.read_bytes() == b"of ada"
    (there.parent / name).unlink()
    assert zips.collect([mail], EXERCISE, into, "mail").refused == [] and there.read_bytes() == b"of ada, newer"


def test_where_nbgraders_own_command_would_give_up_nothing_is_remembered(tmp_path):
    """It replaces nothing without --force, so what it leaves out must come again."""

    def leave(force, drafts):
        parent = SimpleNamespace(force=force, fail=pytest.fail)
        zips.SafeExtractor.leave_if_in_the_way(SimpleNamespace(parent=parent, drafts=drafts), [tmp_path])

    leave(force=False, drafts=False)  # nothing is in the way
    (tmp_path / NOTEBOOK).write_bytes(b"of ada")
    leave(force=True, drafts=False)
    leave(force=False, drafts=True)  # `make collect`: it remembers when the notebooks are in place
    with pytest.raises(pytest.fail.Exception, match=r"Directory not empty: .*\nuse the --force option"):
        leave(force=False, drafts=False)


def test_by_mail_replace_settles_whose_notebook_it_is(tmp_path, here):
    into = tmp_path / "into"
    for number, (content, replace, there) in enumerate(
        (
            (b"of ada", False, b"of ada"),
            (b"of eve", False, b"of eve"),
            (b"of ada", True, b"of ada"),
            (b"of eve", False, b"of ada"),
        )
    ):
        mail = tmp_path / f"{number}"
        mail.mkdir()
        (mail / own("ada", f"2026030{number + 1}T090000Z")).write_bytes(zipped((NOTEBOOK, content)))
        zips.collect([mail], EXERCISE, into, "mail", replace=replace)
        assert (into / "ada" / EXERCISE / NOTEBOOK).read_bytes() == there
    assert zips.collect([tmp_path / "2"], EXERCISE, into, "mail").refused == []  # it is in place


def test_what_the_instructor_has_replaced_hides_nothing_that_is_newer(tmp_path, here):
    """Who mails in another's name may date it later than all that comes the same day."""
    mail, into = tmp_path / "mail", tmp_path / "into"
    mail.mkdir()
    for when, content in (("20260301T090000Z", b"first"), ("20260302T230000Z", b"of eve")):
        (mail / own("ada", when)).write_bytes(zipped((NOTEBOOK, content)))
    assert zips.collect([mail], EXERCISE, into, "mail").students == ["ada"]
    there = into / "ada" / EXERCISE / NOTEBOOK
    there.write_bytes(b"first")
    newer = own("ada", "20260302T200000Z")
    (mail / newer).write_bytes(zipped((NOTEBOOK, b"newer")))
    found = zips.collect([mail], EXERCISE, into, "mail")
    assert there.read_bytes() == b"first" and newer in found.refused[0][0]
    assert [note.split(",")[0] for note in found.notes] == [zips.NO_LIST.split(",")[0], "passed over"]
    zips.collect([mail], EXERCISE, into, "mail", replace=True)
    assert there.read_bytes() == b"newer"


def test_mail_that_is_collected_again_says_nothing_and_another_text_in_its_place_does(tmp_path, here):
    mail, into = tmp_path / "mail", tmp_path / "into"
    mail.mkdir()
    (mail / own("ada")).write_bytes(zipped((NOTEBOOK, b"first")))
    collected = [zips.collect([mail], EXERCISE, into, "mail") for _ in range(2)]
    assert all(found.students == ["ada"] and found.notes == [zips.NO_LIST] for found in collected)
    (mail / own("ada", "20260303T090000Z")).write_bytes(zipped((NOTEBOOK, b"second")))
    *_, replaced, several = zips.collect([mail], EXERCISE, into, "mail").notes
    assert several.startswith("of several: ada's") and replaced.startswith("in place of another: ada's")


@pytest.mark.parametrize("unpacked", [False, True])
def test_canvas_s_own_download_is_no_hand_in_though_its_name_has_two_numbers(folder, tmp_path, unpacked, here):
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": {"lms_user_id": "71"}})
    own_name = f"COMP_520_001_FA26-{EXERCISE}_submissions"
    one = f"lovelaceada_71_9001_{NOTEBOOK}"
    text = "lovelaceada_71_text.html"
    files = {f"{own_name}/{one}": GOOD, f"{own_name}/{text}": b"a comment"}
    grades = {"2026-11-29T1200_Grades-COMP_520_001_FA26.csv": b"Student,ID"}
    zip_of_all = {f"{own_name}.zip": zipped((one, GOOD), (text, b"a comment"))}
    place = folder / "downloads"
    for name, content in ((files if unpacked else zip_of_all) | grades).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    found = zips.collect([place], EXERCISE, tmp_path / "into", "canvas", url)
    assert found.students == ["ada"] and "left alone" in found.notes[-1]
    named = found.notes[-1] if unpacked else str(found.refused)
    assert text in named and len(found.refused) == 1 - unpacked  # Canvas hands it out in place of a file


def test_a_zip_on_moodle_that_is_called_submissions_is_one_hand_in(folder, tmp_path):
    names = {"ada": {"first_name": "Ada", "last_name": "L"}, "eve": {"first_name": "Eve", "last_name": "E"}}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=names)
    files = {
        "Ada L_501_assignsubmission_file/my_submissions.zip": zipped((NOTEBOOK, GOOD)),
        "Eve E_503_assignsubmission_file/submissions.zip": zipped(
            (f"Ada L_777_assignsubmission_file/{NOTEBOOK}", b"of Eve"), (f"x/{NOTEBOOK}", b"of Eve")
        ),
    }
    found, refused = extracted(folder, files, url, "moodle")
    assert {student: content for student, (_, content) in found.items()} == {"ada": GOOD} and len(refused) == 1


def test_a_hand_in_that_is_called_as_canvas_calls_a_download_brings_nobody_elses(folder, tmp_path):
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": {"lms_user_id": "71"}})
    forged = zipped((f"lovelaceada_71_9999_{NOTEBOOK}", b"of one who isn't listed"))
    files = {"auditor_99_9002_x_submissions.zip": forged, f"lovelaceada_71_9001_{NOTEBOOK}": GOOD}
    found, refused = extracted(folder, files, url, "canvas")
    assert found["ada"][1] == GOOD and [*refused] == ["auditor_99_9002_x_submissions.zip"]


def test_whom_the_list_has_without_a_number_canvas_s_name_finds_and_nobody_else_is_that_one(folder, tmp_path):
    late = {"first_name": "Zoë", "last_name": "Müller"}
    people = {"ada": {"lms_user_id": "71"}, "zoe": late}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    files = {
        f"müllerzoë_80_9001_{NOTEBOOK}": b"of Zoe",
        f"liyan_81_9002_{own('zoe')}": zipped((NOTEBOOK, b"of Yan, who says that he is zoe")),
    }
    found, refused = extracted(folder, files, url, "canvas")
    assert found["zoe"][1] == b"of Zoe" and "isn't zoe in the class list" in refused[f"liyan_81_9002_{own('zoe')}"]


@pytest.mark.parametrize("packed_last", [False, True])
def test_of_two_files_on_moodle_the_last_in_the_zip_counts_and_both_are_named(packed_last, folder, tmp_path):
    """Moodle begins with the oldest, and gives all of them the time of the download."""
    names = {"first_name": "Ada", "last_name": "Lovelace"}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": names})
    place = "Ada Lovelace_501_assignsubmission_file"
    packed = f"{place}/{own('ada', '20260201T000000Z')}"
    files = [(f"{place}/{NOTEBOOK}", b"plain"), (packed, zipped((NOTEBOOK, b"packed")))]
    old, new = files if packed_last else files[::-1]
    found, _ = extracted(folder, {"all.zip": zipped(old, new)}, url, "moodle")
    assert found["ada"][1] == (b"packed" if packed_last else b"plain")
    assert f"and not all.zip/{old[0]}"[:70] in (folder / "notes.txt").read_text(encoding="utf-8")


def test_what_is_collected_again_unchanged_keeps_its_time_and_so_its_grades(tmp_path, here):
    """A plain notebook has the time of its download. With another time, nbgrader asks to confirm points again."""
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students={"ada": {"lms_user_id": "71"}})
    times = []
    for day, content in ((2, b"first"), (4, b"first"), (6, b"second")):
        with zipfile.ZipFile(tmp_path / "submissions.zip", "w") as download:
            name = f"lovelaceada_71_900{1 + (day == 6)}_{NOTEBOOK}"
            download.writestr(zipfile.ZipInfo(name, (2026, 3, day, 12, 0, 0)), content)
        zips.collect([tmp_path / "submissions.zip"], EXERCISE, tmp_path / "into", "canvas", url)
        times.append((tmp_path / "into" / "ada" / EXERCISE / "timestamp.txt").read_text())
    assert times[0] == times[1] != times[2]


def test_an_id_that_makes_too_long_a_folder_is_refused_and_ends_nothing(folder):
    long = "\U00020000" * 60
    download = zipped((own(long), zipped((NOTEBOOK, GOOD))), (own("bob"), zipped((NOTEBOOK, GOOD))))
    found, refused = extracted(folder, {"homework.zip": download})
    assert [*found] == ["bob"] and "is no student's id" in "".join(refused.values())
    assert "no class list" in (folder / "notes.txt").read_text(encoding="utf-8")


def test_two_downloads_of_one_name_are_both_taken_in(tmp_path, here):
    for section, student in (("a", "ada"), ("b", "bob")):
        (tmp_path / section).mkdir()
        packed = zipped((own(student), zipped((NOTEBOOK, GOOD))))
        (tmp_path / section / "submissions.zip").write_bytes(packed)
    taken, refused, _ = zips.collect([tmp_path / "a", tmp_path / "b"], EXERCISE, tmp_path / "submitted", "mail")
    assert taken == ["ada", "bob"] and not refused


@pytest.mark.parametrize("unpacked", [False, True])
def test_a_slash_in_a_name_on_canvas_makes_no_hand_in_of_somebody_else(folder, tmp_path, unpacked):
    people = {"ada": {"lms_user_id": "71"}, "mal": {"lms_user_id": "72"}, "bob": {"lms_user_id": "73"}}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    files = {
        f"mallory_72_9002_a/{own('ada')}": zipped((NOTEBOOK, b"of mallory, who says that he is ada")),
        f"mallory_LATE_72_9004_/{own('ada')}": zipped((NOTEBOOK, b"the same")),
        f"homework/rossbob_73_9003_{NOTEBOOK}": b"of bob",
    }
    found, refused = extracted(
        folder, files if unpacked else {"submissions.zip": zipped(*files.items())}, url, "canvas"
    )
    assert {student: notebook for student, (_, notebook) in found.items()} == {"bob": b"of bob"}
    assert len(refused) == 2 and all("its name has a slash" in reason for reason in refused.values())


def test_two_people_who_hand_in_under_one_name_are_both_refused_and_a_later_one_of_the_same_supersedes(folder):
    download = zipped(
        (f"lovelaceada_71_9001_{own('ada')}", zipped((NOTEBOOK, b"of ada"))),
        (f"rossbob_72_9002_{own('ada')}", zipped((NOTEBOOK, b"of bob"))),
        (f"tomthumb_73_9003_{own('tom')}", zipped((NOTEBOOK, b"early"))),
        (f"tomthumb_73_9004_{own('tom', '20260303T000000Z')}", zipped((NOTEBOOK, b"late"))),
    )
    found, refused = extracted(folder, {"submissions.zip": download}, source="canvas")
    assert found == {"tom": ("20260303T000000Z", b"late")}
    assert len(refused) == 2
    assert all("several people hand in as ada" in reason for reason in refused.values())


def test_what_a_student_packs_comes_out_at_the_grader_s_through_nbgrader_s_zip_collect(tmp_path, capsys):
    path = tmp_path / NOTEBOOK
    nbformat.write(fill(EXERCISE, answers("full", EXERCISE)), path)
    arguments = [EXERCISE, "--student", "ada", "--notebook", str(path), "--into", str(tmp_path / "zips")]
    assert submit.main(arguments) == 0
    said = capsys.readouterr().out
    assert "was not run" in said and str(tmp_path / "zips" / "ada_") in said
    (packed,) = (tmp_path / "zips").iterdir()
    assert re.fullmatch(rf"ada_{EXERCISE}_\d{{8}}T\d{{6}}Z\.zip", packed.name)
    (tmp_path / "zips" / own("eve")).write_bytes(HOSTILE["path traversal"][0])
    (tmp_path / "zips" / "notes.txt").write_text("to do")
    into = tmp_path / "submissions"
    assert zips.main([str(tmp_path / "zips"), "--exercise", EXERCISE, "--into", str(into), "--from", "mail"]) == 1
    said = capsys.readouterr().out
    assert f"REFUSED {own('eve')}" in said and "1 taken in, 1 refused" in said
    assert "left alone, because they are no hand-ins (1): notes.txt" in said
    (tmp_path / "zips" / own("eve")).unlink()
    assert zips.main([str(tmp_path / "zips"), "--exercise", EXERCISE, "--into", str(into), "--from", "mail"]) == 0
    assert (into / "ada" / EXERCISE / NOTEBOOK).read_bytes() == path.read_bytes()
    handed_in = datetime.fromisoformat((into / "ada" / EXERCISE / "timestamp.txt").read_text()).replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - handed_in).total_seconds()) < 300
    assert [place.name for place in into.iterdir()] == ["ada"]


def test_a_student_is_told_what_is_amiss_before_handing_in(tmp_path):
    given_out = fill(EXERCISE, {})
    notebook = fill(EXERCISE, answers("partial", EXERCISE))
    checks = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    checks[0].source += "\nassert True"
    checks[1].execution_count = 1
    checks[2].execution_count, checks[2].outputs = 2, [nbformat.v4.new_output("error", ename="NotYet", evalue="")]
    notebook.cells.remove(checks[3])
    notebook.cells.append(checks[4].copy())
    remarks = submit.look_over(notebook, given_out)
    assert f"the cell {checks[0].id} was edited; the grader uses the original" in remarks
    assert f"the check {checks[1].id} was not run" not in remarks
    assert f"the check {checks[2].id} fails" in remarks
    assert f"the cell {checks[3].id} is missing: copy it from a fresh copy of the exercise" in remarks
    assert f"the cell {checks[4].id} appears 2 times: delete the copies" in remarks
    assert any(re.fullmatch("the answer .* is empty", remark) for remark in submit.look_over(given_out, given_out))


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["99_x", "--student", "ada"], "no exercise is called '99_x'"),
        ([EXERCISE, "--student", "../eve"], "is not an id"),
        ([EXERCISE], "your id is missing"),
        ([EXERCISE, "--student", "ada", "--notebook", __file__], "cannot be read as a notebook"),
        ([EXERCISE, "--student", "ada", "--notebook", "nowhere.ipynb"], "there is no nowhere.ipynb"),
    ],
)
def test_what_cannot_be_handed_in_is_answered_in_a_line(arguments, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert submit.main([*arguments, "--into", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
