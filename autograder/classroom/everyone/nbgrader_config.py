"""nbgrader's settings for everyone in the demonstration: the course and the exchange."""

import os

c = get_config()  # noqa: F821 (nbgrader provides it)
c.CourseDirectory.course_id = "collectives"
c.Exchange.root = os.path.join(os.environ["CLASSROOM"], "exchange")
