"""nbgrader, for the instructor of the demonstration: where the course is, and who grades."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

c = get_config()  # noqa: F821 (nbgrader provides it)
c.CourseDirectory.root = os.path.join(os.environ["CLASSROOM"], "homes", "instructor", "course")
c.ExchangeCollect.check_owner = False  # one system user owns all submissions here, so their names count

from autograder import configure  # noqa: E402
from autograder.book import SETTINGS  # noqa: E402

configure(c, **SETTINGS)  # submissions run in the sandbox and are judged outside it
