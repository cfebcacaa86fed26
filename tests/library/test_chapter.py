"""A claim cannot be shown unless its computation bears it out, and the book's prose holds no number that was typed."""

import html
import re
from ast import literal_eval
from pathlib import Path

import jupytext
import nbformat
import pytest
from jupyter_cache import get_cache

from collectives.chapter import CLAIM_TYPE, claim, source

GLUED = "application/papermill.record/text/plain"
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
BOOK = Path(__file__).resolve().parents[2] / "book"


def test_a_claim_that_is_not_borne_out_fails_its_cell():
    with pytest.raises(AssertionError, match="C99: the computation doesn't support the verdict 'true': 2 is not 3"):
        claim("C99", "Two is three.", "book", "true", "2 is not 3", shown=False)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"verdict": "maybe"}, "one of true, false, depends, not 'maybe'"),
        ({"sources": "book film"}, "unknown sources film"),
    ],
)
def test_a_claim_with_an_unknown_verdict_or_source_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        claim(
            **{"id": "C99", "says": "", "sources": "book", "verdict": "true", "evidence": "", "shown": True, **change}
        )


def test_a_claim_is_shown_as_text_and_not_as_markup():
    shown = claim("C99", "1 < 2 & <b>", "book", "true", "<script>", shown=True)._repr_mimebundle_()
    assert "1 &lt; 2 &amp; &lt;b&gt;" in shown["text/html"]
    assert "<script>" not in shown["text/html"]
    assert shown[CLAIM_TYPE]["says"] == "1 < 2 & <b>"


def test_source_shows_the_function_itself():
    text = source(source).data
    assert text.startswith("```python\ndef source(function: Callable):\n")
    assert "inspect.getsource(function)" in text


@pytest.mark.parametrize("path", sorted(BOOK.glob("*.md")), ids=lambda path: path.stem)
def test_the_code_of_a_chapter_fits_the_page(path):
    """88 columns on a laptop's screen. What a reader unfolds may be as wide as the library's code, and scrolls."""
    cells = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    widths = {cell.source: 120 if FOLDED & set(cell.metadata.get("tags", ())) else 88 for cell in cells}
    assert [line for code, width in widths.items() for line in code.splitlines() if len(line) > width] == []


@pytest.mark.parametrize("path", sorted(BOOK.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_listing_of_the_library_fits_the_page(path):
    """90 columns are what a laptop's screen shows; what is cut is often the end of a comment or of a signature."""
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", ())]
    shown = "\n".join(output.get("data", {}).get("text/markdown", "") for output in outputs)
    listings = re.findall(r"^```python\n(.*?)^```", shown, flags=re.MULTILINE | re.DOTALL)
    assert [line for listing in listings for line in listing.splitlines() if len(line) > 90] == []


def test_no_chapter_uses_the_checks_of_the_exercises():
    """A notebook is not run again when they change: see `of_library` in tools/fingerprint.py."""
    assert [path.name for path in BOOK.glob("*.md") if re.search(r"collectives.*\bpractice\b", path.read_text())] == []


@pytest.mark.parametrize("path", sorted(BOOK.glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_measurements_in_the_prose_are_pasted_and_not_typed(path):
    """A decimal fraction or a number with a unit of time in the prose can only have been measured or computed."""
    text = re.sub(r"^```.*?^```", "", path.read_text().partition("\n---\n")[2], flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\{[^}]*\}", "", text, flags=re.DOTALL)
    typed = re.findall(r"\b\d+\.\d+\b|\b\d[\d,]* ?(?:ms|µs|GB/s|seconds|bytes)\b", prose)
    sizes = {"2 bytes", "4 bytes", "8 bytes", "16 bytes"}  # of a number in bf16, fp32 and fp64; of Adam's state
    inputs = {"10 GB/s", "20 µs", "64 bytes", "30 ms"}  # of imaginary machines and questions, not results
    rated = {"50 GB/s", "14 µs", "900 GB/s"}  # a 400 Gb/s card, NCCL's alpha for it, a vendor's NVLink
    cited = {"48 GB/s", "0.3", "0.9", "1.4", "120 bytes", "128 bytes"}  # what a source beside them says
    versions = {"2.24", "2.27", "2.28", "2.31", "12.2", "0.7", "1.12", "2.30"}  # of software
    given = sizes | inputs | rated | cited | versions
    assert set(typed) - given == set()


@pytest.mark.parametrize("path", sorted(BOOK.glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_a_pasted_number_stands_on_the_page_as_the_cell_wrote_it(path, built_book):
    """With its separators and last zeros: "1,200" is no pair, and "0.50" has been rounded to two places."""
    cache = get_cache(built_book.parent / ".jupyter_cache")  # of what was run for this page, or taken from the notebook
    last = max(record.pk for record in cache.list_cache_records() if record.uri == str(path))
    glued = {
        output["metadata"]["scrapbook"]["name"]: literal_eval(output["data"][GLUED])
        for cell in cache.get_cache_bundle(last).nb.cells
        for output in cell.get("outputs", [])
        if GLUED in output.get("data", {})
    }
    names = re.findall(r"\{glue:text\}`(\w+)`", path.read_text())
    page = (built_book / f"{path.stem}.html").read_text()
    pasted = map(html.unescape, re.findall(r'<span class="pasted-text">([^<]*)</span>', page))
    assert list(pasted) == [glued[name] for name in names]
