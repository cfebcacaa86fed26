"""Pictures that students made: what each may ask of the browser that shows it. A file of 2 kB can ask for gigabytes.

`elements` reads no more of a PNG, JPEG or GIF than its header. Of an SVG it counts what a browser draws, with what is
drawn again where something refers to it: ten levels of ten references each are 10 billion elements. The segments of
long paths and the dashes of lines count, too: a browser makes up to a million dashes of one line.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Iterator
from itertools import pairwise
from math import inf, pi
from typing import NamedTuple
from urllib.parse import unquote, unquote_to_bytes
from xml.etree import ElementTree

from PIL import Image

from ..cage import Failed

MOST_PIXELS = 25_000_000  # a phone's photo has 12 million; a browser takes 4 bytes for each
MOST_ELEMENTS = 50_000  # in an SVG, each counted as often as it is drawn; a scatter plot has 5 for a point
FREE_SEGMENTS, SEGMENTS = 30, 10  # of a path, that are part of its element, as a digit's are; and so many more are one
DASHES = 20  # dashes and gaps that count as an element

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
_NUMBER = r"[-+]?(?>[0-9]+\.?[0-9]*|\.[0-9]+)(?>(?:[eE][-+]?[0-9]+)?)"
_NUMBERS = re.compile(_NUMBER)
_COMMANDS = re.compile(r"([MLHVCSQTAZ])([^MLHVCSQTAZ]*)", re.IGNORECASE)
_TAKES = {"m": 2, "l": 2, "h": 1, "v": 1, "c": 6, "s": 4, "q": 4, "t": 2, "a": 7}  # numbers, by a path's command
_ARC = re.compile(r"[\s,]*".join(f"({each})" for each in (*[_NUMBER] * 3, "[01]", "[01]", *[_NUMBER] * 2)))
_SIZED = re.compile(rf"\s*({_NUMBER})(px|%|)\s*")
_SHAPES = {"rect", "circle", "ellipse", "line"}
_TEXTS = {"text", "tspan", "textPath"}
_DASHED = re.compile(r"stroke-dasharray\s*:([^;}]*)", re.IGNORECASE)
_DASHES = re.compile(rf"[\s,]*(?:{_NUMBER}(?:px|pt|mm|cm|in|pc)?[\s,]*)*", re.IGNORECASE)  # no unit is below a pixel
_FONT = re.compile(r"font(?:-size)?\s*:([^;}]*)", re.IGNORECASE)
_FONT_SIZE = re.compile(rf"({_NUMBER})(%|[a-z]*)|larger", re.IGNORECASE)
# With any of these, the length of a line or a dash isn't what the attributes of its element say.
_ELSEWHERE = re.compile(r"vector-effect|pathLength|path\(|size-adjust|\bzoom\b", re.IGNORECASE)
_GEOMETRY = re.compile(r"(?<![\w-])(?:d|r|rx|ry|width|height)\s*:", re.IGNORECASE)
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


class _Cost(NamedTuple):
    """What an element asks of a browser. `length`: of all lines that it draws, in the units in which dashes count."""

    elements: int
    length: float


class _Drawing:
    """An SVG, with the cost of each element that is known already."""

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
        self.costs: dict[ElementTree.Element, _Cost | None] = {}  # None while its parts are counted
        self.own_rates, self.rates = self._rates()
        self.dashed = any(self.own_rates.values())
        self.letter, self.size = self._measures() if self.dashed else (0.0, 0.0)

    def count(self) -> int:
        """Return how many elements it draws. Raise Failed if they are too many."""
        return self._cost(self.root).elements

    def _rates(self) -> tuple[dict[ElementTree.Element, float], dict[ElementTree.Element, float]]:
        """Return how many dashes each element gives to a unit of length: itself, and with what it may inherit.

        They add up, whatever overrides what. A style sheet's dashes are those of the root.
        """
        own = {element: _dashes_per_unit(_declared(element)) for element in self.root.iter()}
        own[self.root] += _dashes_per_unit(self._sheets())
        all_of_them = {self.root: own[self.root]}
        for element in self.root.iter():
            all_of_them.update({part: all_of_them[element] + own[part] for part in element})
        return own, all_of_them

    def _sheets(self) -> str:
        return ";".join("".join(each.itertext()) for each in self.root.iter() if each.tag.endswith("style"))

    def _measures(self) -> tuple[float, float]:
        """Return the height of the largest letter, and what 100% of a length is. Raise Failed if a length is hidden."""
        sheets = self._sheets()
        declared = ";".join([sheets, *map(_declared, self.root.iter())])
        styles = [sheets, *(each.get("style", "") for each in self.root.iter() if _tag(each) in {*_SHAPES, "path"})]
        if _ELSEWHERE.search(declared) or any(map(_GEOMETRY.search, styles)):
            raise Failed("its dashes can't be counted")
        letter = 50.0  # of the keyword xxx-large
        for value in _FONT.findall(declared):
            for number, unit in _FONT_SIZE.findall(value):
                letter = max(letter, 2 * float(number) if unit.lower() in ("", "px", "pt") and number else inf)
        sides = [each.get(name, "") for each in self.root.iter() for name in ("viewBox", "width", "height")]
        numbers = [abs(float(number)) for side in sides for number in _NUMBERS.findall(side)]
        return letter, max(numbers) if self.root.get("viewBox") and numbers else inf

    def _cost(self, element: ElementTree.Element) -> _Cost:
        """Return what an element costs, itself and its parts. Raise Failed if that is too much."""
        if element in self.costs:
            if (known := self.costs[element]) is None:
                raise Failed("a part of it refers to itself")
            return known
        self.costs[element] = None
        once, of_each_part, drawn = self._referred(element)
        parts = [*map(self._cost, element), *drawn]
        segments, length = self._outline(element)
        length += sum(part.length for part in parts)
        count = (1 + sum(part.elements for part in parts)) * (1 + of_each_part) + once
        count += max(0, segments - FREE_SEGMENTS) // SEGMENTS + _as_elements(length, self.own_rates[element])
        if count > MOST_ELEMENTS:
            raise Failed(f"it draws more than {MOST_ELEMENTS:,} elements, or as much as these in long paths and dashes")
        self.costs[element] = cost = _Cost(count, length)
        return cost

    def _outline(self, element: ElementTree.Element) -> tuple[int, float]:
        """Return how many segments or letters an element itself has, and how long their lines are if any are dashed."""
        tag = _tag(element)
        if tag in _TEXTS:
            letters = len((element.text or "").strip()) + sum(len((part.tail or "").strip()) for part in element)
            return letters, 8 * letters * self.letter if letters else 0.0
        if tag in _SHAPES:
            return 0, 8 * sum(map(self._extent, element.attrib.items())) if self.dashed else 0.0
        data = element.get("d", "") if tag == "path" else f"M{element.get('points', '')}Z" if tag[:4] == "poly" else ""
        steps = list(_steps(data))
        return sum(len(rows) for _, rows in steps), _length(steps) if self.dashed else 0.0

    def _extent(self, attribute: tuple[str, str]) -> float:
        """Return the length that an attribute gives, at most; 0 if it is no length of a shape's."""
        name, value = attribute
        if not re.fullmatch(r"c?[xy]|[xy][12]|r[xy]?|width|height", name):
            return 0.0
        sized = _SIZED.fullmatch(value)
        if sized is None:
            return inf
        return abs(float(sized[1])) * (self.size / 100 if sized[2] == "%" else 1)

    def _referred(self, element: ElementTree.Element) -> tuple[int, int, list[_Cost]]:
        """Return the counts of what an element refers to, for itself and for each of its parts, and what it repeats."""
        tag = _tag(element)
        if tag not in _DRAWN and (tag != element.tag or "xhtml" in tag or not tag.startswith("{")):
            raise Failed(f"it has an element that isn't drawn here, {tag[:40]}")
        if tag == "style" and _IN_STYLES.search("".join(element.itertext())):
            raise Failed("its styles refer to something")
        once = of_each_part = 0
        drawn = []
        for name, value in element.attrib.items():
            name = name.removeprefix(_XLINK)
            if name == "href" and value.strip().startswith("#"):
                if (repeated := self._by_name(value.strip()[1:])) is not None:
                    drawn.append(self._cost(repeated))
            elif name == "href" and tag == "image":
                if re.match(r"\s*data:image/svg", value, re.IGNORECASE):
                    raise Failed("it has another SVG in it")
                of_url(value.strip())
            elif not name.startswith("{"):
                if _UNCOUNTED.search(f"{name}:{value}"):
                    raise Failed(f"its attribute {name[:40]} isn't understood here")
                found = sum(map(self._as_a_paint, _REFERENCE.findall(value)))
                once, of_each_part = (
                    (once, of_each_part + found) if name in _INHERITED else (once + found, of_each_part)
                )
        return once, of_each_part, drawn

    def _by_name(self, name: str) -> ElementTree.Element | None:
        return self.named.get(unquote(name.strip()))

    def _as_a_paint(self, name: str) -> int:
        """Return the count of a pattern, mask or marker, with the dashes that it inherits where it is defined."""
        element = self._by_name(name)
        if element is None:
            return 0
        cost = self._cost(element)
        return cost.elements + _as_elements(cost.length, self.rates[element])


