"""Students' texts are read in a cage: a hostile one costs seconds and gets a reason; the others keep everything."""

import base64
import io
import json
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from PIL import Image

from autograder import cage, sheet
from autograder.results import feedback, pages, rendering, similar
from autograder.submissions import intake

ROOT = Path(__file__).resolve().parents[2]
EVALUATE = eval  # a work that does what an item says, and that every child can import
HONEST = "| a | b |\n|---|---|\n| $x < y$ | **2** |\n\n[link](https://example.org) `<b>`\n\n```python\nx = 1\n```"


def test_an_item_that_hangs_grows_crashes_or_raises_fails_alone_and_says_why(tmp_path):
    kept = tmp_path / "written"
    hostile = {
        b"__import__('time').sleep(60)": "it takes longer than 1 seconds",
        b"10 ** 10 ** 9": "it takes longer than 1 seconds",  # native code, which heeds no signal handler
        b"bytes(2 ** 31)": "it takes more than 512 MiB of memory",
        b"__import__('os').abort()": "crashes what reads it",
        b"bytes(70 * 2 ** 20)": "it becomes larger than 64 MiB",
        f"__import__('pathlib').Path({str(kept)!r}).write_text('x')".encode(): "it can't be read",
        b"1 / 0": "it can't be read (ZeroDivisionError)",
    }
    items = [item for name in hostile for item in (name, b"b'honest'")]
    begun = time.monotonic()
    answers = list(cage.each(EVALUATE, items, 1))
    assert time.monotonic() - begun < 30
    assert answers[1::2] == [b"honest"] * len(hostile)
    for answer, reason in zip(answers[::2], hostile.values(), strict=True):
        assert isinstance(answer, cage.Failed) and reason in str(answer)
    assert kept.stat().st_size == 0


def test_threads_share_the_cage_and_a_keeper_that_is_killed_is_replaced():
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(cage.ask, EVALUATE, f"b'{number}' * 100000".encode(), 60) for number in range(40)]
        assert [future.result()[:2] for future in asked] == [(str(number) * 2)[:2].encode() for number in range(40)]
    cage._control.close()  # the keeper ends as its callers do
    assert cage.ask(EVALUATE, b"b'again'", 60) == b"again"


def test_the_time_for_all_items_together_is_limited():
    begun = time.monotonic()
    answers = list(cage.each(EVALUATE, [b"__import__('time').sleep(60)"] * 50 + [b"b'late'"], 1, total=2))
    assert time.monotonic() - begun < 10
    assert len(answers) == 51 and all(isinstance(answer, cage.Failed) for answer in answers)


# Pages


def page(*cells):
    """What the two steps make of a notebook: the graded notebook, the page, and the seconds."""
    begun = time.monotonic()
    graded, _ = feedback.Inert().preprocess(new_notebook(cells=list(cells)), {})
    nbformat.writes(graded).encode()
    shown, _ = feedback.InertPage().from_notebook_node(graded)
    shown.encode()
    return graded, shown, time.monotonic() - begun


def png(width, height, size=0):
    """The base64 of a PNG of so many pixels, without one of them, and at least so many characters."""
    about = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", about), (b"IDAT", bytes(size * 3 // 4)), (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    ]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(packed)).decode()


def blown_up(size):
    """A markdown text that an HTML parser turns into size * size elements."""
    return "<p>" + "".join(f"<b a={number:x}>" for number in range(size)) + "<p>x" * size


@pytest.mark.slow
def test_html_that_explodes_is_shown_as_plain_text_and_the_cells_beside_it_as_ever(monkeypatch):
    monkeypatch.setattr(feedback, "MOST_SECONDS", 2.0)
    for size in (600, 1500, 4000):
        html = new_output("display_data", {"text/html": blown_up(size)})
        _, shown, seconds = page(
            new_markdown_cell(blown_up(size)), new_code_cell("f(1)", outputs=[html]), new_markdown_cell(HONEST)
        )
        assert seconds < 60  # it was 51 s for 10 kB, and grew with the square; here, 2 texts of 2 s twice at most
        assert shown.count("Shown as plain text, because it") >= 2
        assert "<strong>2</strong>" in shown and "<table>" in shown and 'href="https://example.org"' in shown


