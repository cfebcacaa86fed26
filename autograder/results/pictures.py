"""Pictures that students made: what each may ask of the browser that shows it. A file of 2 kB can ask for gigabytes.

`elements` reads no more of a PNG, JPEG or GIF than its header. Of an SVG it knows all elements, attributes and styles
that it lets pass: those of a plain drawing, such as matplotlib's. It counts the elements, with what is drawn again
where something refers to it: ten levels of ten references each are 10 billion. The segments of paths and the dashes of
lines count, too: a browser makes up to a million dashes of one line, and sorts the segments of a path at each row of
pixels that they cross.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from math import inf, isfinite
from urllib.parse import unquote, unquote_to_bytes
from xml.etree import ElementTree

from PIL import Image

from ..cage import Failed

MOST_PIXELS = 25_000_000  # a phone's photo has 12 million; a browser takes 4 bytes for each
PIXELS = 5_000  # of pictures in a drawing, those that count as an element
FREE_CHARACTERS, CHARACTERS = 400, 40  # of an element's attributes: what is free, and what counts as one more
MOST_ELEMENTS = 50_000  # in an SVG, each counted as often as it is drawn; a scatter plot has 5 for a point
FREE_SEGMENTS, SEGMENTS = 30, 5  # of a path, that are part of its element, as a digit's are; and so many more are one
CROSSINGS = 25  # ends of segments beside which others of the same path lie, and may cross them, that are an element
DASHES = 5  # dashes and gaps that count as an element

_DATA = re.compile(r"data:image/(png|jpeg|gif|svg\+xml)((?:;charset=utf-8|;utf-?8|;base64)*),([^#]*)", re.IGNORECASE)
# Entities, style sheets that compute, and an encoding in which a browser reads something else than this module.
_DECLARES = re.compile(
    r"<!(?!DOCTYPE\s|--|\[CDATA\[)|<\?(?!xml\s)|^<\?xml[^>]*encoding\s*=\s*.(?!utf-8\W)", re.IGNORECASE
)
_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_ABOUT = tuple(  # whose elements and attributes draw nothing
    f"{{http://{name}}}"
    for name in (
        *("www.w3.org/1999/02/22-rdf-syntax-ns#", "creativecommons.org/ns#"),
        *("purl.org/dc/elements/1.1/", "www.w3.org/XML/1998/namespace"),
    )
)
_SHAPES = {"path", "rect", "circle", "ellipse", "line", "polyline", "polygon"}
_PAINTS = {"pattern", "linearGradient", "radialGradient"}
_LEAVES = {"title", "desc", "style", "image", "stop"}
_DRAWN = {"svg", "g", "defs", "symbol", "use", "metadata", "text", "tspan", "clipPath"} | _SHAPES | _PAINTS | _LEAVES
_HOLDERS = {"g", "use", "image"}  # which refer to clip paths alone: what they were filled with, each part would draw
_STYLES = {  # as attributes, or in the attribute style
    *("fill", "fill-opacity", "fill-rule", "stroke", "stroke-opacity", "stroke-width", "stroke-linecap"),
    *("stroke-linejoin", "stroke-miterlimit", "stroke-dasharray", "stroke-dashoffset", "opacity", "color", "display"),
    *("visibility", "font", "font-family", "font-size", "font-style", "font-weight", "font-variant", "font-stretch"),
    *("text-anchor", "text-decoration", "dominant-baseline", "letter-spacing", "white-space", "clip-path", "clip-rule"),
    *("stop-color", "stop-opacity", "image-rendering", "shape-rendering", "text-rendering"),
}
_LENGTHS = ("x1", "x2", "y1", "y2", "r", "rx", "ry", "width", "height")
_ATTRIBUTES = {
    *_LENGTHS,
    *("x", "y", "cx", "cy", "dx", "dy", "fx", "fy", "d", "points", "rotate", "transform", "viewBox", "version"),
    *("preserveAspectRatio", "offset", "clipPathUnits", "patternUnits", "patternContentUnits", "patternTransform"),
    *("gradientUnits", "gradientTransform", "spreadMethod"),
}
# Attributes that draw nothing, whatever is in them, or that are read for themselves.
_APART = re.compile(
    r"id|class|type|role|lang|(aria|data)-[\w-]+|style|(\{.*xlink\})?href|\{.*(namespace|syntax-ns#)\}.*"
)
_VALUE = re.compile(
    r"(?:url\(#[\w.-]+\)|(?:rgb|hsl|matrix|translate|scale|rotate|skew[XY])a?\([\w\s.,%+-]*\)|[\w\s.,;:#%'\"+!-])*+",
    re.ASCII,
)
_REFERENCE = re.compile(r"url\(#([\w.-]+)\)", re.ASCII)
_NAME = re.compile(r"#([\w.-]+)", re.ASCII)
_RASTER = re.compile(r"data:image/(png|jpeg|gif);base64,([a-zA-Z0-9+/=\s]*)", re.ASCII)
_SHEET = re.compile(  # matplotlib's
    r"\s*+\*\s*+\{(?:\s*+stroke-line(?:join|cap)\s*+:\s*+[a-z]+\s*+;?)*+\s*+\}\s*+"
)
_NUMBER = r"[-+]?(?>[0-9]+\.?[0-9]*|\.[0-9]+)(?>(?:[eE][-+]?[0-9]+)?)"
_NUMBERS = re.compile(_NUMBER)
_COMMANDS = re.compile(r"([MLHVCSQTAZ])([^MLHVCSQTAZ]*)", re.IGNORECASE)
_TAKES = {"m": 2, "l": 2, "h": 1, "v": 1, "c": 6, "s": 4, "q": 4, "t": 2, "a": 7}  # numbers, by a path's command
_ARC = re.compile(r"[\s,]*".join(f"({each})" for each in (*[_NUMBER] * 3, "[01]", "[01]", *[_NUMBER] * 2)))
_DASHES = re.compile(rf"[\s,]*(?:{_NUMBER}(?:px)?[\s,]*)*")


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
    _pixels(data)
    return 1


def _pixels(data: bytes) -> int:
    """Return how many pixels a picture has. Raise Failed if they are too many, or if it is no picture."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "GIF")) as picture:
            pixels = picture.width * picture.height
    except Image.DecompressionBombError:
        pixels = MOST_PIXELS + 1
    except Exception:
        raise Failed("it is no PNG, JPEG or GIF") from None
    if pixels > MOST_PIXELS:
        raise Failed(f"it has more than {MOST_PIXELS:,} pixels")
    return pixels


