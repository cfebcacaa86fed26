"""The figure of blocks shows what `shardings` derives, says it, and can be stepped and chosen from by keyboard."""

import os
import re
import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from collectives import blocks
from collectives.blocks import AXIS_NAMES, NOTHING, SIZES, SPLITS, Block, Blocks, Column, Scene, Story
from collectives.training.shardings import derive, derive_pair, laid_out

FIGURES = {"by_axis": blocks.by_axis, "mlp": blocks.mlp, "gates": blocks.gates, "heads": blocks.heads}
LENGTHS = {"rows": 4096, "inner": 8192, "columns": 8192}


def notes(story):
    """What is done to a matrix, in order."""
    said = [note for scene in story.scenes for note in scene.notes.values()]
    return [note.replace("-", "_") for note in said if note not in ("", NOTHING)]


def covered(content, shape):
    """Which cells of a matrix a rank's blocks cover, bool [rows, columns]."""
    cells = np.zeros([round(length) for length in shape], dtype=bool)
    for block in content:
        top, left, height, width = (round(number) for number in block[:4])
        assert not cells[top : top + height, left : left + width].any(), "two blocks lie on each other"
        cells[top : top + height, left : left + width] = True
    return cells


@pytest.mark.parametrize("world_size", [2, 4])
def test_each_of_the_27_stories_calls_what_is_derived(world_size):
    figure = blocks.by_axis(world_size)
    layouts = list(product(*AXIS_NAMES.values()))
    assert len(figure.stories) == len(set(layouts)) == 27
    for lies, story in zip(layouts, figure.stories, strict=True):
        plan = derive(*lies, LENGTHS, world_size)
        assert notes(story) == plan.collectives
        total = plan.sent(LENGTHS, world_size)
        assert story.scenes[-1].words.endswith(
            f"A rank sends {total / 1e6:,.1f} million elements in all." if total else "Nobody sends anything."
        )


def test_each_block_is_the_part_that_the_rank_has():
    """The cells that a picture covers are those that `laid_out` hands to the rank, at the start and in the end."""
    figure = blocks.by_axis(4)
    for lies, story in zip(product(*AXIS_NAMES.values()), figure.stories, strict=True):
        plan = derive(*lies, LENGTHS, 4)
        for move, scene, layout in ((plan.x, 0, lies[0]), (plan.w, 0, lies[1]), (plan.y, 3, lies[2])):
            shape = next(column[1:] for column in story.columns if column.heading == move.matrix)
            numbered = np.arange(shape[0] * shape[1]).reshape([int(length) for length in shape])
            have = laid_out(move._replace(before=layout), numbered, 4)
            for rank, content in enumerate(story.scenes[scene].contents[move.matrix]):
                assert set(numbered[covered(content, shape)]) == set(have[rank].ravel())


def test_a_term_of_a_sum_is_never_shown_as_finished():
    """Where the plan says partial all blocks are terms of the full shape, and nowhere else."""
    figure = blocks.by_axis(4)
    for lies, story in zip(product(*AXIS_NAMES.values()), figure.stories, strict=True):
        product_scene = story.scenes[2].contents["Y"]
        kinds = {block.kind for content in product_scene for block in content}
        assert (kinds == {"p"}) == (derive(*lies, LENGTHS, 4).y.before == "partial")
        assert not {block.kind for content in story.scenes[3].contents["Y"] for block in content} & {"p"}


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_mlp_and_the_gates_call_what_is_derived(world_size):
    for cut, story in zip(SPLITS.values(), blocks.mlp(world_size).stories, strict=True):
        assert notes(story) == derive_pair(*cut, SIZES, world_size).collectives
    for story in (*blocks.gates(world_size).stories, *blocks.heads(world_size).stories):
        assert notes(story) == ["all_reduce"]
    forward, backward = blocks.gates(world_size).stories
    assert [list(scene.notes.items()) for scene in forward.scenes if scene.notes] == [
        [("f", NOTHING)],
        [("g", "all-reduce")],
    ]
    assert [list(scene.notes.items()) for scene in backward.scenes if scene.notes] == [
        [("g", NOTHING)],
        [("f", "all-reduce")],
    ]


def test_every_head_is_on_one_rank():
    held = blocks.heads(2, 4).stories[0].scenes[0].contents["W q,k,v"]
    assert [[block.label for block in content] for content in held] == [["0", "1"], ["2", "3"]]
    with pytest.raises(ValueError, match="4 heads do not divide among 3 ranks"):
        blocks.heads(3, 4)