def test_the_writer_does_not_wait_for_a_text_that_a_judging_thread_has_tried(monkeypatch):
    monkeypatch.setattr(feedback, "MOST_SECONDS", 1.0)
    slow = new_notebook(cells=[new_markdown_cell(blown_up(3_500)), new_markdown_cell(HONEST)])
    feedback.try_out(slow)
    begun = time.monotonic()
    graded, _ = feedback.Inert().preprocess(slow, {})
    assert time.monotonic() - begun < 0.8
    assert "Shown as plain text" in graded.cells[0].source and "<table>" in graded.cells[1].source


def test_a_students_html_has_no_classes_and_ids_that_a_page_gives_a_meaning():
    """formgrader gives full points on a click at an element of class full-credit."""
    table = '<table><td class="full-credit">x</td></table>'
    marked = f'<div class="full-credit" id="essay-points">\n\nclick me\n\n</div>\n\n{table}'
    html = new_output("display_data", {"text/html": marked})
    graded, shown, _ = page(new_markdown_cell(marked), new_code_cell("f(1)", outputs=[html]), new_raw_cell(marked))
    assert "click me" in shown
    for text in (json.dumps(graded), shown):
        assert "full-credit" not in text and "essay-points" not in text


@pytest.mark.parametrize(
    "kind, text", [("text/html", "<b>x</b>" * 2_000), ("text/plain", "\x1b[1mx\x1b[0m" * 300)], ids=["html", "colours"]
)
def test_a_page_has_a_bounded_number_of_tags_whatever_they_come_from(kind, text):
    """nbconvert parses a page that has a picture again, and keeps an object for each tag: 2 GB for one of 10 MB."""
    cell = new_code_cell("f()", outputs=[new_output("display_data", {kind: text}) for _ in range(500)])
    graded, shown, _ = page(cell)
    for html in ("".join(str(output.data) for output in graded.cells[0].outputs), shown):
        assert html.count("<") + 2 * html.count("\\x1b") < feedback.MOST_TAGS + 2 * feedback.MOST_COLOURS
    assert "bold" in shown or "<b>x</b>" in shown


def test_a_page_shows_a_bounded_part_of_the_outputs_and_every_error():
    big = [new_output("display_data", {"text/plain": "x" * 3_999_000}) for _ in range(15)]
    error = new_output("error", ename="NotYet", evalue="", traceback=["the last check fails"])
    result = new_output("execute_result", {"text/plain": "2.5"})  # the points that a check gives
    cells = [new_code_cell(f"{number}", outputs=deepcopy([*big, result])) for number in range(10)]
    colours = new_output("stream", text="\x1b[31m\udc80\0" * 100_000)
    graded, shown, seconds = page(new_code_cell("c", outputs=[colours]), *cells, new_code_cell("d", outputs=[error]))
    graded.cells.pop()  # its style
    assert seconds < 60
    assert len(shown) < 2 * feedback.MOST_OUTPUTS
    assert "a page shows 2,000 outputs, 100,000 lines, and 10 MB" in shown and "the last check fails" in shown
    assert "\0" not in graded.cells[0].outputs[0].text
    for cell in graded.cells[1:-1]:
        assert cell.outputs[-2].data["text/plain"] == "2.5"
        assert [output.get("text") for output in cell.outputs].count(feedback.NOTE) == 1


def test_the_words_of_the_pages_own_note_are_a_students_output_like_any_other():
    said = [new_output("stream", text=feedback.NOTE), new_output("display_data", {"text/plain": feedback.NOTE})]
    cell = new_code_cell("f(1)", outputs=[*deepcopy(said), *deepcopy(said)], metadata={"autograder": {"passed": True}})
    graded, shown, _ = page(cell)
    assert [output.output_type for output in graded.cells[0].outputs] == ["stream", "display_data"] * 2
    assert shown.count("The rest is not shown") == 4 and "cut" not in graded.cells[0].metadata.autograder


