"""nbgrader's settings for this course. Run nbgrader in this folder (`cd autograder`), so that it finds this file."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GRADE = ROOT / "_build" / "grade"
GRADE.mkdir(parents=True, exist_ok=True)
sys.path.insert(0, str(ROOT))

from autograder import configure  # noqa: E402
from autograder.book import SETTINGS  # noqa: E402

# nbgrader runs `alembic` by its bare name: let it find the one beside this Python, even without an activated .venv.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", "")])

c = get_config()  # noqa: F821 (nbgrader provides it)

# `make exercises` writes the source notebooks from solutions/, answers and hidden tests included.
c.CourseDirectory.course_id = "collectives"
c.CourseDirectory.root = str(ROOT)
c.CourseDirectory.source_directory = "_build/source"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.submitted_directory = "_build/grade/submitted"
c.CourseDirectory.autograded_directory = "_build/grade/autograded"
c.CourseDirectory.feedback_directory = "_build/grade/feedback"
c.CourseDirectory.db_url = f"sqlite:///{GRADE / 'gradebook.db'}"

configure(c, **SETTINGS)
c.Judge.verdicts = "_build/grade/judged"
# This repository's hidden tests are public, so a page may show how to run one again; see `release.source`.
c.InertPage.show_replay = True
