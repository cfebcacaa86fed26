"""The figure of blocks shows what `shardings` derives, says it, and can be stepped and chosen from by keyboard."""

import os
import re
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from pages import fits, texts_outside

from collectives import price, topology
from collectives.figures import blocks
from collectives.figures.blocks import (
    AXIS_NAMES,
    MESH_CUTS,
    MESH_SIZES,
    NOTHING,
    SIZES,
    SPLITS,
    WHOLE,
    Blocks,
    Column,
    Scene,
    Story,
    Tile,
)
from collectives.training import memory, traffic
from collectives.training.mesh import ALGORITHMS, Mesh, together
from collectives.training.shardings import derive, derive_pair, laid_out

FIGURES = {
    "by_axis": blocks.by_axis,
    "mlp": blocks.mlp,
    "gates": blocks.gates,
    "heads": blocks.heads,
    "cycle": blocks.cycle,
    "stages": blocks.stages,
    "mesh": blocks.mesh,
}
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
            f"Each rank sends {total / 1e6:,.1f} million elements in all." if total else "No rank sends anything."
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


GRID = Mesh(dp=2, tp=2)
ALONG = {  # what the layer calls, by how tp cuts W
    "inner": [("all-gather", "dp"), ("all-reduce", "tp"), ("all-gather", "dp"), ("reduce-scatter", "dp")],
    "columns": [("all-gather", "dp"), ("all-gather", "dp"), ("all-reduce", "tp"), ("reduce-scatter", "dp")],
}


@pytest.mark.parametrize("cut, number", [("inner", 0), ("columns", 1)])
def test_the_mesh_calls_fsdp_along_dp_and_one_all_reduce_along_tp(cut, number):
    """Forward where W is cut by rows, backward where by columns; nothing is said of an axis where nothing is sent."""
    assert list(MESH_CUTS.values())[number] == cut
    story = blocks.mesh().stories[number]
    assert [(note, scene.along) for scene in story.scenes for note in scene.notes.values()] == ALONG[cut]
    for scene in story.scenes:
        for note in scene.notes.values():
            assert scene.words.replace("Backward, dY has arrived. ", "").startswith(f"{note.capitalize()} along ")
            groups = " and among ".join(", ".join(map(str, group)) for group in GRID.groups(scene.along))
            assert f" along {scene.along}, among ranks {groups}" in scene.words
        assert bool(scene.along) == bool(scene.notes)