def test_a_page_shows_a_bounded_number_of_outputs_of_lines_and_of_kinds_even_if_they_are_empty(monkeypatch):
    monkeypatch.setattr(feedback, "MOST_PIECES", 100)
    empty = [new_output("display_data", {"text/plain": "", "k" * 190: ""}) for _ in range(50)]
    error = new_output("error", ename="NotYet", evalue="", traceback=[""] * 900 + ["the last check fails"])
    result = new_output("execute_result", {"text/plain": "2.5"})
    cells = [new_code_cell(f"{number}", outputs=deepcopy([*empty, error, result])) for number in range(20)]
    graded, shown, _ = page(*cells)
    graded.cells.pop()  # its style
    assert sum(len(cell.outputs) for cell in graded.cells) <= 100 + 3 * len(cells)
    assert "kkk" not in json.dumps(graded)
    for cell in graded.cells[1:]:
        assert cell.outputs[-2].data["text/plain"] == "2.5" and cell.outputs[-1].text == feedback.NOTE
    assert shown.count("the last check fails") == len(cells)


@pytest.mark.parametrize("way", ["![a](attachment:x)\n" * 5, "![][a]\n" * 5 + "\n[a]: attachment:x"])
def test_a_page_has_a_bounded_length_however_often_its_texts_show_a_picture(monkeypatch, way):
    monkeypatch.setattr(feedback, "MOST_HTML", 1_000_000)
    picture = {"x": {"image/png": png(9, 9, 60_000)}}
    cells = [new_markdown_cell(f"{way}\n\ncell {number}", attachments=picture) for number in range(10)]
    graded, shown, _ = page(*cells)
    assert graded.cells[0].source.count("<img") == 5  # 300,000 characters
    assert len(nbformat.writes(graded)) < 1_000_000 and len(shown) < 2_000_000
    assert shown.count("Shown as plain text, because this page has more than") == 7


def test_a_text_with_pictures_that_would_make_it_too_long_is_not_rendered():
    about = json.dumps({"x": {"image/png": "A" * 100_000}})
    item = json.dumps(["markdown", "![a](attachment:x)\n" * 5_000, about]).encode()
    with pytest.raises(cage.Failed, match="more than 10,000,000 characters with its pictures"):
        cage.ask(rendering.rendered, item, 60)


def test_the_slow_texts_that_are_kept_have_a_bounded_length(monkeypatch):
    monkeypatch.setattr(feedback, "_slow", {})
    monkeypatch.setattr(feedback, "MOST_KEPT", 1_000)
    for number in range(5):
        feedback._keep_slow(("html", str(number), ""), "x" * 400, 0)
    assert [text for _, text, _ in feedback._slow] == ["3", "4"]


def test_a_page_that_hangs_or_ends_its_process_costs_the_others_nothing(monkeypatch):
    monkeypatch.setattr(pages, "MOST_SECONDS", 1.0)
    with pages.Pages(EVALUATE, 1) as pool:
        made = ["1 + 1", "__import__('time').sleep(60)", "10 ** 10 ** 9", "__import__('os')._exit(1)", "1 / 0", "2 + 2"]
        first, slow, deaf, dead, wrong, last = [pool.begin(source) for source in made]
        assert (first.result(), last.result()) == (2, 4)
        for future, why in [(slow, "takes longer than 1 seconds"), (deaf, "takes longer"), (dead, "ends the process")]:
            with pytest.raises(pages.NoPage, match=why):
                future.result()
        with pytest.raises(ZeroDivisionError):
            wrong.result()


