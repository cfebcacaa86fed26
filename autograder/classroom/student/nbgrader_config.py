"""nbgrader, for a student of the demonstration."""

import os

c = get_config()  # noqa: F821 (nbgrader provides it)

# All servers run as one system user here, whose name nbgrader would submit under. Where each person has a system user
# of their own this line goes: nbgrader takes their names then, and checks who owns a submission when it collects it.
c.CourseDirectory.student_id = os.environ["JUPYTERHUB_USER"]
