"""The network view moves every message in the time that `price` gives, and says what it shows."""

import gzip
import json
import math
import re
import subprocess
import sys
from itertools import combinations, product

import numpy as np
import pytest
from pages import STRICT_HEAD, fits, hold_time, letter_heights, texts_outside

from collectives import contracts, draw, topology
from collectives.algorithms import chain, flat, hierarchical, pairwise, rails, ring, tree
from collectives.algorithms.scorecard import ROWS
from collectives.figures.calculator import BYTES, Choice, Slider
from collectives.figures.colours import ALGORITHMS, IDLE, OPERATIONS, OTHERS, RANK_COLOURS, WRONG, luminance
from collectives.figures.network import Clock, Network
from collectives.figures.places import circle
from collectives.figures.slots import words
from collectives.figures.traffic import TICKS
from collectives.price import price, spans
from collectives.schedule import REDUCE, Schedule
from collectives.topology import Link

S = 800_000_000
BIG, SMALL = S, 8_000


def uniform(world_size):
    return topology.uniform(world_size, 10e-6, 0.1e-9, gamma=0.01e-9)


def nodes(num_nodes=2, ranks_per_nic=1, overlapped=True):
    inside, across = Link(5e-6, 1 / 450e9), Link(10e-6, 1 / 50e9)
    return topology.two_level(num_nodes, 4, inside, across, ranks_per_nic, overlapped=overlapped)


CASES = {
    "ring": (ring.all_reduce(8), uniform(8)),
    "tree": (tree.broadcast(8), uniform(8)),
    "flat": (flat.reduce(8), uniform(8)),
    "pairwise": (pairwise.all_to_all(4), uniform(4)),
    "rails": (rails.all_reduce(8, 4), nodes()),
    "two levels": (hierarchical.all_reduce(8, 4), nodes()),
    "shared NICs": (hierarchical.all_reduce(16, 4), nodes(4, ranks_per_nic=2, overlapped=False)),
}
TIMED = [pytest.param(schedule, on, id=name) for name, (schedule, on) in CASES.items()]


def view(name="ring", num_bytes=BIG, **more):
    schedule, on = CASES[name]
    return Network(schedule, on=on, num_bytes=num_bytes, **more)


@pytest.fixture
def page_head() -> str:
    return STRICT_HEAD


# --- time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_bytes", [BIG, SMALL])
@pytest.mark.parametrize(("schedule", "on"), TIMED)
def test_every_message_has_the_start_the_end_and_the_bytes_of_price(schedule, on, num_bytes):
    """Each message's parts add up to its span; the last one ends when the price says; the ticks are those times."""
    figure, cost = Network(schedule, on=on, num_bytes=num_bytes), price(schedule, num_bytes, on)
    priced = [row for span in spans(schedule, num_bytes, on) for row in zip(*span[1:], strict=True)]
    messages = figure.lane.messages
    assert [message.num_bytes for message in messages] == [moved for _, _, moved in priced]
    np.testing.assert_allclose([message.start for message in messages], [start for start, _, _ in priced])
    np.testing.assert_allclose([message.end for message in messages], [start + long for start, long, _ in priced])
    assert figure.seconds == figure.moments[-1] == pytest.approx(cost.seconds)
    (lane,) = figure.data()["lanes"]
    rows = [row for step in lane["steps"] for row in step]
    assert [row[2] for row in rows] == [round(message.start / figure.tick) for message in messages]
    sent = np.zeros(schedule.world_size)
    for link, size, *_ in rows:
        sent[lane["links"][link][0]] += lane["sizes"][size][0]
    assert (sent == cost.bytes_sent).all()


def test_a_message_waits_in_the_queue_until_the_root_has_taken_those_before():
    """All seven could leave at once; the root takes one every 88 ms, with what it takes to add."""
    messages = view("flat").lane.messages
    assert [message.ready for message in messages] == [0] * 7
    one = 10e-6 + S * 0.11e-9
    np.testing.assert_allclose([message.start for message in messages], [one * place for place in range(7)])


