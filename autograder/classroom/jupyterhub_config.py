"""The demonstration's hub: who may log in, and how their JupyterLab is started. README.md: what a real one changes.

`start.py` loads this file and sets CLASSROOM (the folder that everything lies in) and CLASSROOM_PORT first.
"""

import os
import sys
from hmac import compare_digest
from pathlib import Path

from jupyterhub.auth import Authenticator
from jupyterhub.spawner import SimpleLocalProcessSpawner
from traitlets import Dict, Unicode

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = Path(os.environ["CLASSROOM"])
PORT = int(os.environ["CLASSROOM_PORT"])
PRIVATE = Path(os.environ["CLASSROOM_PRIVATE"])  # of this run of the hub, gone after it

c = get_config()  # noqa: F821 (JupyterHub provides it)


class ListedPeople(Authenticator):
    """Lets in whoever is listed, with the password beside the name; for a demonstration, as it keeps them in memory."""

    passwords = Dict(Unicode(), config=True, help="{name: password}")

    async def authenticate(self, handler, data):
        """Return the name of a person whose password is right, or None."""
        known = self.passwords.get(data["username"], "")
        right = compare_digest(known.encode(), data["password"].encode())
        return data["username"] if known and right else None


class RoleSpawner(SimpleLocalProcessSpawner):
    """Starts JupyterLab in a home of one's own, with nbgrader's extensions for one's role; all as the hub's user."""

    def role(self) -> str:
        """Return "instructor" or "student"."""
        return "instructor" if self.user.name == "instructor" else "student"

    def get_env(self):
        """Return the server's environment: none of the hub's but what Jupyter and Python need."""
        settings = [HERE / self.role(), HERE / "everyone"]
        return super().get_env() | {
            "CLASSROOM": str(FOLDER),
            "JUPYTER_CONFIG_PATH": os.pathsep.join(map(str, settings)),
            "JUPYTERHUB_DEFAULT_URL": "/lab?formgrader=true" if self.role() == "instructor" else "/lab/tree/start.md",
        }


# Every person's server has a host name of its own below localhost. So a student's page is a stranger to the
# instructor's, as the browser sees it, and nbgrader's formgrader may be shown inside the instructor's JupyterLab.
c.JupyterHub.bind_url = f"http://127.0.0.1:{PORT}"
c.JupyterHub.subdomain_host = f"http://localhost:{PORT}"
c.JupyterHub.hub_port = int(os.environ["CLASSROOM_HUB_PORT"])
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{os.environ['CLASSROOM_PROXY_PORT']}"
c.ConfigurableHTTPProxy.command = [str(ROOT / "node_modules/.bin/configurable-http-proxy")]
c.ConfigurableHTTPProxy.pid_file = str(PRIVATE / "proxy.pid")

# The hub remembers nothing from one run to the next: who is logged in, which servers run.
c.JupyterHub.db_url = f"sqlite:///{PRIVATE / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(PRIVATE / "cookie_secret")

c.JupyterHub.authenticator_class = ListedPeople
c.Authenticator.allow_all = True  # all who are listed

c.JupyterHub.spawner_class = RoleSpawner
c.Spawner.cmd = [str(Path(sys.prefix, "bin", "jupyterhub-singleuser"))]
c.Spawner.args = ["--allow-root"] if os.geteuid() == 0 else []
c.Spawner.environment = {"PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")])}
c.Spawner.start_timeout = c.Spawner.http_timeout = 120  # seconds; a busy laptop takes its time
c.Spawner.env_keep = ["LANG", "LC_ALL", "TZ"]
c.SimpleLocalProcessSpawner.home_dir_template = f"{FOLDER}/homes/{{username}}"
