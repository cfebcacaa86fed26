"""The demonstration hub: who may log in, and how it starts their JupyterLab. README.md lists what a real hub changes.

`start.py` first sets CLASSROOM, the folder that holds everything, and the other CLASSROOM_ variables used below.
"""

import os
import sys
from hmac import compare_digest
from pathlib import Path

from jupyterhub.auth import Authenticator
from jupyterhub.spawner import SimpleLocalProcessSpawner
from traitlets import Dict, Set, Unicode, default

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = Path(os.environ["CLASSROOM"])
PORT = int(os.environ["CLASSROOM_PORT"])
PRIVATE = Path(os.environ["CLASSROOM_PRIVATE"])  # for this run of the hub only; deleted after it

c = get_config()  # noqa: F821 (JupyterHub provides it)


class ListedPeople(Authenticator):
    """An authenticator for demonstrations: it knows each person's password from a list that it keeps in memory."""

    passwords = Dict(Unicode(), config=True, help="{name: password}")

    async def authenticate(self, handler, data):
        """Return the person's name if the password is right, else None."""
        known = self.passwords.get(data["username"], "")
        right = compare_digest(known.encode(), data["password"].encode())
        return data["username"] if known and right else None


class RoleSpawner(SimpleLocalProcessSpawner):
    """A spawner that gives each person a home and nbgrader's extensions for their role; all run as the hub's user."""

    instructors = Set(Unicode(), {"instructor"}, config=True, help="who gets formgrader; all others are students")

    def role(self) -> str:
        """Return "instructor" or "student"."""
        return "instructor" if self.user.name in self.instructors else "student"

    @default("home_dir")
    def _home(self):  # instructors share the course's home: formgrader serves only a course below its own folder
        return f"{FOLDER}/homes/{'instructor' if self.role() == 'instructor' else self.user.name}"

    def get_env(self):
        """Return the server's environment: of the hub's variables, only those that Jupyter and Python need."""
        settings = [HERE / self.role(), HERE / "everyone"]
        start = "/lab/tree/start.md" if Path(self.home_dir, "start.md").exists() else "/lab"
        return super().get_env() | {
            "CLASSROOM": str(FOLDER),
            "JUPYTER_CONFIG_PATH": os.pathsep.join(map(str, settings)),
            "JUPYTERHUB_DEFAULT_URL": "/lab?formgrader=true" if self.role() == "instructor" else start,
        }


# Every person's server has its own host name below localhost. The browser therefore keeps a student's page apart from
# the instructor's, and the instructor's JupyterLab can show nbgrader's formgrader in a frame.
c.JupyterHub.bind_url = f"http://127.0.0.1:{PORT}"
c.JupyterHub.subdomain_host = f"http://localhost:{PORT}"
c.JupyterHub.hub_port = int(os.environ["CLASSROOM_HUB_PORT"])
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{os.environ['CLASSROOM_PROXY_PORT']}"
c.ConfigurableHTTPProxy.command = [str(ROOT / "node_modules/.bin/configurable-http-proxy")]
c.ConfigurableHTTPProxy.pid_file = str(PRIVATE / "proxy.pid")

# The hub forgets between runs who is logged in and which servers run.
c.JupyterHub.db_url = f"sqlite:///{PRIVATE / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(PRIVATE / "cookie_secret")

c.JupyterHub.authenticator_class = ListedPeople
c.ListedPeople.allow_all = True  # everyone on the list

c.JupyterHub.spawner_class = RoleSpawner
c.Spawner.cmd = [str(Path(sys.prefix, "bin", "jupyterhub-singleuser"))]
c.Spawner.args = ["--allow-root"] if os.geteuid() == 0 else []
c.Spawner.environment = {"PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")])}
c.Spawner.start_timeout = c.Spawner.http_timeout = 120  # seconds; a busy laptop is slow
c.Spawner.env_keep = ["LANG", "LC_ALL", "TZ"]

# Sign in from a learning platform instead, as in lti13.py.
if "CLASSROOM_LTI" in os.environ:
    load_subconfig(str(Path(os.environ["CLASSROOM_LTI"]).resolve(strict=True)))  # noqa: F821 (traitlets provides it)