SLOW = {
    "blanks": "x = 1\n" + "\t \n" * 16_000,  # in seconds 240 and, as Python, 25: four times as long for twice as many
    "names": "a" + ".b" * 16_000,  # 14 s, and 5 are allowed
    "tags": "a.b\n" * 20_000,  # nbconvert cleans and parses what Pygments makes of it: 10 s
    "magic": "%%perl\n" + "<!--" * 20_000,
    "markdown": "```python\n" + "\t \n" * 1_600 + "x\n```",
}


@pytest.mark.parametrize("kind", SLOW)
@pytest.mark.parametrize("lexer", ["ipython3", "python"])
def test_formgrader_waits_for_no_code_that_pygments_is_slow_to_colour(kind, lexer, monkeypatch):
    """It colours cells outside the cage, in the language that the notebook's metadata names."""
    coloured = []
    for place in ("pygments", "nbconvert.filters.markdown_mistune"):
        monkeypatch.setattr(f"{place}.highlight", lambda code, lexer, _: coloured.append((lexer.name, code)) or "")
    make = new_markdown_cell if kind == "markdown" else new_code_cell
    metadata = {"language_info": {"name": "python", "pygments_lexer": lexer}}
    honest = new_notebook(cells=[new_code_cell("%%bash\nls"), new_code_cell("x = 1")], metadata=metadata)
    for notebook in (honest, deepcopy(honest)):
        if notebook is not honest:
            notebook.cells.append(make(SLOW[kind]))
        graded, _ = feedback.Inert().preprocess(notebook, {})
        assert [cell.source for cell in graded.cells if cell.cell_type == "code"] == [
            cell.source for cell in notebook.cells if cell.cell_type == "code"
        ]
        coloured.clear()
        HTMLExporter(template_name="classic").from_notebook_node(graded)
        names = {name for name, code in coloured}
        if notebook is honest:
            assert names == ({"Bash", "IPython"} if lexer == "ipython3" else {"Python"})
        elif kind == "markdown":
            assert not any("\t" in code for _, code in coloured)
        elif lexer == "ipython3" or kind in ("blanks", "tags"):  # as Python, the others are quick
            assert names == {"Text only"}


@pytest.mark.parametrize("span", ["1000", "65534", "9" * 5_000, "100"])
def test_a_cell_of_a_students_table_spans_a_bounded_number_of_rows_and_columns(span):
    table = f"<table><tr><td colspan={span} rowspan={span}>x</td><td colspan='x'>y</td></tr></table>"
    html = new_output("display_data", {"text/html": table})
    graded, shown, _ = page(new_markdown_cell(table), new_code_cell("f(1)", outputs=[html]))
    for text in (graded.cells[0].source, graded.cells[1].outputs[0].data["text/html"], shown):
        assert 'span="x"' not in text and (span == "100" or span not in text)
        assert len(span) > 9 or text.count('span="100"') in (2, 4)
    cells = new_markdown_cell("<table><tr>" + "<td colspan=1000 rowspan=1000>x" * 2_000)
    graded, _ = feedback.Inert().preprocess(new_notebook(cells=[cells]), {})
    assert "more than 200,000 places" in graded.cells[0].source


def svg(parts, size=100):
    space = "xmlns='http://www.w3.org/2000/svg' xmlns:x='http://www.w3.org/1999/xlink'"
    return f"<svg {space} width='{size}' height='{size}'>{parts}</svg>"


def nested(shape, fan, levels):
    """`shape`, whose id is a0, drawn fan ** levels times: the part of each level shows that of the level below."""
    uses = [f"<use href='#a{n}'/>" * fan for n in range(levels)]
    groups = [f"<g id='a{n + 1}'>{drawn}</g>" for n, drawn in enumerate(uses)]
    return f"<defs>{shape}{''.join(groups)}</defs><use href='#a{levels}'/>"


def in_base64(text):
    return base64.b64encode(text.encode()).decode()


