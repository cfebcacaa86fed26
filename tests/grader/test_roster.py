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


def test_a_student_stays_the_same_when_a_later_list_has_another_id(tmp_path, capsys):
    """A login that changes, a list without logins, and Moodle's export of grades after its participants."""
    canvas = 'Student,ID,SIS Login ID,Section\n"{}, Ada",71,{},A\n'
    moodle = "First name,Last name,Email address{}\nAda,Lovelace,ada@uni.edu{}\n"
    for number, (first, *later) in enumerate(
        (
            (
                canvas.format("Lovelace", "ada"),
                canvas.format("King", "aking"),
                'Student,ID,Section\n"King, Ada",71,A\n',
            ),
            (moodle.format("", ""), moodle.format(",ID number", ",4711")),
            (canvas.format("Lovelace", "ada"), "id,first_name,last_name,lms_user_id\n20231234,Ada,Lovelace,71\n"),
            ("id,first_name,last_name,lms_user_id\nada,Ada,Lovelace,20231234\n", canvas.format("Lovelace", "ada")),
        )
    ):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        roster.main([str(listed(tmp_path, first)), "--db", url])
        (known,) = students(url)
        for text in later:
            assert roster.main([str(listed(tmp_path, text)), "--db", url]) == 0
            assert [*students(url)] == [known] and not capsys.readouterr().err
        assert students(url)[known][3] in ("71", "4711")


def test_a_wrong_or_shared_number_moves_nobody_to_another_id(tmp_path, capsys):
    """In the instructor's own list the id decides; on Canvas a login may be given again."""
    url = f"sqlite:///{tmp_path / 'own.db'}"
    head, names = "id,first_name,last_name,lms_user_id", ("ada,Ada,L", "bob,Bob,R", "cyd,Cyd,S")
    for numbers in ((1002, 1003, 1001), (1001, 1002, 1003), (0, 0, 0)):
        rows = [head, *(f"{name},{number}" for name, number in zip(names, numbers, strict=True)), ""]
        assert roster.main([str(listed(tmp_path, "\n".join(rows))), "--db", url]) == 0
        found = {each: (first, number) for each, (first, _, _, number) in students(url).items()}
        assert found == dict(
            zip(("ada", "bob", "cyd"), zip(("Ada", "Bob", "Cyd"), map(str, numbers), strict=True), strict=True)
        )
    rows = [head, *(f"{name},0" for name in names), "dan,Dan,T,0", ""]
    assert roster.main([str(listed(tmp_path, "\n".join(rows))), "--db", url]) == 0
    assert {*students(url)} == {"ada", "bob", "cyd", "dan"}
    url, canvas = f"sqlite:///{tmp_path / 'canvas.db'}", "Student,ID,SIS Login ID,Section\n"
    roster.main([str(listed(tmp_path, canvas + '"Lovelace, Ada",71,al,A\n')), "--db", url])
    capsys.readouterr()
    again = canvas + '"Khwarizmi, Al",80,al,A\n"King, Ada",71,aking,A\n'
    assert roster.main([str(listed(tmp_path, again)), "--db", url]) == 0
    assert students(url) == {"al": ("Ada", "King", None, "71")}
    assert "left as they were (1): al" in capsys.readouterr().err


@pytest.mark.parametrize("numbers", [("", "1001", "1003"), ("1002", "1003", "1001")])
def test_canvas_s_list_corrects_numbers_that_were_typed_for_the_wrong_students(numbers, tmp_path, capsys):
    url, ids = f"sqlite:///{tmp_path / 'gradebook.db'}", ("ada", "bob", "cyd")
    own = zip(ids, ("Ada,Lovelace", "Bob,Ross", "Cyd,Smith"), numbers, strict=True)
    own = "".join(f"{','.join(row)}\n" for row in own)
    roster.main([str(listed(tmp_path, f"id,first_name,last_name,lms_user_id\n{own}")), "--db", url])
    canvas = "Student,ID,SIS Login ID,Section\n" + "".join(
        f'"{name}",{1001 + place},{each},A\n'
        for place, (each, name) in enumerate(zip(ids, ("Lovelace, Ada", "Ross, Bob", "Smith, Cyd"), strict=True))
    )
    assert roster.main([str(listed(tmp_path, canvas)), "--db", url]) == 0
    assert not capsys.readouterr().err
    assert [students(url)[each][1:] for each in ids] == [
        ("Lovelace", None, "1001"),
        ("Ross", None, "1002"),
        ("Smith", None, "1003"),
    ]


