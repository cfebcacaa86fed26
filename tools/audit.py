"""Audits the built book and prints the scores: `make audit`.

Every page goes through Lighthouse (as a phone and as a desktop), through axe-core (narrow and wide, light and dark)
and over the scales; links and words are checked. What misses its mark is said at the end, and the exit status is 1.

Lighthouse imitates a phone by slowing this machine down. How much it must be slowed depends on how fast it is: a fast
desktop four times, a slow one less (Lighthouse's own guide says so), so the first run measures the machine.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import links
from fingerprint import ROOT
from playwright.sync_api import Browser, Page
from served import CHROMIUM_FLAGS, browsing, chromium, serving

SITE = ROOT / "_build" / "html"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
LIGHTHOUSE = ROOT / "node_modules" / "lighthouse" / "cli" / "index.js"
PRESETS = ("mobile", "desktop")
CATEGORIES = ("performance", "accessibility", "best-practices")
LEAST_SCORE = 95
MOST_BYTES = 500_000  # of a page, compressed, before images
MOST_SCRIPT_BYTES = 30_000  # of its figures' own script, compressed
MODES = ("light", "dark")
SCREENS = {"phone": {"width": 390, "height": 844}, "wide": {"width": 1280, "height": 800}}

FAST_DESKTOP, ITS_SLOWDOWN = 1750, 4  # Lighthouse's benchmark index of a fast desktop, and what makes a phone of it
TRIES = 3  # a miss may be this machine's: then the median counts

LOADED = """() => ({
    bytes: [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .filter((entry) => !["img", "image"].includes(entry.initiatorType) && !entry.name.startsWith("data:"))
        .reduce((sum, entry) => sum + entry.encodedBodySize, 0),
    script: [...document.querySelectorAll("article script:not([src])")]
        .filter((node) => !node.type.includes("json")).map((node) => node.textContent).join(""),
})"""


def main() -> int:
    """Audit the built book, or some of its pages; return the exit status."""
    parser = argparse.ArgumentParser(description="Audit the built book.")
    parser.add_argument("pages", nargs="*", help="only these, such as 03_ring")
    names = parser.parse_args().pages or sorted(path.stem for path in SITE.glob("*.html"))
    if not names:
        print(f"audit: no built book at {SITE}: run `make book`")
        return 1
    broken, _ = links.check(SITE)
    faults = [f"link: {line}" for line in broken] + misspelt()
    with serving(SITE) as address:
        multiplier = slowdown(f"{address}/{names[0]}.html")
        print(f"audit: Lighthouse makes a phone of this machine by slowing it down {multiplier:.1f} times")
        print(f"{'page':<22} {'mobile':>11} {'desktop':>12} {'axe':>4} {'kB':>5} {'script':>6}")
        with browsing() as browser:
            for name in names:
                faults += audit(browser, address, name, multiplier)
    print("\n".join(f"audit: MISSED: {fault}" for fault in faults) or "audit: all marks met")
    return 1 if faults else 0


def audit(browser: Browser, address: str, name: str, multiplier: float) -> list[str]:
    """Audit one page, print its row, and return what it misses."""
    url = f"{address}/{name}.html"
    found = [each for mode in MODES for screen in SCREENS for each in violations(browser, url, mode, screen)]
    page = browser.new_page()
    page.goto(url)
    size, script = weight(page)
    page.close()
    scores = {preset: lighthouse(url, preset, multiplier) for preset in PRESETS}
    row = ["/".join(f"{scores[preset][category]:.0f}" for category in CATEGORIES) for preset in PRESETS]
    print(f"{name:<22} {row[0]:>11} {row[1]:>12} {len(found):>4} {size / 1e3:>5.0f} {script / 1e3:>6.1f}", flush=True)
    low = [
        f"{name}: {category}, {preset}: {score:.0f}"
        for preset, of_preset in scores.items()
        for category, score in of_preset.items()
        if score < LEAST_SCORE
    ]
    return low + [f"{name}: {each}" for each in found + too_heavy(size, script)]


def violations(browser: Browser, url: str, mode: str, screen: str) -> list[str]:
    """Return what axe-core finds wrong on a page, a line for each rule, with the first place."""
    page = browser.new_page(viewport=SCREENS[screen], color_scheme=mode)
    page.goto(url)
    run = run_axe(page)
    page.close()
    return [f"axe, {mode}, {screen}: {rule}" for rule in run]


def run_axe(page: Page) -> list[str]:
    """Return the rules of axe-core that an open page breaks, each with the first place."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{each['id']} ({len(each['nodes'])}): {each['nodes'][0]['html'][:120]}" for each in found]


def weight(page: Page) -> tuple[int, int]:
    """Return the bytes that an open page loaded before images, and those of its figures' own script, compressed."""
    page.wait_for_load_state("networkidle")
    loaded = page.evaluate(LOADED)
    return loaded["bytes"], len(gzip.compress(loaded["script"].encode())) if loaded["script"] else 0


def too_heavy(size: int, script: int) -> list[str]:
    """Say what a page weighs too much."""
    faults = [f"weighs {size / 1e3:.0f} kB, over {MOST_BYTES / 1e3:.0f}"] if size > MOST_BYTES else []
    return faults + ([f"its script weighs {script / 1e3:.1f} kB"] if script > MOST_SCRIPT_BYTES else [])


def misspelt() -> list[str]:
    """Return what codespell finds in all prose and comments; what it reads is in pyproject.toml."""
    command = [sys.executable, "-m", "codespell_lib", *tracked()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [f"spelling: {line}" for line in done.stdout.splitlines() + done.stderr.splitlines()]


def tracked() -> list[str]:
    """Return the files of the repository, so that codespell reads nothing that was only built."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def slowdown(url: str) -> float:
    """Return how much to slow this machine down to imitate a phone."""
    index = report(url, "desktop", 1)["environment"]["benchmarkIndex"]
    return min(max(index / FAST_DESKTOP * ITS_SLOWDOWN, 1), ITS_SLOWDOWN)


def lighthouse(url: str, preset: str, multiplier: float) -> dict[str, float]:
    """Return a page's scores out of 100; of a page that misses, the medians of some tries."""
    tries: list[dict[str, float]] = []
    while len(tries) < TRIES:
        categories = report(url, preset, multiplier)["categories"]
        tries.append({category: 100 * categories[category]["score"] for category in CATEGORIES})
        if len(tries) == 1 and min(tries[0].values()) >= LEAST_SCORE:
            break
    return {category: statistics.median(each[category] for each in tries) for category in CATEGORIES}


def report(url: str, preset: str, multiplier: float) -> dict:
    """Return Lighthouse's report on a page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        command = ["node", LIGHTHOUSE, url, "--quiet", "--output=json", f"--output-path={path}"]
        command += [
            f"--only-categories={','.join(CATEGORIES)}",
            f"--chrome-flags=--headless=new {' '.join(CHROMIUM_FLAGS)}",
        ]
        if preset == "desktop":
            command.append("--preset=desktop")
        else:
            command.append(f"--throttling.cpuSlowdownMultiplier={multiplier:.2f}")
        done = subprocess.run(command, env=os.environ | {"CHROME_PATH": chromium()}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"Lighthouse on {url}: {done.stderr[-500:]}")
        return json.loads(path.read_text())


if __name__ == "__main__":
    sys.exit(main())
