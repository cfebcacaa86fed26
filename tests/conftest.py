"""The built book, served on this machine, and a real Chromium to open it with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import served  # of tools/

ROOT = Path(__file__).resolve().parents[1]
# Node lies beside Python where `make` has put it; a test that starts `node` finds it there.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@pytest.fixture(scope="session")
def built_book() -> Path:
    """The folder of the built book, built now if it is missing or older than its sources."""
    command = [sys.executable, ROOT / "tools" / "book.py", "--if-stale"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        pytest.fail(f"the book does not build:\n{done.stdout}", pytrace=False)
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def site(built_book) -> str:
    """The address under which the built book is served, on this machine only."""
    with served.serving(built_book) as address:
        yield address


# One browser a module, not a session: while Playwright runs, no other test could start an event loop.
@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, the system's own."""
    if served.chromium() is None:
        pytest.fail("Chromium is missing: run `make test`, or apt-get install chromium", pytrace=False)
    with served.browsing() as chromium:
        yield chromium


@pytest.fixture
def page_head() -> str:
    """What stands in the head of the pages that `open_page` opens; a module overrides it by a fixture of that name."""
    return "<meta charset=utf-8><title>figures</title>"


@pytest.fixture
def open_page(browser, tmp_path, page_head):
    """A function that opens figures as a page, and fails at the end if the page complained or asked for anything."""
    heard, contexts = [], []

    def opened(*figures, **settings):
        path = tmp_path / "page.html"
        body = "".join(figure.html() for figure in figures)
        path.write_text(f"<!doctype html><html lang=en>{page_head}<body>{body}", encoding="utf-8")
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: heard.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        if settings.get("java_script_enabled", True):  # a calculator is there one task after the page
            page.wait_for_function("!document.querySelector('collective-calculator:not([data-ready])')")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert heard == []


# Of the answers that need real ranks, or seconds of a processor: in these files one in so many is tried.
ON_RANKS = {"test_ch03_ring", "test_ch09_zero", "test_ch13_tensor_parallel"}
SLOWEST = {  # minutes, if all are tried
    "test_ch10_fsdp",
    "test_ch12_activations",
    "test_ch14_context_parallel",
    "test_ch17_mesh",
}
SLOW = {
    "test_ch04_all_reduce",
    "test_ch08_data_parallel",
    "test_ch11_fewer_bits",
    "test_ch18_gpus",
    "test_ch20_plan",
}
AT_NIGHT = (  # not one of them is tried: a run that is killed also starts again
    ("compiled_layers_train_the_same_model", "test_train"),
    ("starts_again_goes_on_from_its_checkpoint", "test_train"),
)
ONE_IN = (
    ("wrong_answer_is_refused", 16, {"test_ch19_failures"}),
    ("right_answer_is_accepted", 12, {"test_ch19_failures"}),
    ("is_killed_at_random_steps", 2, {"test_train"}),
    ("wrong_answer_is_refused", 6, ON_RANKS | SLOWEST),
    ("wrong_answer_is_refused", 4, SLOW),
    ("right_answer_is_accepted", 4, SLOWEST | SLOW),
    ("right_answer_is_accepted", 3, ON_RANKS | {"test_ch02_tree", "test_ch06_all_to_all", "test_ch15_experts"}),
    ("solution_with_one_change_is_told", 3, {"test_words"}),
    ("each_wrong_cut_is_told", 4, {"test_words"}),
)


# What a test needs beyond Python is marked by the fixture that gives it, or by its file (`pytestmark`).
NEEDS = {
    "browser": {"browser", "open_page", "site"},
    "book": {"built_book", "site"},
    "slurm": {"slurm"},
    "sandbox": {"graded"},
}
HEAVY = {*NEEDS, "ranks", "sandbox", "postgres", "slow"}


def pytest_collection_modifyitems(config, items):
    """Mark what each test needs, choose the quick ones, and leave out what `make test` only samples."""
    for item in items:
        for marker, fixtures in NEEDS.items():
            if fixtures & {*item.fixturenames}:
                item.add_marker(marker)
    for item in quick(items):
        item.add_marker("quick")
    if not (os.environ.get("MUTANTS") == "all" or os.environ.get("RECORD_MUTANTS")):
        left_out = {*unsampled(items)}
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def quick(items):
    """The first case of every test function that needs nothing beyond Python: `make quick`."""
    functions = set()
    for item in items:
        function = item.path, item.originalname
        if function not in functions and not any(item.get_closest_marker(marker) for marker in HEAVY):
            functions.add(function)
            yield item


def unsampled(items):
    """The answers on real ranks, and runs of jobs, that `make test` does not try; `make mutants` tries all of them.

    What each of them gets is in book/data/mutants.json, which is recorded from a run of all.
    """
    for test, file in AT_NIGHT:
        yield from (item for item in items if test in item.name and item.path.stem == file)
    for test, one_in, files in ONE_IN:
        for file in files:
            answers = [item for item in items if test in item.name and item.path.stem == file]
            yield from (item for number, item in enumerate(answers) if number % one_in)
