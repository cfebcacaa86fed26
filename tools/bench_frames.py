"""Measures what a frame of a race on 16 ranks costs the browser's main thread: medians over whole races."""

import statistics
import tempfile
from pathlib import Path

import served

from collectives import draw, topology
from collectives.algorithms import hierarchical, ring

RACES, MILLISECONDS = 5, 1500
PLAY = """(milliseconds) => new Promise((done) => {
  const { picture } = document.querySelector("collective-player"), begun = performance.now();
  let frames = 0;
  const next = () => {
    const part = (performance.now() - begun) / milliseconds;
    if (part >= 1) return done(frames);
    picture.rest = 0;
    picture.paint(part * picture.data.ticks);
    frames++;
    requestAnimationFrame(next);
  };
  picture.halt();
  requestAnimationFrame(next);
})"""
PARTS = {"TaskDuration": "all", "ScriptDuration": "script", "RecalcStyleDuration": "style", "LayoutDuration": "layout"}


def main():
    """Prints what a frame costs and the frames a second, at this machine's pace and at a quarter of it."""
    nodes = topology.two_level(2, 8, topology.Link(1e-6, 1 / 300e9), topology.Link(5e-6, 1 / 50e9))
    race = draw({"ring": ring.all_reduce(16), "two levels": hierarchical.all_reduce(16, 8)}, on=nodes, num_bytes=2**24)
    with served.browsing() as chromium, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "race.html")
        path.write_text(f"<!doctype html><meta charset=utf-8><body>{race.html()}", encoding="utf-8")
        for slower in (1, 4):
            page = chromium.new_page(viewport={"width": 1300, "height": 900})
            page.goto(path.as_uri())
            devtools = page.context.new_cdp_session(page)
            devtools.send("Performance.enable")
            devtools.send("Emulation.setCPUThrottlingRate", {"rate": slower})
            rows = [_played(page, devtools) for _ in range(RACES)]
            middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
            print(f"{slower}x slower: " + ", ".join(f"{name} {value:.2f}" for name, value in middle.items()))
            page.close()


def _played(page, devtools) -> dict[str, float]:
    """The milliseconds a frame by part, and the frames a second, of one race from start to end."""
    before = _seconds(devtools)
    frames = page.evaluate(PLAY, MILLISECONDS)
    after = _seconds(devtools)
    return {PARTS[name]: 1e3 * (after[name] - before[name]) / frames for name in PARTS} | {
        "frames a second": frames / MILLISECONDS * 1e3
    }


def _seconds(devtools) -> dict[str, float]:
    return {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}


if __name__ == "__main__":
    main()
