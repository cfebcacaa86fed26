"""What the repository says of itself is so."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_tree_in_the_readme_names_every_module_and_folder():
    tree = README.split("## The tree")[1].split("```")[1]
    named = re.findall(r"^ *(\S+)", tree, flags=re.MULTILINE)
    parts = ROOT / "collectives", ROOT / "collectives" / "training"
    modules = [path.name for part in parts for path in part.glob("*.py") if path.name != "__init__.py"]
    folders = {f"{path.relative_to(ROOT).parts[0]}/" for path in tracked() if len(path.relative_to(ROOT).parts) > 1}
    assert set(modules) | (folders - {".ci/"}) <= set(named)
    files = [name for name in named if name.endswith(".py") or not name.endswith("/")]
    assert set(files) <= {path.name for path in tracked()}, "and names nothing that is not there"


def test_every_link_of_the_readme_leads_to_a_file():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


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