NINES = "".join(f"<!ENTITY e{n + 1} '" + f"&e{n};" * 9 + "'>" for n in range(12))
BOMBS = {
    "uses": svg(nested("<rect id='a0'/>", 10, 7)),  # 10 million elements in 1 kB
    "areas": svg(nested("<rect id='a0' width='100%' height='100%' opacity='.01'/>", 7, 5), 2_000),
    "layers": svg(nested("<g id='a0' opacity='.5'><rect width='100%' height='100%'/></g>", 9, 4), 2_000),
    "pixels": svg("<rect/>", 5_001),
    "more pixels than there is memory for": svg("<rect/>", 100_000),
    "pixels of a picture": svg(f"<image href='data:image/png;base64,{png(60_000, 60_000)}'/>"),
    "entities": f"<!DOCTYPE svg [<!ENTITY e0 'lol'>{NINES}]>" + svg("<text>&e12;</text>"),
    "deep": svg("<g>" * 5_000 + "</g>" * 5_000),
    "no drawing": "<svg",
    "no size": svg("<rect/>", 0),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_drawing_that_takes_too_much_is_left_out_and_its_reason_said(kind):
    output = new_output("display_data", {"image/svg+xml": BOMBS[kind], "text/plain": "a drawing"})
    honest = new_output("display_data", {"image/svg+xml": svg("<rect/>")})
    graded, shown, seconds = page(new_code_cell("f(1)", outputs=[output, honest]))
    left_out, kept = graded.cells[0].outputs
    assert set(left_out.data) == {"text/plain", "text/html"} and "A picture is not shown" in left_out.data["text/html"]
    assert set(kept.data) == {"image/png"} and shown.count('src="data:image') == 1
    assert seconds < 20


SLOW_ELSEWHERE = {  # what a browser lays out or paints for minutes, or with gigabytes
    "letters at one place": nested(f"<text id='a0' x='{'0 ' * 30}' font-size='900'>{'l' * 30}</text>", 5, 3),
    "dashes": "<path d='M0 0H1e6' stroke='red' stroke-dasharray='.001'/>" * 20,
    "a program": "<script>attack()</script><style>* { background: url(attack()) }</style><rect onload='attack()'/>",
    "a page": "<foreignObject><body xmlns='http://www.w3.org/1999/xhtml'>attack()</body></foreignObject>",
    "an animation": "<rect><set attributeName='href' to='attack()'/></rect>",
}


@pytest.mark.parametrize("kind", SLOW_ELSEWHERE)
def test_no_page_has_a_students_drawing_but_the_picture_that_was_made_of_it(kind):
    drawing = svg(SLOW_ELSEWHERE[kind])
    output = new_output("display_data", {"image/svg+xml": drawing})
    link = f"data:image/svg+xml;base64,{in_base64(drawing)}"
    cells = new_markdown_cell(f"![a]({link})"), new_raw_cell(f"<img src='{link}'>")
    graded, shown, _ = page(*cells, new_code_cell("f(1)", outputs=[output]))
    for text in (json.dumps(graded), shown):
        assert "svg" not in text.partition("</style>")[2].replace("image/svg", "svg") and "attack" not in text
    assert shown.count('src="data:image/png;base64,') == 3


@pytest.mark.parametrize(
    "drawing",
    [
        "<image {0}='{1}' width='9' height='9'/>",
        "<image {0}=' {1}' width='9' height='9'/>",
        "<image {0}='file://{1}' width='9' height='9'/>",
        "<image {0}='data:image/png;base64,{2}' width='9' height='9'/>",
        "<image {0}='data:image/svg+xml;base64,{2}' width='9' height='9'/>",
        "<image style='{0}: {1}' width='9' height='9'/>",
        "<filter id='f'><feImage {0}='{1}'/></filter><rect width='9' height='9' filter='url(#f)'/>",
    ],
)
@pytest.mark.parametrize("name", ["href", "x:href"])
def test_a_drawing_shows_no_file_of_the_machine(name, drawing, tmp_path):
    path = tmp_path / "secret.png"
    path.write_bytes(base64.b64decode(RED))
    inner = in_base64(svg(f"<image href='{path}' width='9' height='9'/>"))
    output = new_output("display_data", {"image/svg+xml": svg(drawing.format(name, path, inner))})
    graded, _, _ = page(new_code_cell("f(1)", outputs=[output]))
    assert (255, 0, 0) not in colours_of(graded.cells[0].outputs[0].data.get("image/png"))


RED = (  # of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


def colours_of(picture):
    """The colours of a picture in base64; none if there is no picture."""
    opened = Image.open(io.BytesIO(base64.b64decode(picture))) if picture else Image.new("RGB", (1, 1))
    return {colour for _, colour in opened.convert("RGB").getcolors(10**6)}


def test_a_drawing_is_shown_on_white_paper_with_its_letters_shapes_and_pictures():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3))
    axes = figure.add_subplot(title="$x_1$")
    axes.plot(range(9), "o-", color="#00f")
    axes.imshow([[1, 2], [3, 4]])
    plot = io.StringIO()
    figure.savefig(plot, format="svg")
    red = f"<image y='9' width='9' height='9' href='data:image/png;base64,{RED}'/>"
    drawings = [
        plot.getvalue(),
        svg(f"<rect width='9' height='9' fill='#0f0'/>{red}"),
        svg("<text y='50' font-size='40' font-family='Nobody'>ДΩ</text>"),
    ]
    outputs = [new_output("display_data", {"image/svg+xml": text}) for text in drawings]
    graded, _, _ = page(new_code_cell("f(1)", outputs=outputs))
    plotted, painted, written = (output.data["image/png"] for output in graded.cells[0].outputs)
    assert Image.open(io.BytesIO(base64.b64decode(plotted))).size == (384, 288)  # 96 pixels an inch
    assert (0, 0, 255) in colours_of(plotted)
    assert {(255, 255, 255), (0, 255, 0), (255, 0, 0)} <= colours_of(painted)
    assert {(255, 255, 255), (0, 0, 0)} <= colours_of(written)