class _Drawing:
    """An SVG, with the cost of each element that is known already: as how many elements it counts, with its parts."""

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
        self.costs: dict[ElementTree.Element, int | None] = {}  # None while its parts are counted

    def count(self) -> int:
        """Return how many elements it draws. Raise Failed if they are too many."""
        return self._cost(self.root)

    def _cost(self, element: ElementTree.Element) -> int:
        """Return what an element costs, itself and its parts. Raise Failed if that is too much."""
        if element in self.costs:
            if (known := self.costs[element]) is None:
                raise Failed("a part of it refers to itself")
            return known
        self.costs[element] = None
        _check_parts(element)
        styles = _styles(element)
        own = 1 + _outline(element, styles) + _lists(element)
        count = own + sum(map(self._cost, element)) + sum(self._referred(element, styles))
        if count > MOST_ELEMENTS:
            raise Failed(f"it draws more than {MOST_ELEMENTS:,} elements, or as much as these in long paths and dashes")
        self.costs[element] = count
        return count

    def _referred(self, element: ElementTree.Element, styles: list[tuple[str, str]]) -> Iterator[int]:
        """Yield the cost of each thing that an element refers to. None of them refers to anything but by `use`."""
        tag = _tag(element)
        for name in (href for href in ("href", f"{_XLINK}href") if href in element.attrib):
            link = element.attrib[name].strip()
            if tag == "image" and (raster := _RASTER.fullmatch(link)):
                yield 1 + _pixels(of_base64(raster[2])) // PIXELS
            elif tag == "use" and (named := _NAME.fullmatch(link)):
                yield self._by_name(named[1])
            else:
                raise Failed("it refers to what isn't understood here")
        for name, value in styles:
            for target in _REFERENCE.findall(value):
                clips = name == "clip-path" and tag in _SHAPES | _HOLDERS
                kinds = {"clipPath"} if clips else _PAINTS if name in ("fill", "stroke") and tag in _SHAPES else set()
                if not kinds or (target in self.named and _tag(self.named[target]) not in kinds):
                    raise Failed("it refers to what isn't understood here")
                yield self._by_name(target)

    def _by_name(self, name: str) -> int:
        return self._cost(self.named[name]) if name in self.named else 0


