"""What GitHub and pre-commit read from this repository is as their schemas say, and calls what is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
SCHEMAS = {
    "github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "github-actions": sorted((GITHUB / "actions").glob("*/action.yml")),
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
}
STEPS = [
    (path, step)
    for path in [*SCHEMAS["github-workflows"], *SCHEMAS["github-actions"]]
    for job in (yaml.safe_load(path.read_text()).get("jobs") or {"": yaml.safe_load(path.read_text())["runs"]}).values()
    for step in job["steps"]
]


def against_schema(schema, *paths):
    """Hold files against a schema that the checker carries with it: no network is asked."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *paths]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_github_reads_is_as_its_schema_says(schema):
    assert SCHEMAS[schema]
    done = against_schema(schema, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_schema_refuses_a_workflow_with_a_misspelt_key(tmp_path):
    wrong = tmp_path / "ci.yml"
    wrong.write_text((GITHUB / "workflows" / "ci.yml").read_text().replace("runs-on:", "run-on:"))
    done = against_schema("github-workflows", wrong)
    assert done.returncode == 1 and "run-on" in done.stdout


def test_every_command_of_a_workflow_is_there():
    targets = set(re.findall(r"^([a-z_]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    commands = [step["run"].split() for _, step in STEPS if "run" in step]
    assert {words[1] for words in commands if words[0] == "make"} >= {"quick", "book", "nightly"}
    assert [words for words in commands if words[0] == "make" and words[1] not in targets] == []
    scripts = [word for words in commands for word in words if word.startswith((".ci/", "tools/"))]
    assert scripts and [script for script in scripts if not (ROOT / script).is_file()] == []


def test_every_action_is_ours_or_github_s_own():
    """Another's action would run with our token."""
    for path, step in STEPS:
        if "uses" in step:
            ours = step["uses"].startswith("./") and (ROOT / step["uses"] / "action.yml").is_file()
            assert ours or re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]), f"{path.name}: {step['uses']}"


def test_no_file_for_github_names_a_repository_or_its_owner():
    """A fork's workflows work on the fork."""
    texts = [path for path in GITHUB.rglob("*") if path.is_file()]
    assert [path.name for path in texts if re.search(r"github\.com/|github\.io", path.read_text())] == []


def test_pre_commit_accepts_its_hooks_and_all_of_them_run_tools_of_the_test_tier():
    path = ROOT / ".pre-commit-config.yaml"
    command = [sys.executable, "-m", "pre_commit", "validate-config", path]
    assert subprocess.run(command, capture_output=True).returncode == 0
    hooks = [hook for repo in yaml.safe_load(path.read_text())["repos"] for hook in repo["hooks"]]
    programs = {Path(hook["entry"].split()[0]).name for hook in hooks}
    assert programs == {"ruff", "codespell", "python"}
    beside = Path(sys.executable).parent
    assert [name for name in programs if not (beside / name).exists()] == []
