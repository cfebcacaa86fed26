"""Pictures that students made: what each may ask of the browser that shows it. A file of 2 kB can ask for gigabytes.

`elements` reads no more of a PNG, JPEG or GIF than its header. Of an SVG it counts what a browser draws, with what is
drawn again where something refers to it: ten levels of ten references each are 10 billion elements.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from urllib.parse import unquote, unquote_to_bytes
from xml.etree import ElementTree

from PIL import Image

from ..cage import Failed

MOST_PIXELS = 25_000_000  # a phone's photo has 12 million; a browser takes 4 bytes for each
MOST_ELEMENTS = 50_000  # in an SVG, each counted as often as it is drawn; a scatter plot has 5 for a point

_DATA = re.compile(r"data:image/(png|jpeg|gif|svg\+xml)((?:;charset=utf-8|;utf-?8|;base64)*),([^#]*)", re.IGNORECASE)
# Entities, style sheets that compute, and an encoding in which a browser reads something else than this module.
_DECLARES = re.compile(
    r"<!(?!DOCTYPE\s|--|\[CDATA\[)|<\?(?!xml\s)|^<\?xml[^>]*encoding\s*=\s*.(?!utf-8\W)", re.IGNORECASE
)
# References that aren't counted: by escapes and variables, of a parent, of each point of a line, of a style sheet.
_UNCOUNTED = re.compile(r"\\|/\*|var\(|\binherit|\bmarker(-mid)?\s*:", re.IGNORECASE)
_IN_STYLES = re.compile(r"@|url|\\|var\(|inherit", re.IGNORECASE)
_REFERENCE = re.compile(r"url\(\s*[\"']?\s*#([^\"')]*)", re.IGNORECASE)
_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_DRAWN = {  # neither filters nor animations, which cost more than they are long, nor HTML
    *("svg", "g", "defs", "symbol", "use", "switch", "a", "title", "desc", "metadata", "style", "image"),
    *("path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan", "textPath"),
    *("clipPath", "mask", "pattern", "marker", "linearGradient", "radialGradient", "stop"),
}
_INHERITED = ("fill", "stroke", "marker-start", "marker-end", "style")  # what these refer to, each part may draw


def of_url(url: str) -> int | None:
    """Return the number of elements that a browser makes of a picture in a data URL; None if it is none.

    Raises Failed as `elements` does.
    """
    match = _DATA.match(re.sub(r"[\t\n\r]", "", url))  # as browsers do
    if match is None:
        return None
    kind, options, data = match.groups()
    return elements(kind.lower(), of_base64(unquote(data)) if ";base64" in options.lower() else unquote_to_bytes(data))


def of_base64(text: str) -> bytes:
    """Return the bytes of a picture. Raise Failed if it isn't valid base64."""
    packed = "".join(text.split()).rstrip("=")
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except binascii.Error:
        raise Failed("it isn't valid base64") from None


def elements(kind: str, data: bytes) -> int:
    """Return how many elements a browser makes of a picture. Raise Failed if they, or its pixels, are too many.

    `kind`: of the MIME type, "svg+xml" for example. A browser looks at the bytes to tell the other kinds apart.
    """
    if kind == "svg+xml":
        return _Drawing(data).count()
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "GIF")) as picture:
            pixels = picture.width * picture.height
    except Image.DecompressionBombError:
        pixels = MOST_PIXELS + 1
    except Exception:
        raise Failed("it is no PNG, JPEG or GIF") from None
    if pixels > MOST_PIXELS:
        raise Failed(f"it has more than {MOST_PIXELS:,} pixels")
    return 1


class _Drawing:
    """An SVG, with the count of each element that is known already."""

    def __init__(self, data: bytes):
        try:
            text = data.decode("utf-8-sig")
            if _DECLARES.search(text):
                raise Failed("it declares what a plain drawing doesn't")
            if text.count("<") > 3 * MOST_ELEMENTS:
                raise Failed(f"it draws more than {MOST_ELEMENTS:,} elements")
            self.root = ElementTree.fromstring(text)
        except (UnicodeDecodeError, ElementTree.ParseError):
            raise Failed("it isn't valid XML in UTF-8") from None
        self.named: dict[str, ElementTree.Element] = {}
        for element in self.root.iter():
            self.named.setdefault(element.get("id", ""), element)
        self.counts: dict[ElementTree.Element, int | None] = {}  # None while its parts are counted

    def count(self, element: ElementTree.Element | None = None) -> int:
        """Return how many elements an element draws, itself among them. Raise Failed if they are too many."""
        element = self.root if element is None else element
        if element in self.counts:
            if (known := self.counts[element]) is None:
                raise Failed("a part of it refers to itself")
            return known
        self.counts[element] = None
        once, of_each_part, drawn = self._referred(element)
        count = (1 + sum(map(self.count, element)) + drawn) * (1 + of_each_part) + once
        if count > MOST_ELEMENTS:
            raise Failed(f"it draws more than {MOST_ELEMENTS:,} elements")
        self.counts[element] = count
        return count

    def _referred(self, element: ElementTree.Element) -> tuple[int, int, int]:
        """Return the counts of what an element refers to: for itself, for each of its parts, and as a part."""
        tag = element.tag.removeprefix(_SVG)
        if tag not in _DRAWN and (tag != element.tag or "xhtml" in tag or not tag.startswith("{")):
            raise Failed(f"it has an element that isn't drawn here, {tag[:40]}")
        if tag == "style" and _IN_STYLES.search("".join(element.itertext())):
            raise Failed("its styles refer to something")
        once = of_each_part = drawn = 0
        for name, value in element.attrib.items():
            name = name.removeprefix(_XLINK)
            if name == "href" and value.strip().startswith("#"):
                drawn += self._of(value.strip()[1:])
            elif name == "href" and tag == "image":
                if re.match(r"\s*data:image/svg", value, re.IGNORECASE):
                    raise Failed("it has another SVG in it")
                of_url(value.strip())
            elif not name.startswith("{"):
                if _UNCOUNTED.search(f"{name}:{value}"):
                    raise Failed(f"its attribute {name[:40]} isn't understood here")
                found = sum(map(self._of, _REFERENCE.findall(value)))
                once, of_each_part = (
                    (once, of_each_part + found) if name in _INHERITED else (once + found, of_each_part)
                )
        return once, of_each_part, drawn

    def _of(self, name: str) -> int:
        element = self.named.get(unquote(name.strip()))
        return 0 if element is None else self.count(element)
