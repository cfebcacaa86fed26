"""Audits the built book and prints the scores: `make audit`.

Lighthouse scores every page (as a phone and as a desktop), axe-core checks it (narrow and wide, light and dark), and
its bytes are counted. Links and spelling are checked too. Pages that miss a limit are listed at the end, and the exit
status is then 1.

Lighthouse emulates a phone by slowing the CPU down: four times on a fast desktop, less on a slow one, as Lighthouse's
own guide recommends. So the first run measures this machine.
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
MOST_PAGE_BYTES = 200_000  # of a page alone with its plots, compressed
MOST_BYTES = 250_000  # with all else that it loads but images: styles, scripts and fonts, which pages share
MOST_SCRIPT_BYTES = 30_000  # of its figures' own script, compressed
MOST_LAB_SCRIPT_BYTES = 60_000  # of the Lab's
MODES = ("light", "dark")
SCREENS = {"phone": {"width": 390, "height": 844}, "wide": {"width": 1280, "height": 800}}

FAST_DESKTOP, ITS_SLOWDOWN = 1750, 4  # Lighthouse's benchmark index of a fast desktop; the factor that emulates a phone
TRIES = 3  # runs of a page that misses, whose median counts: load on this machine lowers scores

LOADED = """() => ({
    bytes: [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .filter((entry) => !["img", "image"].includes(entry.initiatorType) && !entry.name.startsWith("data:"))
        .reduce((sum, entry) => sum + entry.encodedBodySize, 0),
    script: [...document.querySelectorAll("article script:not([src])")]
        .filter((node) => !node.type.includes("json")).map((node) => node.textContent).join(""),
})"""


def main() -> int:
    """Audit the built book or some of its pages; return the exit status."""
    parser = argparse.ArgumentParser(description="Audit the built book.")
    parser.add_argument("pages", nargs="*", help="only these pages, such as 03_ring")
    names = parser.parse_args().pages or sorted(path.stem for path in SITE.glob("*.html"))
    if not names:
        print(f"audit: no built book at {SITE}: run `make book`")
        return 1
    broken, _ = links.check(SITE)
    faults = [f"link: {line}" for line in broken] + misspelt()
    with serving(SITE) as address:
        multiplier = slowdown(f"{address}/{names[0]}.html")
        print(f"audit: Lighthouse slows the CPU down {multiplier:.1f} times to emulate a phone")
        print(f"{'page':<22} {'mobile':>11} {'desktop':>12} {'axe':>4} {'kB':>5} {'script':>6}")
        with browsing() as browser:
            for name in names:
                faults += audit(browser, address, name, multiplier)
    print("\n".join(f"audit: MISSED: {fault}" for fault in faults) or "audit: all limits met")
    return 1 if faults else 0


def audit(browser: Browser, address: str, name: str, multiplier: float) -> list[str]:
    """Audit one page, print its row, and return the limits that it misses."""
    url = f"{address}/{name}.html"
    broken = [rule for mode in MODES for screen in SCREENS for rule in violations(browser, url, mode, screen)]
    page = browser.new_page()
    page.goto(url)
    size, script = weight(page)
    page.close()
    scores = {preset: lighthouse(url, preset, multiplier) for preset in PRESETS}
    row = ["/".join(f"{scores[preset][category]:.0f}" for category in CATEGORIES) for preset in PRESETS]
    print(f"{name:<22} {row[0]:>11} {row[1]:>12} {len(broken):>4} {size / 1e3:>5.0f} {script / 1e3:>6.1f}", flush=True)
    low = [
        f"{name}: {category}, {preset}: {score:.0f}"
        for preset, of_preset in scores.items()
        for category, score in of_preset.items()
        if score < LEAST_SCORE
    ]
    return low + [f"{name}: {fault}" for fault in broken + too_heavy(name, size, script)]


def violations(browser: Browser, url: str, mode: str, screen: str) -> list[str]:
    """Return the rules of axe-core that a page breaks, a line each, with the first element that breaks it."""
    page = browser.new_page(viewport=SCREENS[screen], color_scheme=mode)
    page.goto(url)
    rules = run_axe(page)
    page.close()
    return [f"axe, {mode}, {screen}: {rule}" for rule in rules]


def run_axe(page: Page) -> list[str]:
    """Return the rules of axe-core that an open page breaks, each with its count and first element."""
    page.evaluate(AXE.read_text())
    broken = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{rule['id']} ({len(rule['nodes'])}): {rule['nodes'][0]['html'][:120]}" for rule in broken]


def weight(page: Page) -> tuple[int, int]:
    """Return the compressed bytes that an open page loaded without images, and those of its figures' own script."""
    page.wait_for_load_state("networkidle")
    loaded = page.evaluate(LOADED)
    return loaded["bytes"], len(gzip.compress(loaded["script"].encode())) if loaded["script"] else 0


def most_script_bytes(name: str) -> int:
    """Return how much a page's own script may weigh, compressed."""
    return MOST_LAB_SCRIPT_BYTES if name == "lab" else MOST_SCRIPT_BYTES


def too_heavy(name: str, size: int, script: int) -> list[str]:
    """Return a line for each weight of a page that is over its limit, in bytes."""
    faults = [f"weighs {size / 1e3:.0f} kB, over {MOST_BYTES / 1e3:.0f}"] if size > MOST_BYTES else []
    most = most_script_bytes(name)
    return faults + ([f"its script weighs {script / 1e3:.1f} kB"] if script > most else [])


def misspelt() -> list[str]:
    """Return codespell's findings in all prose and comments; pyproject.toml configures what it reads."""
    command = [sys.executable, "-m", "codespell_lib", *tracked()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [f"spelling: {line}" for line in done.stdout.splitlines() + done.stderr.splitlines()]


def tracked() -> list[str]:
    """Return the repository's tracked files, so that codespell skips build outputs."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def slowdown(url: str) -> float:
    """Return the factor by which Lighthouse must slow this machine down to emulate a phone."""
    index = report(url, "desktop", 1)["environment"]["benchmarkIndex"]
    return min(max(index / FAST_DESKTOP * ITS_SLOWDOWN, 1), ITS_SLOWDOWN)


def lighthouse(url: str, preset: str, multiplier: float) -> dict[str, float]:
    """Return a page's scores out of 100; for a page that misses the limit, the medians of `TRIES` runs."""
    tries: list[dict[str, float]] = []
    while len(tries) < TRIES:
        categories = report(url, preset, multiplier)["categories"]
        tries.append({category: 100 * categories[category]["score"] for category in CATEGORIES})
        if len(tries) == 1 and min(tries[0].values()) >= LEAST_SCORE:
            break
    return {category: statistics.median(scores[category] for scores in tries) for category in CATEGORIES}


def report(url: str, preset: str, multiplier: float) -> dict:
    """Return Lighthouse's report on a page; raise `RuntimeError` if it fails."""
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
            raise RuntimeError(f"Lighthouse failed on {url}: {done.stderr[-500:]}")
        return json.loads(path.read_text())


if __name__ == "__main__":
    sys.exit(main())