@pytest.mark.parametrize("form", ["GIF89a", "PNG", "JPEG", "BMP"])
def test_a_picture_has_a_bounded_number_of_pixels_and_is_what_it_says(form):
    """A browser takes 1.4 GB for a PNG of 32 kB. It doesn't heed the MIME type."""

    def picture(width, height):
        if form == "PNG":
            return png(width, height)
        if form == "GIF89a":  # the screen has one pixel, and the first frame has them all
            data = (
                b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0)
            )
        elif form == "JPEG":
            data = b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\0\xff\xda"
        else:
            data = b"BM" + struct.pack("<IIIIIIHHIIIIII", 99, 0, 54, 40, width, height, 1, 1, 0, 0, 0, 0, 0, 0)
        return base64.b64encode(data + bytes(99)).decode()

    for sides, fits in [((5_000, 5_000), form != "BMP"), ((5_001, 5_000), False), ((60_000, 60_000), False)]:
        packed = picture(*sides)
        about = {"x": {"image/png": packed}}
        output = new_output("display_data", {"image/png": packed, "text/plain": "a picture"})
        graded, _, _ = page(
            new_markdown_cell("![a](attachment:x)", attachments=about), new_code_cell("", outputs=[output])
        )
        assert (packed in graded.cells[0].source) == fits
        data = graded.cells[1].outputs[0].data
        assert ("image/png" in data) == fits and ("A picture is not shown" in data.get("text/html", "")) != fits


def test_a_jpeg_of_very_many_scans_is_left_out_and_a_progressive_photo_is_shown():
    """Each scan of 33 bytes goes over all its pixels again: a browser needs nine seconds for 990."""
    photo = io.BytesIO()
    Image.effect_noise((300, 300), 50).save(photo, "JPEG", progressive=True)
    honest = photo.getvalue()
    scan = honest[honest.index(b"\xff\xda") : -2]
    pictures = [base64.b64encode(data).decode() for data in (honest, honest[:-2] + scan * 20 + honest[-2:])]
    outputs = [new_output("display_data", {"image/jpeg": each, "text/plain": "a photo"}) for each in pictures]
    graded, _, _ = page(new_code_cell("f(1)", outputs=outputs))
    shown, left_out = graded.cells[0].outputs
    assert shown.data["image/jpeg"] == pictures[0]
    assert "image/jpeg" not in left_out.data and "more than 20 scans" in left_out.data["text/html"]