def _tag(element: ElementTree.Element) -> str:
    return element.tag.removeprefix(_SVG)


def _declared(element: ElementTree.Element) -> str:
    """Return an element's attributes in the form of a style."""
    return ";".join(f"{name}:{value}" for name, value in element.attrib.items())


def _dashes_per_unit(declared: str) -> float:
    """Return how many dashes and gaps a line has for each unit of its length. Raise Failed if they aren't numbers."""
    rate = 0.0
    for value in _DASHED.findall(declared):
        if value.strip().lower() == "none":
            continue
        if not _DASHES.fullmatch(value):
            raise Failed("its dashes aren't understood here")
        lengths = [abs(float(number)) for number in _NUMBERS.findall(value)]
        rate += len(lengths) / sum(lengths) if any(lengths) else 0.0
    return rate


def _as_elements(length: float, rate: float) -> int:
    """Return as how many elements the dashes of lines count. Raise Failed if they are too many."""
    dashes = length * rate if rate else 0.0
    if not dashes <= MOST_ELEMENTS * DASHES:  # also of infinite lengths, whose product may be no number
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


def _length(steps: list[tuple[str, list[list[float]]]]) -> float:
    """Return how long a path is, at most: a curve is shorter than the way along its control points."""
    total, here, start, control = 0.0, 0j, 0j, 0j
    for command, rows in steps:
        kind = command.lower()
        if kind == "z":
            total, here, control = total + abs(here - start), start, start
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
            if kind == "m" and number == 0:
                start = points[0]
            else:
                total += sum(abs(end - begin) for begin, end in pairwise([here, *points]))
            if kind == "a":  # a browser makes the radii larger until they reach
                short, long = sorted(map(abs, row[:2]))
                total += 2 * pi * long * max(1.0, abs(points[0] - here) / (2 * short)) if short else 0.0
            control = points[-2] if kind in "csqt" else points[-1]
            here = points[-1]
    return total
