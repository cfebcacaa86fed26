"""The class list: Canvas's, Moodle's and nbgrader's own files fill the gradebook, and a wrong one changes nothing."""

import nbformat
import pytest
from nbconvert.exporters import HTMLExporter
from nbgrader.api import Gradebook
from nbgrader.server_extensions.formgrader import handlers

from autograder.submissions import roster

CANVAS = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,02_tree (9001)
    Points Possible,,,,,20
"Lovelace, Ada",71,S1,ada@uni.edu,A,
"Ross, Bob",72,,bob,A,
"Student, Test",99,,,A,
"""
PARTICIPANTS = """First name;Last name;ID number;Email address
Ada;Lovelace;4711;ada@uni.edu
José;Ñandú;;jose@uni.edu
"""
WORKSHEET = """Identifier,Full name,Email address,Status,Grade
Participant 501,Ada King Lovelace,ada@uni.edu,,
"""
OWN = "id,first_name,last_name,email,lms_user_id\nada,Ada,Lovelace,ada@uni.edu,71\nbob\n"


def listed(tmp_path, text):
    path = tmp_path / "class.csv"
    path.write_text(text, encoding="utf-8")
    return path


def students(url):
    with Gradebook(url) as gradebook:
        found = gradebook.students
        return {each.id: (each.first_name, each.last_name, each.email, each.lms_user_id) for each in found}


@pytest.mark.parametrize(
    "text, people",
    [
        (CANVAS, {"ada@uni.edu": ("Ada", "Lovelace", "ada@uni.edu", "71"), "bob": ("Bob", "Ross", None, "72")}),
        (
            PARTICIPANTS,
            {
                "4711": ("Ada", "Lovelace", "ada@uni.edu", "4711"),
                "jose@uni.edu": ("José", "Ñandú", "jose@uni.edu", None),
            },
        ),
        (WORKSHEET, {"ada@uni.edu": ("Ada King", "Lovelace", "ada@uni.edu", None)}),
        (OWN, {"ada": ("Ada", "Lovelace", "ada@uni.edu", "71"), "bob": (None,) * 4}),
    ],
    ids=["canvas", "moodle's participants", "moodle's worksheet", "nbgrader's"],
)
def test_a_platforms_file_becomes_the_gradebooks_class_list(text, people, tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'new' / 'gradebook.db'}"
    assert roster.main([str(listed(tmp_path, text)), "--db", url]) == 0
    assert students(url) == people
    assert f"{len(people)} of them new" in capsys.readouterr().out


def test_a_second_list_changes_what_it_says_keeps_the_rest_and_names_whom_it_lacks(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    roster.main([str(listed(tmp_path, OWN)), "--db", url])
    assert roster.main([str(listed(tmp_path, "id,email\nada,king@uni.edu\neve,\n")), "--db", url]) == 0
    assert students(url)["ada"] == ("Ada", "Lovelace", "king@uni.edu", "71")
    said = capsys.readouterr().out
    assert "not in this list (1): bob" in said and "has 2 students, 1 of them new" in said
    roster.main(
        [str(listed(tmp_path, "id,first_name,email\nADA,Augusta,king@uni.edu\n")), "--db", url]
    )  # another spelling of hers
    assert students(url)["ada"] == ("Augusta", "Lovelace", "king@uni.edu", "71") and "ADA" not in students(url)
    capsys.readouterr()
    roster.main([str(listed(tmp_path, "id,first_name,last_name\nAda,Grace,Hopper\nweiß,,\nweiss,,\n")), "--db", url])
    assert "left as they were (1): ada" in capsys.readouterr().err  # of somebody who is called so, too
    assert students(url)["ada"][:2] == ("Augusta", "Lovelace") and {"weiß", "weiss"} <= students(url).keys()


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "is empty"),
        ("name\nAda\n", "has the columns name; a class list has Canvas's"),
        ("id\n../ada\n", "row 2 gives the id"),
        ("id\nada\nada\n", "rows 2, 3 give the same id, ada"),
        ("id\nada\nAda\n", "rows 2, 3 give the same id, ada"),
        ("First name,Email address\nAda,\n", "gives the id ''"),
        ("id\n", "holds no student"),
    ],
)
def test_a_wrong_list_is_refused_in_a_line_and_makes_no_gradebook(text, reason, tmp_path, capsys):
    place = tmp_path / "gradebook.db"
    assert roster.main([str(listed(tmp_path, text)), "--db", f"sqlite:///{place}"]) == 2
    assert reason in capsys.readouterr().err and not place.exists()


def test_a_row_without_a_usable_id_is_left_out_with_a_line_and_the_others_are_read(tmp_path, capsys):
    """On Moodle students can edit their addresses, which may be all that a row has to know one by."""
    url, text = (
        f"sqlite:///{tmp_path / 'gradebook.db'}",
        "First name,Email address\nAda,ada@uni.edu\nEve,eve+1@uni.edu\n",
    )
    assert roster.main([str(listed(tmp_path, text)), "--db", url]) == 0
    said = capsys.readouterr()
    assert "left out: row 3 gives the id 'eve+1@uni.edu'" in said.err and "has 1 student, 1 of them new" in said.out
    assert [*students(url)] == ["ada@uni.edu"]


def test_who_takes_anothers_number_stops_no_list_and_becomes_nobody_else(tmp_path, capsys):
    """On Moodle students may be able to edit their ID numbers, too."""
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    both = PARTICIPANTS + "Eve;E;4711;eve@uni.edu\n"
    assert roster.main([str(listed(tmp_path, both)), "--db", url]) == 0
    assert "left out: rows 2, 4 give the same id, 4711." in capsys.readouterr().err
    assert [*students(url)] == ["jose@uni.edu"]
    roster.main([str(listed(tmp_path, PARTICIPANTS)), "--db", url])
    known = students(url)
    alone = "First name;Last name;ID number;Email address\nEve;E;4711;eve@uni.edu\n"
    assert roster.main([str(listed(tmp_path, alone)), "--db", url]) == 0
    assert "left as they were (1): 4711. The gradebook has another name for them" in capsys.readouterr().err
    assert students(url) == known


def test_canvas_s_list_and_the_instructors_own_change_names_as_nobody_else_can_take_an_id(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    for text, last in (
        ('Student,ID,SIS Login ID,Section\n"Lovelace, Ada",71,ada,A\n', "Lovelace"),
        ('Student,ID,SIS Login ID,Section\n"Byron, Ada",71,ada,A\n', "Byron"),
        ("id,first_name,last_name\nada,Ada,King\n", "King"),
    ):
        assert roster.main([str(listed(tmp_path, text)), "--db", url]) == 0
        assert students(url)["ada"][1] == last and not capsys.readouterr().err


def test_a_file_that_is_no_text_or_not_there_is_refused_in_a_line(tmp_path, capsys):
    (tmp_path / "class.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "class.csv", tmp_path / "none.csv"):
        assert roster.main([str(path), "--db", "sqlite://"]) == 2
        assert "cannot be read as UTF-8 text" in capsys.readouterr().err


def test_no_script_in_a_students_name_runs_where_formgrader_shows_it(tmp_path, browser):
    """Students can edit their names on Canvas and Moodle, and formgrader's page of a submission escapes none."""
    url, script = f"sqlite:///{tmp_path / 'gradebook.db'}", "<img src=x onerror='document.title = 1'>"
    roster.main([str(listed(tmp_path, f'Student,ID,Section\n"{script}, Eve {script}",71,A\n')), "--db", url])
    (first, last, *_), *_ = students(url).values()
    about = {"first_name": first, "last_name": last, "index": 0, "total": 1, "base_url": "", "notebook_id": "ps1"}
    exporter = HTMLExporter(template_name="formgrade", extra_template_basedirs=[handlers.template_path])
    shown, _ = exporter.from_notebook_node(nbformat.v4.new_notebook(), resources=about)
    place = tmp_path / "page.html"
    place.write_text(shown, encoding="utf-8")
    page = browser.new_page()
    page.route("**/*", lambda route: route.continue_() if route.request.url == place.as_uri() else route.abort())
    page.goto(place.as_uri())
    assert page.title() == "ps1" and "Eve" in page.inner_text("nav") and page.locator("nav img").count() == 0
    page.close()
