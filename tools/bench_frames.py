"""Measures what a frame of a race on 16 ranks costs the browser: presses Play and waits for the end of the race.

A frame's cost is the CPU time of the page's main thread; other work on the machine lengthens it less than the time that
passes. It is printed at this machine's pace and at a quarter of it, with the frames a second: the median over the
races, and the least and the most.

To compare versions, write the race of one with `--write old.html`, and give that page to the other: the two take turns.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import served
from playwright.sync_api import CDPSession, Page

from collectives import draw, topology
from collectives.algorithms import hierarchical, ring

RACES = 6
PARTS = {"TaskDuration": "all", "ScriptDuration": "script", "RecalcStyleDuration": "style", "LayoutDuration": "layout"}
PLAY = """() => new Promise((done, fail) => {
  const player = document.querySelector("collective-player"), { play } = player.buttons, { picture } = player;
  let frames = 0, last = 0, begun;
  const next = (now) => {
    begun ??= now;
    if (picture.now > last) frames++;
    last = picture.now;
    if (play.title === "Pause") return requestAnimationFrame(next);
    if (picture.late(picture.last)) return fail("the race stopped before its end");
    done([frames, (now - begun) / 1e3]);
  };
  player.step(0);
  play.click();
  requestAnimationFrame(next);
})"""


def main():
    """Print what a frame costs in this version's race, and in the pages of others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="races of other versions")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="only write this version's race")
    options = parser.parse_args()
    if options.write:
        options.write.write_text(_race(), encoding="utf-8")
        return
    with served.browsing() as chromium, tempfile.TemporaryDirectory() as folder:
        this = Path(folder, "this version.html")
        this.write_text(_race(), encoding="utf-8")
        for slower in (1, 4):
            pages = [_opened(chromium.new_page(), path, slower) for path in (*options.pages, this)]
            rows = [[_played(*page) for page in pages] for _ in range(RACES)]
            for (page, _), races in zip(pages, zip(*rows, strict=True), strict=True):
                print(f"{page.title()}, {slower} times slower: {', '.join(map(_summary, zip(*races, strict=True)))}")
                page.close()


def _race() -> str:
    """Return a page with the ring against the hierarchical schedule on 2 nodes of 8 ranks."""
    nodes = topology.two_level(2, 8, topology.Link(1e-6, 1 / 300e9), topology.Link(5e-6, 1 / 50e9))
    race = draw({"ring": ring.all_reduce(16), "two levels": hierarchical.all_reduce(16, 8)}, on=nodes, num_bytes=2**24)
    return f"<!doctype html><meta charset=utf-8><body>{race.html()}"


def _opened(page: Page, path: Path, slower: int) -> tuple[Page, CDPSession]:
    page.set_viewport_size({"width": 1300, "height": 900})
    page.goto(path.resolve().as_uri())
    page.evaluate("title => (document.title = title)", path.stem)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": slower})
    return page, devtools


def _played(page: Page, devtools: CDPSession) -> list[tuple[str, float]]:
    """Return the milliseconds a frame by part, and the frames a second, of one race from start to end."""
    page.bring_to_front()
    before = _seconds(devtools)
    frames, seconds = page.evaluate(PLAY)
    after = _seconds(devtools)
    parts = [(f"{PARTS[name]} ms", 1e3 * (after[name] - before[name]) / frames) for name in PARTS]
    return [*parts, ("frames a second", frames / seconds)]


def _seconds(devtools: CDPSession) -> dict[str, float]:
    return {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}


def _summary(races: tuple[tuple[str, float], ...]) -> str:
    """Return one quantity of all races as text."""
    values = [value for _, value in races]
    return f"{races[0][0]} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
