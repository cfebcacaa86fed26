"""What the repository says of itself is so."""

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import collectives
from collectives import draw
from collectives.algorithms import ring

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_tree_names_every_folder_and_every_file_at_a_root():
    tree = CONTRIBUTING.split("## The tree")[1].split("```")[1]
    named = set(re.findall(r"[\w.-]+/?", tree))
    paths = [path.relative_to(ROOT).parts for path in tracked()]
    folders = {f"{parts[0]}/" for parts in paths if len(parts) > 1}
    rooms = {f"{parts[1]}/" for parts in paths if parts[0] in ("collectives", "autograder") and len(parts) > 2}
    modules = {path.name for path in (ROOT / "collectives").glob("*.py")} - {"__init__.py"}
    assert folders | rooms | modules <= named
    names = {part for parts in paths for part in parts}
    files = {name for name in named if re.fullmatch(r"\w[\w-]*\.(py|md|toml|txt|yml|json|cff)", name)}
    assert files <= names, "and names nothing that is not there"


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "autograder/README.md", "jobs/README.md"]
)
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page):
    here = ROOT / page
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", here.read_text()):
        there = here.parent / path if path else here
        assert there.exists(), path
        assert not anchor or anchor in anchors(there), f"{path}#{anchor}"


def anchors(page):
    """The anchors of a Markdown page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_picture_in_the_readme_is_what_draw_gives():
    assert (ROOT / "book/_static/ring.svg").read_text() == draw(ring.all_reduce(4)).still_svg() + "\n"


def test_the_installed_version_is_the_one_that_the_package_says():
    assert version("collectives") == collectives.__version__


def test_every_page_of_the_table_of_contents_exists():
    toc = yaml.safe_load((ROOT / "book/_toc.yml").read_text())
    pages = [toc["root"]] + [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    assert all((ROOT / f"book/{page}.md").exists() for page in pages)
    assert {path.stem for path in (ROOT / "book").glob("*.md")} == set(pages)


def test_every_requirement_is_a_range_that_holds_its_pin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {
        canonicalize_name(name): pin for name, pin in re.findall(r"^([^#=]+)==(\S+)$", "\n".join(lines), re.MULTILINE)
    }
    assert len(pins) == len([line for line in lines if not line.startswith("#")]), "one line pins one package"
    for each in map(Requirement, sum(project["optional-dependencies"].values(), project["dependencies"])):
        assert each.specifier.contains(pins[canonicalize_name(each.name)]), each
        assert "==" not in str(each), f"{each} is no range"
    assert pins["torch"] == "2.13.0"


@pytest.mark.parametrize("sign", ["registry.npmjs", "pypi.org", "/work/", "/root/", "/home/"])
def test_no_file_names_a_registry_or_a_place_on_somebodys_machine(sign):
    texts = [path for path in tracked() if path.suffix not in {".png", ".svg", ".woff2"} and path != Path(__file__)]
    ours = re.compile(r"/home/student|\"/home/\" \+|/proc/\S+?/root/")  # the sandbox's own home; a process's own root
    assert [path.name for path in texts if sign in ours.sub("", path.read_text(errors="ignore"))] == []
