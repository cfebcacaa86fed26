"""Checks the built book's links without a network: every internal link must lead to a file and an anchor.

Links to other hosts are listed, not fetched.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LAB = "lab.html"
LINKING = {"a": "href", "link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        """Collect one tag's link and anchors."""
        attributes = dict(attrs)
        self.anchors.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        if link := attributes.get(LINKING.get(tag)):
            self.links.append(link)


def check(site: Path) -> tuple[list[str], list[str]]:
    """Return a built site's broken links, a line each, and its links to other hosts."""
    pages = {path: Page(path) for path in sorted(site.resolve().rglob("*.html")) if "_static" not in path.parts}
    broken, external = [], set()
    for path, page in pages.items():
        for link in page.links:
            if link.startswith("data:"):
                continue
            if urlsplit(link).scheme or link.startswith("//"):
                external.add(link)
            elif fault := fault_of(link, path, pages):
                broken.append(f"{path.name}: {link}: {fault}")
    return broken, sorted(external)


def fault_of(link: str, path: Path, pages: dict[Path, Page]) -> str | None:
    """Return what is wrong with an internal link on a page, or None."""
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "no such file"
    if target.name == LAB and parts.fragment.startswith("v="):  # the Lab's own state, which is no anchor
        return None
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return None


def main() -> int:
    """Check the site named on the command line; return the exit status."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "_build/html")
    if not site.is_dir():
        print(f"links: no built book at {site}: run `make book`")
        return 1
    broken, external = check(site)
    for link in external:
        print(f"links: leaves the book: {link}")
    for line in broken:
        print(f"links: BROKEN: {line}")
    print(f"links: {len(broken)} broken, {len(external)} to other hosts")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