def _tag(element: ElementTree.Element) -> str:
    return element.tag.removeprefix(_SVG)


def _check_parts(element: ElementTree.Element) -> None:
    """Raise Failed if an element isn't one of a plain drawing, or if one like it holds no such parts."""
    tag, parts = _tag(element), {*map(_tag, element)}
    if tag not in _DRAWN and not tag.startswith(_ABOUT):
        raise Failed(f"it has an element that isn't drawn here, {tag[:40]}")
    if tag == "style" and not _SHEET.fullmatch(element.text or ""):
        raise Failed("it has a style sheet that isn't understood here")
    wrong = (tag in _LEAVES and parts) or (tag in _SHAPES and parts - {"title", "desc"})
    if wrong or (tag == "clipPath" and (len(element) > 1 or parts - _SHAPES)):
        raise Failed(f"it has an element with parts that aren't drawn here, {tag[:40]}")
    if tag in _PAINTS | {"clipPath"} and any(map(_refers, element.iter())):
        raise Failed("a pattern or clip path of it refers to something")


def _refers(element: ElementTree.Element) -> bool:
    """Return whether an element draws something from elsewhere."""
    return _tag(element) in ("use", "image") or any("(#" in value for value in element.attrib.values())


def _styles(element: ElementTree.Element) -> list[tuple[str, str]]:
    """Return an element's attributes, and what its attribute style declares. Raise Failed at one that isn't listed."""
    own = [each.partition(":") for each in element.get("style", "").split(";") if each.strip()]
    declared = [(name.strip().lower(), value) for name, _, value in own]
    drawn = {name: value for name, value in element.attrib.items() if not _APART.fullmatch(name)}
    unknown = [name for name, _ in declared if name not in _STYLES]
    unknown += [name for name in drawn if name not in _STYLES | _ATTRIBUTES]
    for name, value in [*declared, *drawn.items()]:
        if name in unknown or not _VALUE.fullmatch(value) or "inherit" in value.lower():
            raise Failed(f"its attribute {name[:40]} isn't understood here")
    return [*declared, *drawn.items()]


def _outline(element: ElementTree.Element, styles: list[tuple[str, str]]) -> int:
    """Return as how many more elements the outline of an element counts: its letters, segments and dashes."""
    tag = _tag(element)
    rate = sum(_dashes_per_unit(value) for name, value in styles if name == "stroke-dasharray")
    if tag in ("text", "tspan"):
        texts = [element.text, *(part.tail for part in element)]
        letters = sum(len((text or "").strip(" \t\r\n")) for text in texts)  # a no-break space is drawn
        return max(0, letters - FREE_SEGMENTS) // SEGMENTS + _as_elements(1.0, rate and inf)
    if tag in ("path", "polyline", "polygon"):
        drawn = element.get("d", "") if tag == "path" else f"M{element.get('points', '')}Z"
        points = list(_points(drawn))
        length = sum(abs(end - begin) for begin, end in pairwise(points))
        if not isfinite(length):
            raise Failed("a line of it has no end")
        beside = min(_beside([each.real for each in points]), _beside([each.imag for each in points]))
        count = max(0, len(points) - FREE_SEGMENTS) // SEGMENTS + beside // CROSSINGS
        return count + _as_elements(length, rate)
    if not rate:
        return 0
    if tag not in _SHAPES:
        raise Failed("it has dashes that more than one line may have")
    sides = [element.get(name, "0") for name in _LENGTHS]
    if not all(re.fullmatch(_NUMBER, side) for side in sides):
        raise Failed("its dashes can't be counted")
    return _as_elements(8 * sum(abs(float(side)) for side in sides), rate)