def test_the_pictures_of_a_page_have_a_bounded_number_of_pixels():
    outputs = [new_output("display_data", {"image/png": png(5_000, 5_000, 3 * n)}) for n in range(12)]
    graded, _, _ = page(new_code_cell("f(1)", outputs=outputs))
    shown = ["image/png" in output.data for output in graded.cells[0].outputs]
    assert shown == [True] * 7 + [False] * 5
    assert "more than 200,000 tags" in graded.cells[0].outputs[-1].data["text/html"]


def test_a_table_has_a_bounded_number_of_places_and_a_long_or_wide_one_is_shown():
    def table(rows, columns, span=""):
        return f"<table>{('<tr>' + f'<td{span}>x</td>' * columns + '</tr>') * rows}</table>"

    wide = f"<table><tr>{'<td colspan=100></td>' * 300}</tr>{'<tr></tr>' * 300}</table>"
    low = f"<table>{'<tr><td colspan=100 rowspan=100></td></tr>' * 200}</table>"
    graded, _, _ = page(*map(new_markdown_cell, [table(900, 4), table(40, 90), table(9, 9, " colspan=3"), wide, low]))
    shown = ["<td" in cell.source for cell in graded.cells[:5]]
    assert shown == [True, True, True, False, False]
    assert all("a table of more than 200,000 places" in cell.source for cell in graded.cells[3:5])


@pytest.mark.parametrize("text", ["&rlm;a", "&#10;", "\r", "\t" * 10], ids=["letters", "lines", "returns", "tabs"])
def test_html_has_a_bounded_number_of_lines_however_they_are_written(text):
    outputs = [new_output("display_data", {"text/html": f"<pre>{n}{text * 30_000}</pre>"}) for n in range(5)]
    graded, _, _ = page(new_code_cell("f(1)", outputs=outputs))
    shown = "".join(str(output.get("data", "")) for output in graded.cells[0].outputs)
    assert "more than 200,000 tags" in shown or "The rest is not shown" in str(graded.cells[0].outputs)


def test_the_errors_of_very_many_cells_have_a_bounded_number_of_lines():
    error = new_output("error", ename="Exception", evalue="\u05d0a" * 4_900, traceback=["\u05d0a" * 4_900, "the end"])
    graded, shown, _ = page(*(new_code_cell(f"{n}", outputs=[deepcopy(error)]) for n in range(300)))
    assert all("the end" in str(cell.outputs) for cell in graded.cells[:300])
    assert shown.count("\u05d0") < 700_000


def test_what_a_raw_cell_holds_runs_nothing():
    _, shown, _ = page(new_raw_cell("<b>kept</b><script>attack()</script><img src=x onerror=attack()>"))
    assert "<b>kept</b>" in shown and "attack" not in shown.partition("</head>")[2]


# Notebooks, answers and tables


def test_surrogates_and_nul_in_any_text_of_a_notebook_are_replaced():
    odd = "\udc80\0"
    picture = {f"{odd}.png": {"image/png": "aGk="}}
    cell = {"cell_type": "markdown", "id": odd, "source": [odd], "attachments": picture}
    raw = json.dumps({"cells": [cell | {"metadata": {"nbgrader": {"grade_id": odd}}}]}).encode()
    (read,) = intake.read_cells(raw, [])
    texts = [read.source, read.id, read.grade_id, *read.attachments]
    assert len(texts) == 4
    assert all("\0" not in text and text.encode() for text in texts)


