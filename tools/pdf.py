"""Prints the built book into one PDF: `make pdf`.

Chromium prints every page with the site's print styles: figures as stills, in light mode, without screen-only elements.
The PDF joins these parts with a title page, bookmarks and page numbers. A link from page to page of the book leads to
that page in the PDF.
"""

import io
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from fingerprint import ROOT
from playwright.sync_api import Page
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, NameObject
from served import browsing, serving

SITE = ROOT / "_build" / "html"
PDF = ROOT / "_build" / "collectives.pdf"
OFFER = re.compile(r"<!--pdf-->.*?<!--/pdf-->", re.DOTALL)  # the place in each page's footer for a link to the PDF

UNFOLD = """() => {
    document.querySelectorAll("details").forEach((folded) => { folded.open = true; });
    document.querySelector("#jb-print-toc")?.remove();
}"""  # prints answers too, and leaves out the page's contents, because the PDF has bookmarks

HEADINGS = """() => [...document.querySelectorAll("article h1, article h2")].map((heading) => {
    const copy = heading.cloneNode(true);
    copy.querySelectorAll(".headerlink, .katex-mathml").forEach((node) => node.remove());
    return copy.textContent;
})"""  # Chromium's own outline loses the space at a heading's line break

MARGIN = {"top": "17mm", "bottom": "20mm", "left": "16mm", "right": "16mm"}
TITLE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
body {{ font-family: sans-serif; color: #1f2430; margin: 70mm 0 0; }} p {{ font-size: 12pt; color: #565e6c; }}
h1 {{ font-size: 34pt; line-height: 1.15; margin: 0 0 12mm; }}
</style><h1>{title}</h1><p>{author}</p><p>{licence}</p>"""
NUMBERS = """<!doctype html><style>
@page {{ size: A4; margin: 0 }} body {{ margin: 0; font: 9pt sans-serif; color: #565e6c; text-align: center; }}
div {{ height: 296mm; padding-top: 283mm; box-sizing: border-box; break-after: page; }}
</style>{pages}"""


def main() -> int:
    """Write the PDF, link it on the site, and print its length; return the exit status."""
    if not (SITE / "index.html").exists():
        print(f"pdf: no built book at {SITE}: run `make book`")
        return 1
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    with serving(SITE) as address, browsing() as browser:
        title_page = TITLE.format(**config, licence=config["html"]["extra_footer"])
        book = printed(browser.new_page(), address, names(), title_page)
    book.add_metadata({"/Title": config["title"], "/Author": config["author"]})
    book.write(PDF)
    pages = len(book.pages)
    (SITE / PDF.name).write_bytes(PDF.read_bytes())
    megabytes = PDF.stat().st_size / 1e6
    offer(f"The whole book as a PDF, {pages} pages, {megabytes:.1f} MB")
    print(f"pdf: {pages} pages, {megabytes:.1f} MB: {PDF}")
    return 0


def names() -> list[str]:
    """Return the names of the book's pages, in order."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


def printed(page: Page, address: str, chapters: list[str], title_page: str) -> PdfWriter:
    """Return the title page and pages of the site as one PDF. `page`: the browser page to open them in."""
    writer, first = PdfWriter(), {}
    page.emulate_media(media="print", color_scheme="light", reduced_motion="reduce")
    page.set_content(title_page)
    writer.append(on_paper(page), page.title(), import_outline=False)
    for name in chapters:
        page.goto(f"{address}/{name}.html", wait_until="networkidle")
        page.evaluate(UNFOLD)
        heading, *sections = page.evaluate(HEADINGS)
        part = on_paper(page)
        first[name] = len(writer.pages)
        writer.append(part, import_outline=False)
        chapter = writer.add_outline_item(title=heading, page_number=first[name])
        for title, place in zip(sections, second_level(part), strict=True):
            writer.add_outline_item(title=title, page_number=first[name] + place, parent=chapter)
        print(f"pdf: {name:<20} {len(part.pages):>3} pages", flush=True)
    lead_within(writer, address, first)
    number(writer, page)
    writer.compress_identical_objects()
    return writer


def on_paper(page: Page) -> PdfReader:
    """Print an open page to PDF, with an outline of its headings."""
    content = page.pdf(format="A4", margin=MARGIN, print_background=True, outline=True, tagged=True)
    return PdfReader(io.BytesIO(content))


def second_level(part: PdfReader) -> list[int]:
    """Return the sheet on which each section of a chapter starts, from Chromium's outline."""
    _, sections = part.outline if len(part.outline) > 1 else (None, [])
    return [part.get_destination_page_number(item) for item in sections if not isinstance(item, list)]


def lead_within(writer: PdfWriter, address: str, first: dict[str, int]) -> None:
    """Turn links to the site's pages into links to the first sheets of these pages in the PDF."""
    for sheet in writer.pages:
        for annotation in (reference.get_object() for reference in sheet.get("/Annots", [])):
            target = annotation.get("/A", {}).get("/URI", "")
            name = Path(urlsplit(target).path).stem
            if target.startswith(address) and name in first:
                del annotation["/A"]
                place = [writer.pages[first[name]].indirect_reference, NameObject("/Fit")]
                annotation[NameObject("/Dest")] = ArrayObject(place)


def number(writer: PdfWriter, page: Page) -> None:
    """Print the sheet's number at the foot of every sheet but the first."""
    sheets = "".join(f"<div>{place or ''}</div>" for place in range(len(writer.pages)))
    page.set_content(NUMBERS.format(pages=sheets))
    numbers = PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True)))
    for sheet, stamp in zip(writer.pages, numbers.pages, strict=False):
        sheet.merge_page(stamp)
        sheet.compress_content_streams()


def offer(text: str) -> None:
    """Link the PDF, with `text`, in the footer of every page of the site."""
    for path in SITE.glob("*.html"):
        link = f'<!--pdf--><a href="{PDF.name}">{text}</a><!--/pdf-->'
        path.write_text(OFFER.sub(lambda _, link=link: link, path.read_text()))


if __name__ == "__main__":
    sys.exit(main())
