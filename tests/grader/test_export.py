"""Grades out: the files that Canvas and Moodle take in, through nbgrader's own command and through ours."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gradebooks import gradebook_of
from nbgrader.api import Gradebook

from autograder import points, sheet
from autograder.results import export

ROOT = Path(__file__).resolve().parents[2]

QUESTIONS = {"02_tree": {"a1": 10, "b1": 10}, "04_all_reduce": {"a1": 16, "words": 4}}
POINTS = {
    ("ada", "02_tree"): {"a1": 10, "b1": 7.333},
    ("ada", "04_all_reduce"): {"a1": 16, "words": 3},
    ("bob", "02_tree"): {"a1": 10, "b1": 0},
    ("bob", "04_all_reduce"): {"a1": 16, "words": None},
    ("eve", "02_tree"): {"a1": 0, "b1": 0},
}
STUDENTS = {
    "ada": {"first_name": "Ada", "last_name": "Lovelace", "lms_user_id": "71", "email": "ada@uni.edu"},
    "bob": {"first_name": "Bob", "last_name": "Ross", "lms_user_id": "72", "email": "bob@uni.edu"},
    "eve": {"first_name": "x", "last_name": '=HYPERLINK("http://evil")', "email": "@eve"},
    "tom": {"first_name": "Tom", "last_name": "Thumb", "lms_user_id": "74"},
}
LATE = {("bob", "02_tree"): 4, ("eve", "02_tree"): 2}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "gradebook.db"
    return gradebook_of(f"sqlite:///{path}", QUESTIONS, POINTS, LATE, STUDENTS)


def exported(url, tmp_path, capsys, *arguments, code=0):
    """The rows of the file that the command wrote, and what it said."""
    to = tmp_path / "out.csv"
    assert export.main([*arguments, "--db", url, "--to", str(to)]) == code
    said = capsys.readouterr()
    rows = list(csv.reader(to.open(encoding="utf-8"))) if code == 0 else []
    return rows, said.out + said.err


def test_two_notebooks_of_an_assignment_that_have_a_grade_id_in_common_both_count(tmp_path, capsys):
    """As where the second was begun as a copy of the first. What waits for a person in one of them waits."""
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    with Gradebook(url) as gradebook:
        gradebook.add_assignment("ps1")
        for notebook, names in (("one", ("q1", "q2")), ("two", ("q1", "q3"))):
            gradebook.add_notebook(notebook, "ps1")
            for name in names:
                gradebook.add_grade_cell(name, notebook, "ps1", max_score=5, cell_type="code")
        for student, of_two in (("ada", 0), ("bob", 5)):
            gradebook.add_student(student)
            gradebook.add_submission("ps1", student)
            for notebook, score in (("one", 5), ("two", of_two)):
                for grade in gradebook.find_submission_notebook(notebook, "ps1", student).grades:
                    grade.auto_score, grade.needs_manual_grade = score, False
        gradebook.find_grade("q1", "one", "ps1", "bob").needs_manual_grade = True
        gradebook.db.commit()
        found = points.results(gradebook)["ps1"]
        assert {student: (each.points, each.is_open) for student, each in found.items()} == {
            "ada": (10, False),
            "bob": (20, True),
        }
        assert {*found["ada"].questions} == {"one/q1", "two/q1", "q2", "q3"}
        assert points.most_points(gradebook) == {"ps1": 20}
    assert export.main(["canvas", "--db", url, "--to", str(tmp_path / "out.csv")]) == 0
    assert "bob" in capsys.readouterr().out  # left out, as somebody must still grade q1


def test_canvas_gets_its_own_columns_late_penalties_taken_off_and_what_waits_for_a_person_left_out(
    url, tmp_path, capsys
):
    rows, said = exported(url, tmp_path, capsys, "canvas")
    assert rows == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "02_tree", "04_all_reduce"],
        ["    Points Possible", "", "", "", "", "20", "20"],
        ["Lovelace, Ada", "71", "", "ada", "", "17.33", "19"],
        ["Ross, Bob", "72", "", "bob", "", "6", ""],
        ['\'=HYPERLINK("http://evil"), x', "", "", "eve", "", "0", ""],
    ]
    assert "must still grade or confirm them (1): " in said and "bob/04_all_reduce" in said
    rows, _ = exported(url, tmp_path, capsys, "canvas", "--unfinished", "--zeros")
    assert [row[-2:] for row in rows[2:]] == [["17.33", "19"], ["6", "16"], ["0", "0"], ["0", "0"]]


def test_canvas_s_own_export_comes_back_with_our_columns_filled_in_and_nothing_else_changed(url, tmp_path, capsys):
    roster = tmp_path / "canvas.csv"
    roster.write_text(
        "\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,02_tree (9001),Essay (9002),Reduce (9003),Final Score\n"
        ",,,,,,,Manual Posting,\n"
        "    Points Possible,,,,,20,10,100,(read only)\n"
        '"Lovelace, Ada",71,S1,alovelace,A,,8,5,90\n'
        '"Ross, Bob",999,S2,bob,A,1,9,12,80\n'
        '"Nobody, Known",5,S5,unknown,A,3,,4,70\n',
        encoding="utf-8",
    )
    arguments = ["canvas", "--roster", str(roster), "--column", "04_all_reduce=Reduce"]
    rows, said = exported(url, tmp_path, capsys, *arguments)
    assert rows == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "02_tree (9001)", "Reduce (9003)"],
        ["", "", "", "", "", "", "Manual Posting"],
        ["    Points Possible", "", "", "", "", "20", "100"],
        ["Lovelace, Ada", "71", "S1", "alovelace", "A", "17.33", "19"],
        ["Ross, Bob", "999", "S2", "bob", "A", "6", "12"],  # open, so what Canvas had is kept
        ["Nobody, Known", "5", "S5", "unknown", "A", "3", "4"],
    ]
    assert "100 points in Canvas, but 20 in the gradebook" in said
    assert "students that are not in" in said and "(1): eve" in said
    _, said = exported(url, tmp_path, capsys, "canvas", "--roster", str(roster), code=2)
    assert "has no column '04_all_reduce', but 02_tree (9001), Essay (9002), Reduce (9003);" in said
    assert "COLUMN='04_all_reduce=name (id)'" in said
    with pytest.raises(SystemExit):
        exported(url, tmp_path, capsys, "canvas", "--column", "Reduce")
    assert "it names the exercise, too: 03_ring=Reduce" in capsys.readouterr().err


def test_who_is_excused_in_canvas_stays_so(url, tmp_path, capsys):
    roster = tmp_path / "canvas.csv"
    roster.write_text('Student,ID,SIS Login ID,Section,02_tree\n"Lovelace, Ada",71,ada,A,EX\n"Ross, Bob",72,bob,A,\n')
    rows, said = exported(url, tmp_path, capsys, "canvas", "--roster", str(roster), "--exercise", "02_tree")
    assert [row[-1] for row in rows[1:]] == ["EX", "6"] and "ada is excused in Canvas" in said


def test_a_number_of_the_registrar_s_that_is_a_classmates_on_canvas_keeps_nobodys_grade_out(url, tmp_path, capsys):
    roster = tmp_path / "canvas.csv"
    roster.write_text(
        'Student,ID,SIS User ID,SIS Login ID,Section,02_tree\n"Lovelace, Ada",71,72,ada,A,\n"Ross, Bob",72,71,bob,A,\n',
        encoding="utf-8",
    )
    rows, _ = exported(url, tmp_path, capsys, "canvas", "--roster", str(roster), "--exercise", "02_tree")
    assert [row[-1] for row in rows[1:]] == ["17.33", "6"]


@pytest.mark.parametrize(
    ("row", "grade"),
    [
        ('"Byron, Ada",71,,ada,A,', "17.33"),  # married, or corrected on Canvas
        ('"Lovelace, Ada M.",,,ada,A,', ""),  # Canvas's own number is missing, so this is no file of Canvas's
        ('"Lovelace, Ada",71,72,71,A,', "17.33"),  # the registrar's number, and the login, are classmates' numbers
        ('"Lovelace, Ada",999,,new,A,', ""),  # of that name, but another student, who isn't in the gradebook yet
        ('"Eve, E",tom,,e,A,', ""),  # a number that is a student's id, and not the platform's number of anybody
    ],
)
def test_canvas_s_number_which_nobody_can_edit_decides_whose_a_row_is(row, grade, url, tmp_path, capsys):
    roster = tmp_path / "canvas.csv"
    roster.write_text(f'Student,ID,SIS User ID,SIS Login ID,Section,02_tree\n{row}\n"Ross, Bob",72,,bob,A,\n')
    rows, _ = exported(url, tmp_path, capsys, "canvas", "--roster", str(roster), "--exercise", "02_tree")
    assert [row[-1] for row in rows[1:]] == [grade, "6"]


@pytest.mark.parametrize(
    ("row", "grade"),
    [
        ("Lovelace Ada,71,", "17.33"),  # a site that shows the last name first
        ("Àda-Lovelace,71,", ""),
        ("ADA LOVELACE,71,", "17.33"),
        (". .,71,", ""),  # a name without a letter is another one, too
        ("Ada Lovelace,9,", ""),  # of that name alone, with another number,
        ("Ada Lovelace,,new@uni.edu", ""),  # or another address
        ("Ada Lovelace,,", "17.33"),
    ],
)
def test_on_moodle_a_row_must_not_disagree_with_the_gradebook(row, grade, url, tmp_path, capsys):
    sheet = tmp_path / "sheet.csv"
    header = "Identifier,Full name,ID number,Email address,Grade,Last modified (grade)\n"
    sheet.write_text(f"{header}Participant 1,{row},,-\nParticipant 2,Bob Ross,72,bob@uni.edu,,-\n", encoding="utf-8")
    rows, _ = exported(url, tmp_path, capsys, "worksheet", "--roster", str(sheet), "--exercise", "02_tree")
    assert [row[4] for row in rows[1:]] == [grade, "6"]


def test_a_platforms_file_in_which_no_student_has_points_is_refused(url, tmp_path, capsys):
    roster = tmp_path / "canvas.csv"
    roster.write_text('Student,ID,SIS Login ID,Section,02_tree\n"Known, Nobody",5,unknown,A,\n', encoding="utf-8")
    arguments = ["canvas", "--roster", str(roster), "--exercise", "02_tree"]
    _, said = exported(url, tmp_path, capsys, *arguments, code=2)
    assert "is a student with points (ada, bob, eve, ...): read the class list in with `make roster`" in said
    assert not (tmp_path / "out.csv").exists()


def test_moodle_gets_a_column_that_says_who_and_remarks_beside_each_grade(url, tmp_path, capsys):
    rows, _ = exported(url, tmp_path, capsys, "moodle", "--exercise", "02_tree", "--feedback")
    assert rows == [
        ["username", "02_tree", "02_tree (feedback)"],
        ["ada", "17.33", "a1 10/10, b1 7.33/10"],
        ["bob", "6", "a1 10/10, b1 0/10, late: -4"],
        ["eve", "0", "a1 0/10, b1 0/10, late: -2"],
    ]
    rows, _ = exported(url, tmp_path, capsys, "moodle", "--identifier", "email", "--student", "eve")
    assert rows == [["email", "02_tree", "04_all_reduce"], ["'@eve", "0", ""]]
    rows, said = exported(url, tmp_path, capsys, "moodle", "--identifier", "email", "--zeros")
    assert "no e-mail address (1): tom" in said and [row[0] for row in rows[1:]] == [
        "ada@uni.edu",
        "bob@uni.edu",
        "'@eve",
    ]


def test_of_students_who_share_a_number_none_gets_the_others_grade(tmp_path, capsys):
    students = STUDENTS | {"eve": STUDENTS["eve"] | {"lms_user_id": "71"}}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", QUESTIONS, POINTS, (), students)
    rows, said = exported(url, tmp_path, capsys, "moodle", "--identifier", "idnumber", "--exercise", "02_tree")
    assert [row[0] for row in rows] == ["idnumber", "72"] and "others have the same idnumber (2): ada, eve" in said


def test_moodle_s_grading_worksheet_is_filled_in_by_address_or_name(url, tmp_path, capsys):
    header = (
        "Identifier,Full name,Email address,Status,Grade,Maximum grade,Grade can be changed,"
        "Last modified (submission),Last modified (grade),Feedback comments\n"
    )
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(
        header + 'Participant 501,Somebody,ADA@uni.edu,Submitted,,20.00,Yes,"Monday, 2 March 2026, 9:00 AM",-,\n'
        "Participant 502,Bob Ross,,Submitted,3,20.00,No,-,-,kept\n"
        "Participant 503,Unknown,,,,100.00,Yes,-,-,\n",
        encoding="utf-8",
    )
    arguments = ["worksheet", "--roster", str(sheet), "--exercise", "02_tree", "--feedback"]
    rows, said = exported(url, tmp_path, capsys, *arguments)
    assert rows[0] == header.strip().split(",")
    assert [(row[0], row[4], row[-1]) for row in rows[1:]] == [
        ("Participant 501", "17.33", "a1 10/10, b1 7.33/10"),
        ("Participant 502", "3", "kept"),
        ("Participant 503", "", ""),
    ]
    assert rows[1][7] == "Monday, 2 March 2026, 9:00 AM"
    assert "the grade of bob cannot be changed" in said
    assert "02_tree: the maximum is 100.00 points in Moodle, but 20 in the gradebook" in said


def test_a_student_who_takes_anothers_name_or_address_as_name_keeps_nobodys_grade_out(tmp_path, capsys):
    students = {
        "ada": STUDENTS["ada"],
        "eve": {"first_name": "ada@uni.edu", "email": "eve@uni.edu"},
        "fay": {"first_name": "Ada", "last_name": "Lovelace", "email": "fay@uni.edu"},
    }
    marks = {(student, "02_tree"): {"a1": 10, "b1": 0} for student in students}
    url = gradebook_of(f"sqlite:///{tmp_path / 'gradebook.db'}", QUESTIONS, marks, (), students)
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(
        "Identifier,Full name,Email address,Grade,Last modified (grade)\n"
        "Participant 1,Ada Lovelace,ada@uni.edu,,-\n"
        "Participant 2,ada@uni.edu,eve@uni.edu,,-\n"
        "Participant 3,Ada Lovelace,fay@uni.edu,,-\n",
        encoding="utf-8",
    )
    rows, _ = exported(url, tmp_path, capsys, "worksheet", "--roster", str(sheet), "--exercise", "02_tree")
    assert [row[3] for row in rows[1:]] == ["10", "10", "10"]


def test_a_student_who_takes_anothers_number_gets_no_grade_and_ends_no_export(url, tmp_path, capsys):
    """On Moodle students may be able to edit their ID numbers. A worksheet may hold one group, without the other."""
    header = "Identifier,Full name,ID number,Email address,Grade,Last modified (grade)\n"
    mine, bob = "Participant 1,Ada Lovelace,71,ada@uni.edu,,-\n", "Participant 2,Bob Ross,72,bob@uni.edu,,-\n"
    stolen = "Participant 3,Eve E,71,@eve,,-\n"
    for body, grades in ((mine + bob + stolen, ["17.33", "6", ""]), (bob + stolen, ["6", ""])):
        sheet = tmp_path / "sheet.csv"
        sheet.write_text(header + body, encoding="utf-8")
        rows, said = exported(url, tmp_path, capsys, "worksheet", "--roster", str(sheet), "--exercise", "02_tree")
        assert [row[4] for row in rows[1:]] == grades
        assert (
            "of more than one student, have another name than the gradebook, or are one of several for the same (1), "
            "left as they are: Eve E" in said
        )
    hidden = "Participant 3,Zed Z,71,zed@uni.edu,,-\n"  # with another name and another address, too
    sheet.write_text(header + bob + hidden, encoding="utf-8")
    rows, _ = exported(url, tmp_path, capsys, "worksheet", "--roster", str(sheet), "--exercise", "02_tree")
    assert [row[4] for row in rows[1:]] == ["6", ""]
    sheet.write_text(header + bob + bob, encoding="utf-8")
    _, said = exported(url, tmp_path, capsys, "worksheet", "--roster", str(sheet), "--exercise", "02_tree", code=2)
    assert "is a student with points" in said


@pytest.mark.parametrize("name", ["=1+1", "+1", "-x", "@x", " =x", "\tx", "\rx", "＝x"])
def test_what_a_spreadsheet_would_run_is_made_text_and_numbers_stay_numbers(name):
    assert sheet.harmless(name) == f"'{name}"
    assert [sheet.harmless(cell) for cell in ("-1.5", "12", "Ada", "a=b", "")] == ["-1.5", "12", "Ada", "a=b", ""]


@pytest.mark.parametrize("separator", [";", ",", "\t", "|", '"', '";', "\n", "; "])
@pytest.mark.parametrize("formula", ["=1+1", "+1", "-x", "@x", "＝x"])
def test_nothing_becomes_a_formula_where_other_characters_separate_cells(separator, formula):
    assert sheet.harmless(f"a{separator}{formula}") == f"a{separator}'{formula}"
    assert sheet.harmless(f"{separator}{formula}").endswith(f"{separator}'{formula}")
    for name in ("Lee-Ann O'Brien", "Ada, Countess", "a+b@c.org; d@e.org", 'Jo "J" Hall', "a1 10/10, b1 7/10"):
        assert sheet.harmless(name) == name


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--exercise", "99_x"], "no exercise 99_x; it has 02_tree, 04_all_reduce"),
        (["--student", "zoe"], "no student zoe"),
        (["--roster", "nowhere.csv"], "nowhere.csv cannot be read"),
    ],
)
def test_a_wrong_command_is_answered_in_a_line(url, tmp_path, capsys, arguments, reason):
    _, said = exported(url, tmp_path, capsys, "canvas", *arguments, code=2)
    assert reason in said


def test_a_gradebook_that_is_not_there_is_not_made(tmp_path, capsys):
    _, said = exported(f"sqlite:///{tmp_path / 'none.db'}", tmp_path, capsys, "canvas", code=2)
    assert "there is no gradebook" in said and not (tmp_path / "none.db").exists()


@pytest.mark.slow
def test_nbgraders_own_command_exports_through_it_too(url, tmp_path):
    to = tmp_path / "grades.csv"
    command = [sys.executable, "-m", "nbgrader", "export", "--exporter=autograder.results.export.MoodleExporter"]
    command += [f"--to={to}", f"--CourseDirectory.db_url={url}", "--assignment=['04_all_reduce']"]
    command += ["--Exporter.unfinished=True"]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert to.read_text() == "username,04_all_reduce\nada,19\nbob,16\n"


def test_a_students_text_of_any_length_in_moodle_s_worksheet_is_read(tmp_path):
    place = tmp_path / "worksheet.csv"
    place.write_text(f'Identifier,Full name,Online text\nParticipant 1,Ada Lovelace,"{"x" * 200_000}"\n')
    assert [len(cell) for cell in sheet.rows(place)[1]] == [13, 12, 200_000]