def test_a_notebook_that_is_slow_to_read_is_refused_with_a_reason(monkeypatch):
    monkeypatch.setattr(intake, "MOST_SECONDS", 0.0)
    try:
        intake.read_cells(b'{"cells": []}', [])
    except intake.Unreadable as reason:
        assert str(reason) == "the notebook takes longer than 0 seconds to read"
    else:
        raise AssertionError("it was read")


@pytest.mark.parametrize("text", ["\n" * 10_001, "\r" * 10_001, "\t" * 100_010, "\u05d0a" * 10_001, "\u202ea" * 10_001])
def test_a_notebook_of_very_many_lines_or_letters_from_right_to_left_is_refused_with_a_reason(text):
    """A browser lays each of them out: a million keep a page dead for minutes."""
    cells = [{"cell_type": kind, "source": text} for kind in ("code", "markdown")]
    with pytest.raises(intake.Unreadable, match="more than 20,000 lines, or letters written from right to left"):
        intake.read_cells(json.dumps({"cells": cells}).encode(), [])
    assert len(intake.read_cells(json.dumps({"cells": cells[:1]}).encode(), [])) == 1


@pytest.mark.parametrize("size", [20, 10_000])
def test_a_notebook_keeps_few_attached_pictures_and_says_how_many_were_left_out(size):
    """98,000 empty ones held up the only writer for 31 s."""
    named = {f"a{number}": {"image/png": "aGk=" if number < 30 else ""} for number in range(size)}
    cells = [{"cell_type": "markdown", "source": "", "attachments": named} for _ in range(9)]
    notes = []
    read = intake.read_cells(json.dumps({"cells": cells}).encode(), notes)
    counts = [len(cell.attachments) for cell in read]
    assert counts == [20] * 5 + [0] * 4
    assert len(notes) == 1 and notes[0].startswith(f"{9 * size - 100:,} of the attached pictures were left out")
    (honest,) = intake.read_cells(json.dumps({"cells": [cells[0] | {"attachments": {"x": named["a0"]}}]}).encode(), [])
    assert honest.attachments == {"x": {"image/png": "aGk="}}


def test_an_empty_picture_is_none():
    cell = {"cell_type": "markdown", "source": "", "attachments": {"x": {"image/png": "", "image/gif": [" "]}}}
    assert intake.read_cells(json.dumps({"cells": [cell]}).encode(), [])[0].attachments == {}


SHORT_ANSWER = "\n".join(f"x{number} = f({number}) + {number}" for number in range(40))


@pytest.mark.parametrize("seconds, source", [(0.0, SHORT_ANSWER), (60.0, SHORT_ANSWER * 100)])
def test_answers_that_cannot_be_parsed_are_compared_by_a_digest(seconds, source, monkeypatch):
    """Too late, or too long. Outside the cage no text is split, and millions of tokens would fill the memory."""
    monkeypatch.setattr(similar, "ALL_SECONDS", seconds)
    (found,) = similar.alike({"c": {"ada": source, "bob": source, "eve": "x = 1"}}, {"c": ""})
    assert found.students == ("ada", "bob")
    assert not similar.read_all([source])[source].prints


def test_every_csv_file_is_written_by_the_one_function_that_guards_against_formulas():
    rows = [["=1+1", "+1", "-1.5", "@x", "\udc80", "plain"]]
    assert sheet.text(rows) == "'=1+1,'+1,-1.5,'@x,?,plain\n"
    for path in (ROOT / "autograder").rglob("*.py"):
        writes = "csv.writer" in path.read_text(encoding="utf-8") or "DictWriter" in path.read_text(encoding="utf-8")
        assert not writes or path.name == "sheet.py", path


def test_math_tables_and_code_survive_the_cage():
    html = cage.ask(rendering.rendered, json.dumps(["markdown", HONEST, ""]).encode(), 60).decode()
    assert "<table>" in html and "$x &lt; y$" in html and "<code>&lt;b&gt;</code>" in html
    code = cage.ask(rendering.rendered, json.dumps(["code", "x = 1", "ipython3"]).encode(), 60).decode()
    assert 'class=" highlight hl-ipython3"' in code