def test_two_ranks_that_share_a_nic_take_turns():
    """Across nodes, half of the messages wait as long as the other half's bytes take."""
    figure = view("shared NICs")
    across = [message for message in figure.lane.by_step[3] if message.src // 4 != message.dst // 4]
    waits = sorted({round((message.start - message.ready) / message.move, 3) for message in across})
    assert waits[0] == 0 and len(waits) == 2 and waits[1] >= 1


def test_idle_time_is_when_a_rank_neither_sends_nor_receives():
    lane = view("tree").lane
    step = lane.seconds / 3
    assert lane.idle(0) == []
    assert lane.idle(7) == [(0, pytest.approx(2 * step))]
    assert view("ring").data()["lanes"][0]["idle"] == [[]] * 8


@pytest.mark.parametrize(("seconds", "text"), {0.14014: "140 ms", 0.0701: "70.1 ms", 3.24e-5: "32.4 µs"}.items())
def test_the_clock_says_three_digits(seconds, text):
    assert Clock.of(seconds).say(seconds) == text
    assert Clock.of(seconds).say(0.0) == f"0 {text.split()[1]}"


# --- contents ---------------------------------------------------------------------------------------------------


def test_a_packet_is_in_the_colours_of_the_ranks_whose_data_it_carries():
    """In a ring's reduce-scatter, step s moves sums of s + 1 ranks; in its all-gather, sums of all."""
    sizes = [{message.ranks.bit_count() for message in step} for step in view("ring").lane.by_step]
    assert sizes == [{step + 1} for step in range(7)] + [{8}] * 7
    assert {message.ranks for message in view("tree").lane.messages} == {1}


RIGHT = [row.algorithm(size) for row in ROWS for size in (2, 4, 5) if row.takes(size)]


@pytest.mark.parametrize("schedule", RIGHT, ids=lambda schedule: f"{schedule.name} {schedule.world_size}")
def test_a_rank_s_progress_ends_at_100_percent_if_the_contract_promises_it_something(schedule):
    lane = Network(schedule).lane
    wanted = contracts.of(schedule).terms(schedule).wanted.any(axis=1)
    assert (lane.progress[-1] == np.where(wanted, 100, -1)).all()
    for rank in np.flatnonzero(wanted):
        got = [message.done for message in lane.messages if message.dst == rank]
        assert not got or got[-1] == 100


def test_a_message_that_breaks_the_contract_is_marked():
    steps = [list(step) for step in ring.all_reduce(4)]
    steps[3] = [transfer._replace(combine=REDUCE) for transfer in steps[3]]
    wrong = Schedule.of(4, 4, steps, name="one addition too many", collective="all_reduce")
    figure = draw(wrong, on=uniform, num_bytes=S).views["network"]
    marked = [[row[-1] == 1 and len(row) == 9 for row in step] for step in figure.data()["lanes"][0]["steps"]]
    assert marked == [[False] * 4] * 3 + [[True] * 4] + [[False] * 4] * 2
    assert figure.data()["alarms"] == [4, 6]
    assert "This is the step that goes wrong." in figure.words[4]


# --- places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 8, 16])
def test_neighbours_on_a_circle_are_equally_far_and_never_too_near(size):
    points = circle(size)
    gaps = [math.dist(points[rank], points[rank - 1]) for rank in range(size)] if size > 1 else [1]
    assert max(gaps) == pytest.approx(min(gaps)) and min(gaps) >= 0.999


def test_a_tree_has_its_root_on_top_and_each_child_below_its_parent():
    for schedule in (tree.broadcast(8, root=3), tree.reduce(13, root=3), tree.scatter(6), tree.all_reduce(8)):
        lane = Network(schedule).lane
        heights = [y for _, y in lane.places.points]
        assert heights.index(0) == (schedule.root or 0) and heights.count(0) == 1
        assert all(abs(heights[src] - heights[dst]) == pytest.approx(1.15) for src, dst in lane.pairs)
        assert len(set(lane.places.points)) == schedule.world_size


def test_by_default_a_ring_is_a_circle_a_broad_tree_is_a_tree_and_nodes_are_nodes():
    assert Network(ring.all_reduce(8)).lane.places.points == circle(8)
    assert Network(chain.broadcast(8)).lane.places.points == circle(8)  # a tree, but only deep
    assert Network(tree.broadcast(8)).lane.places.points != circle(8)
    assert len(view("rails").lane.places.boxes) == 2
    assert view("rails", places="circle").lane.places.points == circle(8)


def test_a_cube_has_twelve_edges_in_three_directions():
    places = Network(pairwise.all_to_all_xor(8), "cube").lane.places
    ends = [[float(number) for number in re.findall(r"-?[\d.]+", edge)] for edge in places.rails]
    assert len(ends) == 12
    assert len({(round(x - a, 2), round(y - b, 2)) for a, b, x, y in ends}) == 3
    assert places.names == ["000", "001", "010", "011", "100", "101", "110", "111"]


@pytest.mark.parametrize(("name", "per_nic"), [("rails", 1), ("shared NICs", 2)])
def test_ranks_are_inside_their_node_and_what_leaves_it_passes_the_nics(name, per_nic):
    """Each box holds its four ranks, each card is on a box's edge, and each way across touches both cards."""
    places = view(name).lane.places
    for rank, (x, y) in enumerate(places.points):
        left, top, wide, tall = places.boxes[rank // 4]
        assert left < x < left + wide and top < y < top + tall
    assert len(places.nics) == len(places.points) // per_nic
    for number, (x, y) in enumerate(places.nics):
        left, top, wide, tall = places.boxes[number * per_nic // 4]
        assert any(math.isclose(at, edge) for at, edge in ((x, left), (x, left + wide), (y, top + tall)))
    for (src, dst), way in places.ways.items():
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", way)]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        ends = [places.points[src], *(places.nics[rank // per_nic] for rank in (src, dst) if src // 4 != dst // 4)]
        assert all(min(math.dist(end, point) for point in points) < 0.2 for end in ends)


def test_a_link_is_as_thick_as_its_bandwidth():
    """Inside a node 450 GB/s, across 50: a ninth, but never too thin to see."""
    lane = view("two levels").data()["lanes"][0]
    widths = {src // 4 != dst // 4: width for src, dst, _, width in lane["links"]}
    assert widths == {False: 6, True: 1.5}
    assert {width for *_, width in view("ring").data()["lanes"][0]["links"]} == {3}


# --- words ------------------------------------------------------------------------------------------------------


def test_the_words_are_those_of_the_slots_with_the_step_s_time():
    figure, told = view("ring"), words(ring.all_reduce(8))
    assert figure.words[0] == f"{told[0]} The whole takes 147 ms."
    assert figure.words[2] == f"From 11 to 22 ms, s{told[2][1:]}"
    assert figure.caption == "Ring all-reduce, 8 ranks, 800 MB"


def test_without_a_topology_the_words_say_who_sends_to_whom():
    said = Network(pairwise.all_to_all_xor(4), "cube").words
    assert said[3] == (
        "Step 2 (3 of 3): Ranks 0 and 3, 1 and 2 swap. The two numbers of each pair differ by the mask 3, in binary 11."
    )
    assert Network(tree.broadcast(4)).words[2].endswith("Data goes from rank 0 to rank 1 and rank 2 to rank 3.")


@pytest.mark.parametrize(
    ("make", "said"),
    {
        lambda: draw(ring.all_gather(6), on=uniform, num_bytes=S, places="cube"): "a cube takes 2, 4 or 8 ranks, not 6",
        lambda: draw(ring.all_gather(4), on=uniform, num_bytes=S, places="star"): "one of 'circle', .* not 'star'",
        lambda: draw(ring.all_gather(4), on=uniform, num_bytes=S, places="nodes"): "takes a topology with ranks_per_n",
        lambda: draw(ring.all_gather(4), on=uniform, num_bytes=S, places="tree"): "don't form a tree",
        lambda: draw(ring.all_gather(17), on=uniform, num_bytes=S): "at most 16 ranks",
        lambda: draw(ring.all_gather(4), on=uniform(5), num_bytes=S): "is for 4 ranks, the topology for 5",
        lambda: draw(ring.all_gather(4), on=uniform): "needs num_bytes",
        lambda: draw(ring.all_gather(4), num_bytes=S): "needs on=",
        lambda: draw(ring.all_gather(4), places="line"): "needs on=",
        lambda: draw({"a": ring.all_gather(4), "b": tree.reduce(4)}): "a race needs a topology",
        lambda: draw({"a": ring.all_gather(4)}, on=uniform, num_bytes=S): "two or three schedules, not 1",
        lambda: draw({"a": tree.reduce(4), "b": tree.reduce(8)}, on=uniform, num_bytes=S): r"as many .* not \[4, 8\]",
    }.items(),
)
def test_what_cannot_be_drawn_says_what_to_do(make, said):
    with pytest.raises(ValueError, match=said):
        make()


# --- a race -----------------------------------------------------------------------------------------------------


def race(num_bytes=SMALL):
    return draw({"ring": ring.all_reduce(8), "tree": tree.all_reduce(8)}, on=uniform, num_bytes=num_bytes)


def test_a_race_ends_as_the_prices_say():
    """The tree wins with few bytes, the ring with many; the last words name the winner and the ratio."""
    for num_bytes, winner, loser in ((SMALL, "tree", "ring"), (BIG, "ring", "tree")):
        figure = race(num_bytes)
        costs = {"ring": ring.all_reduce(8), "tree": tree.all_reduce(8)}
        seconds = {title: price(schedule, num_bytes, uniform(8)).seconds for title, schedule in costs.items()}
        lanes = {lane["title"]: lane for lane in figure.data()["lanes"]}
        for title, lane in lanes.items():
            assert lane["finish"] == pytest.approx(seconds[title] / max(seconds.values()) * TICKS, abs=1)
        ratio = f"{seconds[loser] / seconds[winner]:.2f}"
        assert figure.words[-1].endswith(f"{winner.capitalize()} wins; {loser} takes {ratio} times as long.")
        assert len(figure.words) == len(figure.moments) and figure.moments == sorted(figure.moments)


# --- the page ---------------------------------------------------------------------------------------------------


def both(name="ring", num_bytes=BIG):
    schedule, on = CASES[name]
    return draw(schedule, on=on, num_bytes=num_bytes)


def test_a_figure_stays_small_and_is_the_same_bytes_every_time():
    """With both views, scripts and still: a tenth of a page; the data of one schedule alone, a fortieth."""
    sizes = Slider("num_bytes", "S", [8_000, 800_000, 80_000_000], 8_000)
    ways = Choice("make", "algorithm", {"ring": ring.all_reduce, "tree": tree.all_reduce}, "ring")
    family = draw(lambda make: make(8), on=uniform, inputs=[ways, sizes])
    assert len(gzip.compress(both().html().encode())) < 23_000
    assert len(gzip.compress(both("rails").html().encode())) < 33_000
    assert len(gzip.compress(json.dumps(both().packed()).encode())) < 5_000
    assert len(gzip.compress(family.html().encode())) < 40_000
    code = "from test_network_view import both; print(both().html(), end='')"
    environment = {"PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": "tests:tests/library:."}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    here = both().html()
    assert done.stdout.decode() == here
    assert here.replace("http://www.w3.org/2000/svg", "").count("http") == 0 and " id=" not in here


def test_one_tap_switches_to_the_slots_and_the_step_stays(open_page):
    page = open_page(both("tree"), reduced_motion="reduce")
    player, figure = page.locator("collective-player"), both("tree")
    page.get_by_role("button", name="Forward").click()
    assert page.locator(".stage > svg .lane").count() == 1
    page.get_by_role("radio", name="slots").check()
    assert page.locator(".stage > svg .cell").count() == 8 and page.locator(".stage > svg .lane").count() == 0
    assert player.get_attribute("data-step") == "1"
    page.get_by_role("radio", name="network").check()
    assert page.locator("[aria-live]").text_content() == figure.words[1]


def test_after_a_step_an_arrow_for_each_message_shows_what_it_moved(open_page):
    """Without motion, each step is there at once: its arrows, its time, and its words."""
    figure = both("ring")
    page = open_page(figure, reduced_motion="reduce")
    for number, step in enumerate(figure.views["network"].lane.by_step, start=1):
        page.get_by_role("button", name="Forward").click()
        assert page.locator(".packets .tip").first.get_attribute("d").count("z") == len(step)
        assert page.locator("[aria-live]").text_content() == figure.words[number]
    assert page.locator(".time").text_content() == "147 ms of 147 ms"


IN_SIGHT = "document.querySelector('collective-player').picture.parts[0].shown.length"  # of packets


def test_packets_move_between_steps_and_stop_where_the_reader_pauses(open_page):
    page = open_page(both("ring"))
    hold_time(page)
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(300)
    assert page.evaluate(IN_SIGHT) == 8
    page.get_by_role("button", name="Pause").click()
    stopped = page.locator(".time").text_content()
    page.clock.run_for(300)
    assert page.locator(".time").text_content() == stopped
    assert 0 < float(stopped.split()[0]) < 147
    page.get_by_role("button", name="Last").click()
    assert page.locator(".time").text_content() == "147 ms of 147 ms"


def test_who_presses_forward_while_packets_move_gets_to_the_next_step_at_once(open_page):
    page = open_page(both("ring"))
    player = page.locator("collective-player")
    player.locator(".stage").focus()
    hold_time(page)  # no motion ends by itself
    for step in "123":
        page.keyboard.press("ArrowRight")
        assert player.get_attribute("data-step") == step


def test_the_timeline_seeks_and_keys_work_after_a_click_on_the_picture(open_page):
    """A press on the timeline moves the clock there; a click on the network goes a step on; then arrows step."""
    page = open_page(both("ring"), reduced_motion="reduce", viewport={"width": 1000, "height": 900})
    player, bar = page.locator("collective-player"), page.locator(".bar").nth(8 * 3 + 2).bounding_box()
    page.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + 4)
    assert player.get_attribute("data-step") == "4"
    assert 33 < float(page.locator(".time").text_content().split()[0]) < 44
    assert page.evaluate(IN_SIGHT) == 8
    page.keyboard.press("ArrowRight")  # to the end of the step
    assert page.locator(".time").text_content().startswith("44 ms")
    box = page.locator(".lane").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert player.get_attribute("data-step") == "5"
    page.keyboard.press("ArrowLeft")
    assert player.get_attribute("data-step") == "4"


def test_pointing_at_a_bar_names_its_message(open_page):
    page = open_page(both("ring"), reduced_motion="reduce", viewport={"width": 1000, "height": 900})
    page.locator(".bar").nth(8 * 2 + 3).hover()
    assert page.locator(".quiet", has_text="rank 3").text_content() == "rank 3 → rank 4, chunk 0, 100 MB, 22 to 33 ms"
    assert page.locator(".bar.hot").count() == 1


def test_pointing_at_a_packet_names_its_message(open_page):
    """Packets are no elements of their own: the picture knows where they are."""
    page = open_page(both("ring"), reduced_motion="reduce", viewport={"width": 1000, "height": 900})
    page.get_by_role("button", name="Forward").click()
    box = page.locator(".stage > svg").bounding_box()
    x, y, src = page.evaluate(
        "(({ x, y, message }) => [x, y, message.src])"
        "(document.querySelector('collective-player').picture.parts[0].shown[3])"
    )
    page.mouse.move(box["x"] + x, box["y"] + y)
    assert page.locator(".quiet", has_text=f"rank {src} →").count() == 1
    assert page.locator(".hull.hot:not(.wrong)").last.get_attribute("d").startswith("M")
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    assert not page.locator(".hull.hot:not(.wrong)").last.get_attribute("d")


@pytest.mark.parametrize("width", [360, 760, 1280])
@pytest.mark.parametrize("figure", [*CASES, "race"])
def test_it_fits_every_width(open_page, figure, width):
    page = open_page(race() if figure == "race" else both(figure), viewport={"width": width, "height": 900})
    page.wait_for_function("document.querySelector('.stage > svg').viewBox.baseVal.width > 200")
    assert fits(page)
    assert texts_outside(page) == []
    assert min(letter_heights(page)) >= 7.99  # pixels: 8, less what the browser rounds


def test_slow_is_a_fifth_of_the_pace_and_says_so(open_page):
    page = open_page(both("ring"))
    assert page.locator("text.quiet.end").first.text_content() == "1 s here = 20 ms"
    page.get_by_role("button", name="slow").click()
    assert page.locator("text.quiet.end").first.text_content() == "1 s here = 4 ms"
    assert page.get_by_role("button", name="slow", pressed=True).count() == 1


def test_a_family_keeps_the_title_of_each_figure(open_page):
    sizes = Slider("num_bytes", "S", [8_000, 800_000_000], 8_000, BYTES)
    page = open_page(draw(lambda: ring.all_reduce(8), on=uniform, inputs=[sizes]))
    assert page.locator(".top strong").text_content() == "Ring all-reduce, 8 ranks, 8 kB"
    page.get_by_role("radio", name="800 MB").check()
    assert page.locator(".top strong").text_content() == "Ring all-reduce, 8 ranks, 800 MB"
    assert page.get_by_role("group", name="view").count() == 1


def test_a_race_shows_each_time_when_it_is_over(open_page):
    page = open_page(race(), reduced_motion="reduce")
    assert page.locator(".lane .title").all_text_contents() == ["ring", "tree"]
    page.get_by_role("button", name="Last").click()
    assert page.locator(".lane .title").all_text_contents() == ["ring: 141 µs", "tree: 65 µs"]


def test_without_javascript_and_on_paper_there_is_the_still(open_page):
    for figure in (both("rails"), race()):
        page = open_page(figure, java_script_enabled=False)
        assert page.get_by_role("img", name=figure.caption).bounding_box()["height"] > 40
        page = open_page(figure)
        page.emulate_media(media="print")
        assert page.locator("input:visible, button:visible").count() == 0
        assert page.locator(".still svg text").first.is_visible()


# --- colours ----------------------------------------------------------------------------------------------------


def test_every_meaning_has_a_colour_of_its_own_and_lines_differ_in_dash_too():
    for family in (RANK_COLOURS, [line.colour for line in ALGORITHMS.values()]):
        assert len(set(family)) == len(family)
    assert len({line.dash for line in ALGORITHMS.values()}) == len(ALGORITHMS)
    assert set(OPERATIONS) >= {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}


SIGHT = {  # what a colour of linear RGB looks like; the last two from Machado, Oliveira and Fernandes (2009)
    "usual": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


def place(colour, sight="usual"):
    """Where a colour lies in OKLab, in which equal distances look equally large."""
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    long, medium, short = np.cbrt(
        np.array([[0.41222, 0.53633, 0.05145], [0.2119, 0.6807, 0.1074], [0.0883, 0.28172, 0.62998]])
        @ np.clip(SIGHT[sight] @ linear, 0, 1)
    )
    return np.array(
        [
            0.21045 * long + 0.79362 * medium - 0.00407 * short,
            1.978 * long - 2.42859 * medium + 0.45059 * short,
            0.0259 * long + 0.78277 * medium - 0.80868 * short,
        ]
    )


def nearest(colours, others, sight="usual"):
    return min(
        np.linalg.norm(place(one, sight) - place(other, sight)) for one, other in zip(colours, others, strict=True)
    )


def test_no_operation_looks_like_a_rank_or_an_algorithm_nor_like_another_operation_in_any_sight():
    operations = [*OPERATIONS.values(), *OTHERS, IDLE]
    pairs = list(product(operations, [*RANK_COLOURS, *(line.colour for line in ALGORITHMS.values())]))
    assert nearest(*zip(*pairs, strict=True)) > 0.035
    pairs = list(combinations(OPERATIONS.values(), 2))
    assert all(nearest(*zip(*pairs, strict=True), sight) > 0.05 for sight in SIGHT)


@pytest.mark.parametrize("colour", [*(line.colour for line in ALGORITHMS.values()), WRONG])
@pytest.mark.parametrize("ground", ["#fdfdfb", "#14171c"])
def test_a_line_contrasts_three_to_one_with_the_light_and_the_dark_page(colour, ground):
    light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3
