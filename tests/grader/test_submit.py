"""Handing in without a hub: what a student packs is what nbgrader's zip collector takes in, and nothing else is."""

import csv
import io
import os
import re
import stat
import time
import tracemalloc
import warnings
import zipfile
from datetime import UTC, datetime
from pathlib import Path

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


def extracted(folder, files, db_url="sqlite:////nowhere.db"):
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
    zips.SafeExtractor(parent=app).extract(str(archive), str(out))
    made = {path for path in folder.parent.rglob("*") if path.is_file()} - before
    assert all(path.name in (NOTEBOOK, "refused.csv") for path in made)
    _, *refused = csv.reader((folder / "refused.csv").open(encoding="utf-8"))
    refused = {shown.removeprefix("'"): reason for shown, reason in refused}
    return {path.parts[-3]: (path.parts[-2], path.read_bytes()) for path in out.rglob("*.ipynb")}, refused


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "downloaded"
    place.mkdir()
    return place


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
        (f"stranger_99_9003_{EXERCISE}.ipynb", b"not in the class list"),
        ("rossbob_72_9004_essay.pdf", b"pdf"),
        ("__MACOSX/._x", b""),
    )
    found, refused = extracted(folder, {"submissions.zip": download}, url)
    assert found == {
        "ada": ("20260302T090000Z", b"first"),
        "bob": ("20260302T090000Z", b"of bob, who says that he is ada"),
        "stranger_99": ("20260301T120000Z", b"not in the class list"),
    }
    assert list(refused) == ["submissions.zip/rossbob_72_9004_essay.pdf"]


def test_what_moodle_lets_a_teacher_download_is_told_apart_by_full_names(folder, tmp_path):
    people = {"ada": {"first_name": "Ada", "last_name": "Lovelace"}}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", {}, {}, students=people)
    download = zipped(
        (f"Ada Lovelace_501_assignsubmission_file_/{NOTEBOOK}", b"of ada"),
        (f"José Ñandú_502_assignsubmission_file_/sub/{own('jose')}", zipped((NOTEBOOK, b"of jose"))),
        (f"Bob Ross_503_assignsubmission_file_{NOTEBOOK}", b"of bob"),
        ("Eve_504_assignsubmission_file_/../../../evil.ipynb", b"of eve"),
    )
    found, refused = extracted(folder, {"course-ring-7.zip": download}, url)
    assert {student: notebook for student, (_, notebook) in found.items()} == {
        "ada": b"of ada",
        "jose": b"of jose",
        "Bob-Ross_503": b"of bob",
    }
    (reason,) = refused.values()
    assert "leads out of its folder" in reason


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
    moodle = zipped((f"ada@uni.edu_504_assignsubmission_file_/{NOTEBOOK}", b"of one who calls himself so"))
    found, refused = extracted(folder, {"canvas.zip": canvas, "moodle.zip": moodle}, url)
    assert {student: notebook for student, (_, notebook) in found.items()} == {
        "ada": b"of ada",
        "eve": b"of eve",
        "ada@uni.edu_504": b"of one who calls himself so",
    }
    (reason,) = refused.values()
    assert reason == "it says that it is ada's, but Canvas's mallory_99 isn't ada in the class list"


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
    found, refused = extracted(folder, {"canvas.zip": canvas, "moodle.zip": moodle}, url)
    assert {student: notebook for student, (_, notebook) in found.items()} == {
        "ada": b"of ada",
        "4711": b"of bob",
        "tom": b"of tom",
    }
    of_canvas, also_of_canvas, of_moodle = refused.values()
    (folder / "later").mkdir()
    found, refused = extracted(
        folder / "later", {"moodle.zip": zipped((f"Stranger_502_assignsubmission_file_/{own('tom')}", of_eve))}, url
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
        f"eve_71_99_{own('9004')}": zipped((NOTEBOOK, b"of 99, who isn't listed, or of ada's upload 99")),
        f"lovelaceada_5_assignsubmission_file_x_72_9009_{NOTEBOOK}": b"of eve, as Moodle's Ada",
        f"Eve Evil_502_assignsubmission_onlinetext_/{own('bob')}": zipped((NOTEBOOK, b"of eve, beside a text")),
        f"नेहाशर्मा_73_9005_{NOTEBOOK}": b"of neha",
        f"eve_72_9006_q_5_assignsubmission_file_{own('bob')}": zipped((NOTEBOOK, b"of eve, as if it were Moodle's")),
        f"eve_72_9007_a/Bob Ross_501_assignsubmission_file_{NOTEBOOK}": b"of eve, in a folder",
    }
    found, refused = extracted(folder, {"submissions_2026_03_02.zip": zipped(*files.items())}, url)
    assert {student: notebook for student, (_, notebook) in found.items()} == {"eve": b"of eve", "neha": b"of neha"}
    of_ada, by_name, _, by_file, of_another, marked, beside, _, as_moodles, in_folder = files
    why = {name.partition("/")[2]: reason for name, reason in refused.items()}
    assert "Canvas's user 71 or 72" in why[by_name] and "several people" in why[of_another]
    assert "Canvas's user 72 or 9008 or 71" in why[by_file]
    assert "Canvas's or Moodle's" in why[as_moodles] and "a slash" in why[in_folder]
    assert "Canvas's or Moodle's" in why[marked] and "beside a text" in why[beside]
    (folder / "later").mkdir()
    later = {
        f"lovelaceada_71_72_9010_{EXERCISE}_20260302T100000Z.zip": zipped((NOTEBOOK, b"of eve, whose name ends so"))
    }
    found, refused = extracted(folder / "later", later, url)
    assert not found and "Canvas's user 71 or 72" in "".join(refused.values())
    (folder / "alone").mkdir()
    again = f"lovelaceada_71_9300_{own('20231234', '20260228T090000Z')}"
    found, refused = extracted(folder / "alone", {of_ada: files[of_ada], again: files[of_ada]}, url)
    assert found == {"ada@uni.edu": ("20260301T090000Z", b"of ada")} and not refused
    for place, people in {"no list": {}, "ids alone": {"20231234": {}, "al_2_17": {}}}.items():
        url = gradebook_of(f"sqlite:///{tmp_path / f'{place}.db'}", {}, {}, students=people)
        (folder / place).mkdir()
        typed = {f"lovelaceada_71_9001_{own('20231234')}": "20231234", f"turing_72_9002_{own('al_2_17')}": "al_2_17"}
        found, refused = extracted(folder / place, dict.fromkeys(typed, zipped((NOTEBOOK, GOOD))), url)
        assert {*found} == {*typed.values()} and not refused


