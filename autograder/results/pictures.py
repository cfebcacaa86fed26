"""Pictures that students made, as a page shows them: PNG, JPEG and GIF as they are, and drawings as a PNG.

A drawing (SVG) is a program for the browser, and one of 1 kB can keep it busy for minutes. So resvg draws it in the
cage, under the cage's limits, on white paper; what a page gets asks for no more than a photo. Its letters are
matplotlib's, DejaVu. No picture is read from a file: resvg would, where a drawing names one.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes
from xml.etree import ElementTree

import matplotlib
import resvg_py
from PIL import Image

from ..cage import Failed

MOST_PIXELS = 25_000_000  # a phone's photo has 12 million; a browser takes 4 bytes for each
PIXELS = 1_000  # that count as a tag of the page: all of its pictures have 200 million, which a browser decodes in 1 s
MOST_SCANS = 20  # of a JPEG, each of which is decoded over the whole picture; progressive ones have about ten

FONTS = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf")
_DATA = re.compile(r"data:image/(png|jpeg|gif|svg\+xml)((?:;charset=utf-8|;utf-?8|;base64)*),([^#]*)", re.IGNORECASE)
_INSIDE = re.compile(r"\s*(#|data:image/(png|jpeg|gif);base64,)")  # what a drawing may refer to: all else may be a file


def in_url(url: str) -> tuple[str, int] | None:
    """Return the data URL of a picture as a page shows it, and as how many tags it counts; None if the URL isn't one.

    Raises Failed as `shown` does.
    """
    url = re.sub(r"[\t\n\r]", "", url)  # as browsers do
    match = _DATA.match(url)
    if match is None:
        return None
    kind, options, data = match.groups()
    raw = of_base64(unquote(data)) if ";base64" in options.lower() else unquote_to_bytes(data)
    raster, tags = shown(kind.lower(), raw)
    return (url if raster is raw else f"data:image/png;base64,{base64.b64encode(raster).decode()}"), tags


def of_base64(text: str) -> bytes:
    """Return the bytes of a picture. Raise Failed if it isn't valid base64."""
    packed = "".join(text.split()).rstrip("=")
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except binascii.Error:
        raise Failed("it isn't valid base64") from None


def shown(kind: str, data: bytes) -> tuple[bytes, int]:
    """Return a picture as a page shows it, and as how many tags it counts: the same bytes, or those of a PNG.

    Raises Failed if it has too many pixels, or is decoded too often. `kind`: of the MIME type, "svg+xml" for example. A
    browser looks at the bytes to tell the other kinds apart.
    """
    raster = drawn(data) if kind == "svg+xml" else data
    try:
        with Image.open(io.BytesIO(raster), formats=("PNG", "JPEG", "GIF")) as picture:
            pixels = picture.width * picture.height
    except Image.DecompressionBombError:
        pixels = MOST_PIXELS + 1
    except Exception:
        raise Failed("it is no PNG, JPEG or GIF") from None
    if pixels > MOST_PIXELS:
        raise Failed(f"it has more than {MOST_PIXELS:,} pixels")
    if raster.count(b"\xff\xda") > MOST_SCANS and raster.startswith(b"\xff\xd8"):
        raise Failed(f"it is a JPEG of more than {MOST_SCANS} scans")
    return raster, 1 + pixels // PIXELS


def drawn(svg: bytes) -> bytes:
    """Return a drawing as a PNG, one pixel for each of CSS. Raise Failed if it is none, or refers to a file.

    resvg reads what was parsed here, written anew, so that both read the same.
    """
    try:
        root = ElementTree.fromstring(svg.decode("utf-8-sig"))
    except (UnicodeDecodeError, ElementTree.ParseError):
        raise Failed("it isn't valid XML in UTF-8") from None
    for element in root.iter():
        for name, link in element.attrib.items():
            if name.rpartition("}")[2].lower() == "href" and not _INSIDE.match(link):
                raise Failed("it refers to something outside")
    try:
        return resvg_py.svg_to_bytes(
            svg_string=ElementTree.tostring(root, encoding="unicode"),
            background="#ffffff",
            dpi=96,  # of a point, an inch and the like, as in CSS
            skip_system_fonts=True,
            font_dirs=[FONTS],
            font_family="DejaVu Sans",
            serif_family="DejaVu Sans",  # which a family that isn't there falls back to
            sans_serif_family="DejaVu Sans",
            monospace_family="DejaVu Sans Mono",
        )
    except ValueError as error:
        raise Failed(f"it can't be drawn ({str(error)[:80]})") from None