def test_what_does_not_fit_together_is_refused():
    columns = [Column("X", 1, 1)]
    one, two = Story(columns, [Scene("a", {})]), Story(columns, [Scene("a", {}), Scene("b", {})])
    with pytest.raises(ValueError, match="1 stories for 2 combinations"):
        Blocks([one], 2, "", {"which": ["this", "that"]})
    with pytest.raises(ValueError, match="as many scenes"):
        Blocks([one, two], 2, "", {"which": ["this", "that"]})
    with pytest.raises(ValueError, match="17 ranks are too many"):
        Blocks([one], 17, "")


def test_names_are_text_and_never_markup():
    wicked = "<b>&\"'</script>"
    block = Block(0, 0, 1, 1, 0, "s", wicked)
    story = Story([Column(wicked, 1, 1)], [Scene(wicked, {wicked: [(block,)]}, {wicked: wicked})])
    page = Blocks([story], 1, wicked, {wicked: [wicked]}).html()
    assert "<b>" not in page
    assert page.count("</script>") == 2  # of the data and of the script


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_stays_small_and_is_the_same_bytes_every_time(name):
    here = FIGURES[name]().html()
    assert len(here.encode()) < 60_000
    assert here.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    code = f"from collectives import blocks; print(blocks.{name}().html(), end='')"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", code]
    there = subprocess.run(command, env=environment, capture_output=True, check=True, encoding="utf-8")
    assert there.stdout == here


def test_it_is_stepped_by_keyboard_and_another_choice_tells_another_story(open_page):
    """At each step the announced text is the library's; keys in a box choose and do not step."""
    figure = blocks.by_axis(4)
    page = open_page(figure, blocks.gates(2), reduced_motion="reduce")
    player = page.locator("collective-player").first
    player.get_by_role("button", name="Forward").focus()
    for key, step in (("ArrowRight", 1), ("End", 3), ("ArrowLeft", 2), ("Home", 0), ("End", 3)):
        page.keyboard.press(key)
        assert player.get_attribute("data-step") == str(step)
        assert player.locator("[aria-live]").text_content() == figure.words[step]
    boxes = player.get_by_role("combobox")
    for number in (0, 5, 13, 26):
        for box, answer in zip(boxes.all(), (number // 9, number // 3 % 3, number % 3), strict=True):
            box.select_option(index=answer)
        assert player.get_attribute("data-step") == "3"
        said = figure.told(number)[3]
        assert player.locator("[aria-live]").text_content() == said
        assert player.get_by_role("img", name=said, exact=True).count() == 1
        assert player.locator(".frame.sends").count() == len(figure.stories[number].scenes[3].notes)
    boxes.first.focus()
    page.keyboard.press("ArrowUp")
    assert player.get_attribute("data-step") == "3"
    assert boxes.first.evaluate("box => box.selectedIndex") == 1
    assert page.locator("collective-player").nth(1).get_attribute("data-step") == "0"


def test_the_picture_holds_the_blocks_of_the_scene(open_page):
    """As many blocks of each kind as the library put there, at every step of every figure."""
    figures = [make() for make in FIGURES.values()]
    page = open_page(*figures, reduced_motion="reduce")
    for figure, player in zip(figures, page.locator("collective-player").all(), strict=True):
        for step, scene in enumerate(figure.stories[0].scenes):
            for kind in "sap":
                there = [b for rows in scene.contents.values() for content in rows for b in content if b.kind == kind]
                assert player.locator(f".stage > svg .block.{kind}").count() == len(there)
            if step < len(figure.words) - 1:
                player.get_by_role("button", name="Forward").click()


@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_the_page_and_no_text_leaves_the_picture(open_page, width):
    page = open_page(*(make() for make in FIGURES.values()), viewport={"width": width, "height": 800})
    for player in page.locator("collective-player").all():
        player.get_by_role("button", name="Last").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = page.evaluate(
        "[...document.querySelectorAll('.stage > svg')].flatMap((svg) => [...svg.querySelectorAll('text')].filter("
        "(text) => text.textContent && (text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1 || "
        "text.getBoundingClientRect().left < svg.getBoundingClientRect().left - 1)).map((text) => text.textContent))"
    )
    assert outside == []


def test_without_javascript_and_on_paper_there_is_the_still(open_page):
    figure = blocks.mlp()
    page = open_page(figure, java_script_enabled=False)
    assert page.get_by_role("img", name=figure.caption).bounding_box()["height"] > 100  # it has been decoded
    page.get_by_text("The steps in words").click()
    assert page.get_by_role("listitem").all_inner_texts() == [re.sub(r"\s+", " ", words) for words in figure.words]
    page = open_page(figure)
    page.emulate_media(media="print")
    assert page.locator(".still svg").is_visible()
    assert "step 4" in page.locator(".still svg text").all_text_contents()