def test_two_downloads_of_one_name_are_both_taken_in(tmp_path):
    for section, student in (("a", "ada"), ("b", "bob")):
        (tmp_path / section).mkdir()
        packed = zipped((own(student), zipped((NOTEBOOK, GOOD))))
        (tmp_path / section / "submissions.zip").write_bytes(packed)
    taken, refused, _ = zips.collect([tmp_path / "a", tmp_path / "b"], EXERCISE, tmp_path / "submitted")
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
    found, refused = extracted(folder, files if unpacked else {"submissions.zip": zipped(*files.items())}, url)
    assert {student: notebook for student, (_, notebook) in found.items()} == {"bob": b"of bob"}
    assert len(refused) == 2 and all("its name has a slash" in reason for reason in refused.values())


def test_two_people_who_hand_in_under_one_name_are_both_refused_and_a_later_one_of_the_same_supersedes(folder):
    download = zipped(
        (f"lovelaceada_71_9001_{own('ada')}", zipped((NOTEBOOK, b"of ada"))),
        (f"rossbob_72_9002_{own('ada')}", zipped((NOTEBOOK, b"of bob"))),
        (f"tomthumb_73_9003_{own('tom')}", zipped((NOTEBOOK, b"early"))),
        (f"tomthumb_73_9004_{own('tom', '20260303T000000Z')}", zipped((NOTEBOOK, b"late"))),
    )
    found, refused = extracted(folder, {"submissions.zip": download})
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
    assert zips.main([str(tmp_path / "zips"), "--exercise", EXERCISE, "--into", str(into)]) == 1
    said = capsys.readouterr().out
    assert f"REFUSED {own('eve')}" in said and "1 taken in, 1 refused" in said
    assert "left alone, because they are no hand-ins (1): notes.txt" in said
    (tmp_path / "zips" / own("eve")).unlink()
    assert zips.main([str(tmp_path / "zips"), "--exercise", EXERCISE, "--into", str(into)]) == 0
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
