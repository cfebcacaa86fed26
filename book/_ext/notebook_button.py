"""Menus that offer a chapter's notebook (03_ring.ipynb beside 03_ring.md) and its exercise.

Both are always in the download menu. If _config.yml sets `repository_url`, to a public repository, a second menu opens
them on Binder, on Colab (GitHub only), and on a hub if `hub_url` names one with nbgitpuller. The theme has such menus
only for books whose sources are notebooks. Ours are text files, each with a notebook beside it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote, urlencode

from sphinx.application import Sphinx

BINDER = "https://mybinder.org/v2"
COLAB = "https://colab.research.google.com/github"
GITHUB = "https://github.com/"


def launches(path: str, repository_url: str, branch: str, hub_url: str) -> dict[str, str]:
    """Return where to open a notebook of the repository: {service: address}; empty without `repository_url`."""
    if not repository_url:
        return {}
    repository_url = repository_url.rstrip("/").removesuffix(".git")
    name = repository_url.removeprefix(GITHUB)
    on_github = repository_url.startswith(GITHUB)
    source = f"gh/{name}" if on_github else f"git/{quote(repository_url, safe='')}"
    services = {"Binder": f"{BINDER}/{source}/{branch}?urlpath=lab/tree/{path}"}
    if on_github:
        services["Colab"] = f"{COLAB}/{name}/blob/{branch}/{path}"
    if hub_url:
        place = f"lab/tree/{repository_url.rpartition('/')[2]}/{path}"
        query = urlencode({"repo": repository_url, "branch": branch, "urlpath": place}, safe="/")
        services["the hub"] = f"{hub_url.rstrip('/')}/hub/user-redirect/git-pull?{query}"
    return services


def notebooks_of(app: Sphinx, pagename: str) -> dict[str, str]:
    """Return a page's notebooks: {"Notebook" or "Exercise": path in the repository}."""
    root = Path(app.srcdir).parent
    paths = {"Notebook": f"book/{pagename}.ipynb", "Exercise": f"exercises/{pagename}/{pagename}.ipynb"}
    return {what: path for what, path in paths.items() if (root / path).exists()}


def offer(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Copy a page's notebooks into the site and add them to the theme's menus."""
    here = notebooks_of(app, pagename)
    buttons = {each["label"]: each for each in context["header_buttons"]}
    for place, (what, path) in enumerate(here.items()):
        target = Path(app.outdir, "_sources", path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(app.srcdir).parent / path, target)
        link = link_to(context["pathto"](f"_sources/{path}", 1), f"{what} (.ipynb)", "download")
        buttons["download-buttons"]["buttons"].insert(place, link)
    config = app.config
    opened = [
        link_to(url, f"{what} on {service}", "share")
        for what, path in here.items()
        for service, url in launches(path, config.repository_url, config.repository_branch, config.hub_url).items()
    ]
    if opened:
        group = {"type": "group", "tooltip": "Open to run", "icon": "fas fa-rocket", "label": "launch-buttons"}
        context["header_buttons"].insert(0, group | {"buttons": opened})


def link_to(url: str, text: str, icon: str) -> dict[str, str]:
    """Return a menu entry in the form that the theme's templates expect."""
    return {"type": "link", "url": url, "text": text, "icon": f"fas fa-{icon}", "tooltip": text}


def setup(app: Sphinx) -> dict:
    """Run after the theme (priority 501) has built its menus."""
    app.add_config_value("repository_url", "", "html")
    app.add_config_value("repository_branch", "main", "html")
    app.add_config_value("hub_url", "", "html")
    app.connect("html-page-context", offer, priority=502)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