@pytest.mark.parametrize("cut, number", [("inner", 0), ("columns", 1)])
def test_the_bytes_on_the_mesh_are_those_of_the_schedules(cut, number):
    """What a rank sends in the ring, by the schedule's price, with a length for each axis of its own."""
    sizes = {"rows": 4096, "inner": 1024, "columns": 2048}
    story = blocks.mesh(sizes=sizes, itemsize=4).stories[number]
    shared = 4 * sizes["inner"] * sizes["columns"] // 2
    buffers = {"dp": shared, "tp": 4 * sizes["rows"] // 2 * sizes["columns" if cut == "inner" else "inner"]}
    total = {"dp": 0.0, "tp": 0.0}
    for scene in story.scenes:
        for note in scene.notes.values():
            algorithm = ALGORITHMS[note.replace("-", "_")]
            cost = price(together(GRID, scene.along, algorithm), buffers[scene.along], topology.uniform(4, 0, 1))
            assert len(set(cost.bytes_sent)) == 1
            total[scene.along] += cost.bytes_sent[0]
            assert re.search(rf"sends {cost.bytes_sent[0] / 1e6:,.1f} MB", scene.words)
    assert story.scenes[-1].words.endswith(
        f"in all {total['dp'] / 1e6:,.1f} MB along dp and {total['tp'] / 1e6:,.1f} MB along tp."
    )
    along_dp = [note.replace("-", "_") for note, axis in ALONG[cut] if axis == "dp"]
    assert along_dp == [collective for collective, _ in traffic.COLLECTIVES[3]]  # FSDP is stage 3 of ZeRO


def box(content):
    """The rows and the columns that a rank's blocks cover together."""
    corners = [(block.top, block.left, block.top + block.height, block.left + block.width) for block in content]
    top, left, bottom, right = (
        round(pick(edge)) for pick, edge in zip((min, min, max, max), zip(*corners, strict=True), strict=True)
    )
    assert sum(block.height * block.width for block in content) == (bottom - top) * (right - left)
    return slice(top, bottom), slice(left, right)


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_of_the_mesh_has_what_it_needs_and_makes_what_is_shown(number):
    """Numbers in place of blocks: the products of what a rank has are its slices, or the terms add up to its sums."""
    chance, size = np.random.default_rng(3), int(WHOLE)
    x, w, dy = (chance.standard_normal((size, size)) for _ in range(3))
    scenes = blocks.mesh().stories[number].scenes
    forward, back = scenes[2], scenes[6]

    def makes(scene, name, made, truth, axis):
        """`made`: each rank's product; the terms of a group along `axis` are summed."""
        for group in GRID.groups(axis):
            contents = [scene.contents[name][rank] for rank in group]
            terms = contents[0][0].kind == "p"
            for rank, content in zip(group, contents, strict=True):
                whole = sum(made[peer] for peer in group) if terms else made[rank]
                np.testing.assert_allclose(whole, truth[box(content)])

    def has(scene, name, full):
        return [full[box(scene.contents[name][rank])] for rank in range(4)]

    pairs = zip(has(scenes[1], "X", x), has(scenes[1], "W", w), strict=True)
    makes(forward, "Y", [a @ b for a, b in pairs], x @ w, "tp")
    before, gradients = has(scenes[5], "X", x), has(scenes[5], "Y", dy)
    pairs = zip(gradients, has(scenes[5], "W", w), strict=True)
    makes(back, "X", [d @ b.T for d, b in pairs], dy @ w.T, "tp")
    makes(back, "dW", [a.T @ d for a, d in zip(before, gradients, strict=True)], x.T @ dy, "dp")
    for name in ("W", "dW"):  # in the end each rank has its own quarter of both, and no two have the same
        content = scenes[-1].contents[name]
        assert content == scenes[0].contents["W"]
        assert sum(covered(each, (size, size)).astype(int) for each in content).tolist() == [[1] * size] * size
    assert not any(block.kind == "p" for name in "XY" for content in scenes[-1].contents[name] for block in content)


@pytest.mark.parametrize("grid", [Mesh(dp=4, tp=2), Mesh(dp=2, pp=2), Mesh(dp=4)])
def test_a_mesh_that_has_no_room_is_refused(grid):
    with pytest.raises(ValueError, match=f"of 2 ranks each, not {re.escape(repr(grid))}"):
        blocks.mesh(grid)
    with pytest.raises(ValueError, match=r"inner of .* do not divide among the 4 ranks"):
        blocks.mesh(sizes={**MESH_SIZES, "inner": 6})


def test_neighbours_on_the_mesh_are_joined_along_the_axis_that_communicates(open_page):
    """Ranks lie by their places, and at each step the joints of that axis alone are marked, with the collective."""
    figure = blocks.mesh()
    page = open_page(figure, reduced_motion="reduce")
    player = page.locator("collective-player")
    player.get_by_role("button", name="Forward").focus()
    homes = [home.bounding_box() for home in player.locator(".home").all()]
    assert homes[0]["y"] == homes[1]["y"] < homes[2]["y"] == homes[3]["y"]
    assert homes[0]["x"] == homes[2]["x"] < homes[1]["x"] == homes[3]["x"]
    for scene in figure.stories[0].scenes[1:]:
        page.keyboard.press("ArrowRight")
        assert player.locator("[aria-live]").text_content() == scene.words
        marked = [joint.bounding_box() for joint in player.locator(".joint.now").all()]
        assert len(marked) == (2 if scene.along else 0)
        assert all((joint["height"] > joint["width"]) == (scene.along == "dp") for joint in marked)
        said = [text for note in scene.notes.values() for text in (note, f"along {scene.along}")]
        assert player.locator(".stage > svg .note").all_text_contents() == said * 2
        assert player.locator(".frame.sends").count() == 4 * len(scene.notes)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_layer_s_life_under_fsdp_sends_what_stage_3_sends(world_size):
    """Two gathers and a scatter, by the words and by the formula of the traffic; what rests is a slice, always."""
    (story,) = blocks.cycle(world_size).stories
    assert notes(story) == ["all_gather", "all_gather", "reduce_scatter"]
    payloads = traffic.step(10**6, 3, itemsize=1)
    assert {name: notes(story).count(name) * 10**6 for name in notes(story)} == payloads
    sent = float(re.search(r"sent (\S+) times", story.scenes[-1].words)[1])
    assert sent == pytest.approx(traffic.sent(payloads, world_size) / 10**6)
    for scene in story.scenes:
        held = [covered(content, (4, 4)).mean() for content in scene.contents["state"]]
        assert held == [1 / world_size] * world_size
    assert story.scenes[0].contents == story.scenes[-1].contents
    first, gathered = (story.scenes[number].contents["W"][0] for number in (0, 1))
    assert len(first) == 1 and len(gathered) == world_size


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_the_stages_of_zero_cover_the_bytes_of_the_formula_and_no_part_is_lost(world_size):
    (story,) = blocks.stages(world_size).stories
    fields = {"weights": "parameters", "gradients": "gradients", "optimizer state": "optimizer"}
    for stage, scene in enumerate(story.scenes):
        rest = memory.at_rest(world_size, world_size, stage)
        assert scene.words.endswith(f"{rest.total / world_size:g} bytes a parameter.")
        for kind, contents in scene.contents.items():
            areas = [sum(block.height * block.width for block in content) / 2 for content in contents]
            assert areas == [getattr(rest, fields[kind]) / world_size] * world_size
            owners = {block.rank for content in contents for block in content if block.kind == "s"}
            assert owners in (set(), set(range(world_size)))
        called = {note.replace("-", "_") for note in scene.notes.values()}
        assert called == {collective for collective, _ in traffic.COLLECTIVES[stage]}


def test_what_does_not_fit_together_is_refused():
    columns = [Column("X", 1, 1)]
    one, two = Story(columns, [Scene("a", {})]), Story(columns, [Scene("a", {}), Scene("b", {})])
    with pytest.raises(ValueError, match="1 stories for 2 combinations"):
        Blocks([one], 2, "", {"which": ["this", "that"]})
    with pytest.raises(ValueError, match="equally many scenes"):
        Blocks([one, two], 2, "", {"which": ["this", "that"]})
    with pytest.raises(ValueError, match="17 ranks are too many"):
        Blocks([one], 17, "")


def test_names_are_text_and_never_markup():
    wicked = "<b>&\"'</script>"
    block = Tile(0, 0, 1, 1, 0, "s", wicked)
    story = Story([Column(wicked, 1, 1)], [Scene(wicked, {wicked: [(block,)]}, {wicked: wicked})])
    page = Blocks([story], 1, wicked, {wicked: [wicked]}).html()
    assert "<b>" not in page
    assert page.count("</script>") == 3  # of the data, of the player and of the picture


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_stays_small_and_is_the_same_bytes_every_time(name):
    here = FIGURES[name]().html()
    assert len(here.encode()) < 84_000  # of which the player is 20 kB; a page holds it once
    assert here.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    code = f"from collectives.figures import blocks; print(blocks.{name}().html(), end='')"
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
    assert fits(page)
    assert texts_outside(page) == []


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
