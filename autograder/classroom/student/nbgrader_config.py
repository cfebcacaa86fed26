"""nbgrader's settings for a student of the demonstration."""

import os

c = get_config()  # noqa: F821 (nbgrader provides it)

# Here all servers run as one system user, and nbgrader would submit under that user's name. Where each person has a
# system user, delete this line: nbgrader then uses their names, and the collector takes from each only what is theirs.
c.CourseDirectory.student_id = os.environ["JUPYTERHUB_USER"]