def _lists(element: ElementTree.Element) -> int:
    """Return as how many more elements an element's long attributes count: lists of places, dashes, transforms."""
    counted = ("d", "points", "href", f"{_XLINK}href")  # elsewhere
    written = sum(len(value) for name, value in element.attrib.items() if name not in counted)
    return max(0, written - FREE_CHARACTERS) // CHARACTERS


def _beside(places: list[float]) -> int:
    """Return beside how many points the segments lie that join these one by one, all together.

    A segment crosses none but those that begin, end or pass there. A plot's each lie beside a few, a scribble's beside
    a third of all.
    """
    ordered = sorted(places)
    ends = (sorted(pair) for pair in pairwise(places))
    return sum(bisect_right(ordered, high) - bisect_left(ordered, low) for low, high in ends)


def _dashes_per_unit(value: str) -> float:
    """Return how many dashes and gaps a line has for each unit of its length. Raise Failed if they aren't numbers."""
    if value.strip().lower() == "none":
        return 0.0
    if not _DASHES.fullmatch(value):
        raise Failed("its dashes aren't understood here")
    lengths = [abs(float(number)) for number in _NUMBERS.findall(value)]
    return len(lengths) / sum(lengths) if any(lengths) else 0.0


def _as_elements(length: float, rate: float) -> int:
    """Return as how many elements the dashes of a line count. Raise Failed if they are too many."""
    dashes = length * rate
    if not dashes <= MOST_ELEMENTS * DASHES:
        raise Failed(f"it draws more than {MOST_ELEMENTS * DASHES:,} dashes")
    return int(dashes / DASHES)


def _steps(path: str) -> Iterator[tuple[str, list[list[float]]]]:
    """Yield the commands of a path, each with the numbers of each of its segments."""
    for command, rest in _COMMANDS.findall(path):
        takes = _TAKES.get(command.lower(), 0)
        # An arc's flags need nothing between them: "01" is two numbers.
        found = sum(_ARC.findall(rest), ()) if takes == 7 else _NUMBERS.findall(rest)
        numbers = list(map(float, found))
        ends = range(takes, len(numbers) + 1, takes) if takes else ()
        yield command, [numbers[end - takes : end] for end in ends]


def _points(path: str) -> Iterator[complex]:
    """Yield points along a path: the ends of its lines, and around its curves, which lie inside and are shorter."""
    here, start, control = 0j, 0j, 0j
    for command, rows in _steps(path):
        kind = command.lower()
        if kind == "z":
            here = control = start
            yield here
        for number, row in enumerate(rows):
            base = here if command.islower() else 0j
            if kind == "h":
                points = [complex(base.real + row[0], here.imag)]
            elif kind == "v":
                points = [complex(here.real, base.imag + row[0])]
            else:
                pairs = row[5:] if kind == "a" else row
                points = [base + complex(x, y) for x, y in zip(pairs[::2], pairs[1::2], strict=True)]
            if kind in "st":
                points.insert(0, 2 * here - control)  # the last control point, mirrored
            if kind == "a" and all(row[:2]):  # a browser makes the radii larger until they reach
                short, long = sorted(map(abs, row[:2]))
                far = 2 * long * max(1.0, abs(points[0] - here) / (2 * short))
                points[:0] = [here + far, here + 1j * far, here - far, here - 1j * far]
            if kind == "m" and number == 0:
                start = points[0]
            control = points[-2] if kind in "csqt" else points[-1]
            here = points[-1]
            yield from points