def test_a_number_that_is_right_stays_whatever_else_a_row_says(tmp_path, capsys):
    url, head = f"sqlite:///{tmp_path / 'gradebook.db'}", "id,first_name,last_name,lms_user_id\n"
    roster.main([str(listed(tmp_path, f"{head}ada,Ada,Lovelace,71\nbob,Bob,Ross,72\n")), "--db", url])
    canvas = 'Student,ID,SIS Login ID,Section\n"Ross, Robert",72,BOB,A\n'
    assert roster.main([str(listed(tmp_path, canvas)), "--db", url]) == 0
    assert students(url)["bob"] == ("Robert", "Ross", None, "72")
    assert roster.main([str(listed(tmp_path, f"{head}bob,Bob,Ross,71\n")), "--db", url]) == 0
    assert students(url)["ada"][3] == "71"  # the instructor's own list takes no number from others


@pytest.mark.parametrize("numbers", [("72", "71"), ("72", ""), ("", "71")])
@pytest.mark.parametrize("order", [1, -1])
def test_numbers_of_a_list_without_names_are_corrected_by_the_logins_of_canvas_s(numbers, order, tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    roster.main([str(listed(tmp_path, "id,lms_user_id\nada,{}\nbob,{}\n".format(*numbers))), "--db", url])
    capsys.readouterr()
    rows = ['"Lovelace, Ada",71,ada,A', '"Ross, Bob",72,bob,A'][::order]
    canvas = "\n".join(["Student,ID,SIS Login ID,Section", *rows, ""])
    assert roster.main([str(listed(tmp_path, canvas)), "--db", url]) == 0
    assert students(url) == {"ada": ("Ada", "Lovelace", None, "71"), "bob": ("Bob", "Ross", None, "72")}
    assert not capsys.readouterr().err


def test_a_number_typed_for_one_with_another_name_on_canvas_goes_to_its_owner(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    own = "id,first_name,last_name,lms_user_id\nada,Ada,Lovelace,\nbob,Bob,Ross,71\n"
    roster.main([str(listed(tmp_path, own)), "--db", url])
    canvas = 'Student,ID,SIS Login ID,Section\n"Ross, Robert",72,bob,A\n"Lovelace, Ada",71,ada,A\n'
    assert roster.main([str(listed(tmp_path, canvas)), "--db", url]) == 0
    assert [students(url)[each][3] for each in ("ada", "bob")] == ["71", "72"]
    assert not capsys.readouterr().err


def test_a_new_student_with_the_name_of_one_whom_the_list_lacks_is_told(tmp_path, capsys):
    url, head = f"sqlite:///{tmp_path / 'gradebook.db'}", "First name,Last name,Email address\n"
    for address in ("ada@uni.edu", "ada.king@uni.edu"):
        roster.main([str(listed(tmp_path, f"{head}Ada,Lovelace,{address}\n")), "--db", url])
    said = capsys.readouterr().out
    assert "ada.king@uni.edu is new, and has the name of ada@uni.edu, who isn't in this list" in said


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


def test_tex_in_a_students_name_is_none_where_formgrader_shows_it_and_the_name_still_finds_its_hand_in(tmp_path):
    """MathJax typesets the page's head before the rubrics, so a name's `\\def` would change what they say."""
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    name = r"$\def\le{\ge}$ \(x\) `x` Evil"
    roster.main([str(listed(tmp_path, f'Student,ID,Section\n"{name}, Eve",72,A\n')), "--db", url])
    (first, last, *_), *_ = students(url).values()
    assert "Evil" in last and not set(first + last) & set("$\\`")
    assert roster.key(f"{name}Eve") == roster.key(f"{last}{first}")
