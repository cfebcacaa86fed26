"""The figure of timelines shows and says what the timelines hold, and a real browser can step and scrub through it."""

import os
import subprocess
import sys

import pytest
from pages import fits, hold_time, letter_heights, texts_outside, wait_until_laid_out

from collectives import draw
from collectives.algorithms import ring
from collectives.figures.gantt import KINDS, MAX_LANES, PATTERNS, TICKS
from collectives.training.timeline import COMMUNICATION, Layer, Span, Timeline, data_parallel, run, sharded

LAYERS = [Layer(2e-3, 4e-3, 100)] * 4


def fsdp(prefetch: int) -> Timeline:
    return run(sharded(LAYERS, lambda _: 3e-3, lambda _: 2e-3, 1e-3, prefetch))


def four_ranks() -> Timeline:
    """As a recording by a clock that began long ago: 4 ranks, each with two lanes, no two alike."""
    spans = []
    for rank in range(4):
        for layer in range(3):
            start = 1000 + layer * 1.0 + rank * 0.1
            spans.append(Span(f"layer {layer}", "compute", start, 1, "forward", f"rank {rank}"))
            spans.append(Span(f"bucket {layer}", "communication", start + 1, 0.5, "all_reduce", f"rank {rank}"))
    return Timeline.measured(spans)


BOTH = {"no prefetch": fsdp(0), "prefetch": fsdp(1)}


def test_moments_are_those_at_which_something_begins_or_ends():
    """Two layers, one bucket: every edge is a step, once; the words follow the spans."""
    step = run(data_parallel([Layer(1e-3, 2e-3, 1)] * 2, [[1, 0]], lambda _: 3e-3, 1e-3))
    figure = draw(step, caption="One bucket")
    assert figure.moments == [0, 10_000, 20_000, 40_000, 60_000, 90_000, TICKS]
    assert figure.words == [
        "The whole: 10 ms, communication 3 ms, exposed 3 ms.",
        "At 0 ms (step 1 of 7): forward 0 begins; running: forward 0; idle: communication.",
        "At 1 ms (step 2 of 7): forward 0 ends, forward 1 begins; running: forward 1; idle: communication.",
        "At 2 ms (step 3 of 7): forward 1 ends, backward 1 begins; running: backward 1; idle: communication.",
        "At 4 ms (step 4 of 7): backward 1 ends, backward 0 begins; running: backward 0; idle: communication.",
        "At 6 ms (step 5 of 7): backward 0 ends, all-reduce 0 begins; running: all-reduce 0; idle: compute; "
        "communication is exposed.",
        "At 9 ms (step 6 of 7): all-reduce 0 ends, optimizer begins; running: optimizer; idle: communication.",
        "At 10 ms (step 7 of 7): optimizer ends; all done.",
    ]
    assert repr(figure).startswith("One bucket\nThe whole: 10 ms")


def test_several_timelines_share_the_axis_and_the_steps():
    """The axis is the longest one's; each sentence tells each timeline by its title."""
    figure = draw(BOTH)
    assert figure.caption == "no prefetch and prefetch"
    assert figure.seconds == BOTH["no prefetch"].seconds
    assert all(" No prefetch: " in text and " Prefetch: " in text for text in figure.words)
    titles = {"async_op=False": fsdp(0), "prefetch": fsdp(1)}
    assert " async_op=False: " in draw(titles).words[0]  # code stays as it is
    ends = [
        max(bar[1] for group in chart["groups"] for lane in group["lanes"] for bar in lane["bars"])
        for chart in figure.data()["charts"]
    ]
    assert ends == [TICKS, figure.tick(BOTH["prefetch"].seconds)]


def test_the_player_s_data_is_the_timeline():
    """Every span has its bar, in its lane, with its kind; what is exposed is what the timeline says."""
    timeline = four_ranks()
    figure = draw(timeline)
    (chart,) = figure.data()["charts"]
    texts = [kind[0] for kind in figure.data()["kinds"]]
    told = {
        (group["name"], lane["name"], name, texts[kind].replace("-", "_"), start, end)
        for group in chart["groups"]
        for lane in group["lanes"]
        for start, end, kind, name in lane["bars"]
    }
    assert told == {(s.group, s.lane, s.name, s.kind, figure.tick(s.start), figure.tick(s.end)) for s in timeline.spans}
    exposed = sum(until - start for group in chart["groups"] for start, until in group["exposed"])
    assert exposed / TICKS * timeline.seconds == pytest.approx(timeline.exposed, rel=1e-3)
    assert "layer 1 of rank 2" in " ".join(figure.words)  # names that occur twice are told with their owner


def test_times_are_written_out():
    """In the unit of the axis, to three digits, never as a power of ten."""
    for seconds, said in ((1234.0, "1230 s"), (0.9999e-3, "1000 µs"), (2.5e-3, "2.5 ms"), (3e-9, "3 ns")):
        assert draw(Timeline((Span("work", "compute", 0, seconds),))).words[0] == f"The whole: {said}."


def test_a_row_bears_the_name_of_its_rank_where_each_rank_has_one_lane():
    """A pipeline's chart: no line is spent on a heading for each rank; in words an operation is told with its rank."""
    spans = [Span("F0", "compute", rank, 1, "forward", f"rank {rank}") for rank in range(3)]
    figure = draw(Timeline(tuple(spans)))
    groups = figure.data()["charts"][0]["groups"]
    assert [(group["name"], group["lanes"][0]["name"]) for group in groups] == [("", f"rank {r}") for r in range(3)]
    assert "F0 of rank 0 ends, F0 of rank 1 begins" in figure.words[2]


def test_where_nothing_communicates_each_wait_is_hatched_and_its_share_told():
    """From the beginning to the end of the whole, between the spans of a lane, whatever their order."""
    busy = {"rank 0": [(4, 2), (0, 2)], "rank 1": [(1, 3), (1, 1)]}
    spans = [Span(f"F{at}", "compute", at, long, "forward", rank) for rank, parts in busy.items() for at, long in parts]
    figure = draw(Timeline(tuple(spans)))
    idle = [row["lanes"][0]["idle"] for row in figure.data()["charts"][0]["groups"]]
    seconds = [[[round(6 * tick / TICKS, 3) for tick in gap] for gap in gaps] for gaps in idle]
    assert seconds == [[[2, 4]], [[0, 1], [4, 6]]]
    assert figure.words[0] == "The whole: 6 s, idle 42%." and ">idle</text>" in figure.still_svg()
    assert not any(lane["idle"] for group in draw(BOTH).data()["charts"][0]["groups"] for lane in group["lanes"])


def test_what_is_too_near_to_be_told_apart_is_one_moment():
    """Clocks of several ranks never agree: 20 ranks that begin within a thousandth of the whole begin together."""
    spans = [Span(f"work {rank}", f"rank {rank}", 1e-6 * rank, 1.0) for rank in range(20)]
    figure = draw(Timeline(tuple(spans)))
    assert len(figure.moments) == 2
    assert "work 7 and 12 more begin; 20 of 20 lanes are busy" in figure.words[1]


def test_communication_has_patterns_and_computing_has_none():
    """Colour is never the only sign; every kind of communication has a look, and no two share colour and pattern."""
    assert {kind for kind, (_, pattern) in KINDS.items() if PATTERNS[pattern]} == COMMUNICATION
    assert len(set(KINDS.values())) == len(KINDS)


def test_kinds_of_one_s_own_have_colours_of_their_own():
    """A chart by microbatch: eight kinds that nobody has heard of, eight colours."""
    spans = [Span(f"F{i}", "stage 0", i, 1, f"microbatch {i}") for i in range(8)]
    kinds = draw(Timeline(tuple(spans))).data()["kinds"]
    assert [kind[0] for kind in kinds] == [f"microbatch {i}" for i in range(8)]
    assert len({kind[1] for kind in kinds}) == 8


def test_what_cannot_be_drawn_says_what_to_do():
    nothing = Timeline((Span("none", "compute", 0, 0),))
    for empty in (nothing, Timeline(()), {}):
        with pytest.raises(ValueError, match="nothing to draw"):
            draw(empty)
    with pytest.raises(TypeError, match="draw takes a Schedule, a Timeline"):
        draw({"a list": [1, 2]})
    for other in (3, [1, 2]):
        with pytest.raises(TypeError, match="draw takes a Schedule, a Timeline"):
            draw(other)
    many = Timeline(tuple(Span("work", f"lane {i}", 0, 1) for i in range(MAX_LANES + 1)))
    with pytest.raises(ValueError, match=r"timeline\.only"):
        draw(many)


def test_a_figure_stays_small_and_is_the_same_bytes_every_time():
    """Below 50 kB with script, data, still and words; no host, no id, and another process writes the same."""
    here = draw(BOTH).html()
    assert len(here.encode()) < 50_000
    assert here.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    assert " id=" not in here
    code = "import test_gantt as t; print(t.draw(t.BOTH).html(), end='')"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": "tests:tests/library",
    }
    command = [sys.executable, "-c", code]
    there = subprocess.run(command, env=environment, capture_output=True, check=True, encoding="utf-8")
    assert there.stdout == here


def test_names_are_text_and_never_markup():
    """What a profiler calls its events goes into the page as it is."""
    wicked = "aten::<b>&\"'</script>"
    page = draw(Timeline((Span(wicked, "<i>", 0, 1),)), caption="<u>").html()
    assert not [tag for tag in ("<b>", "<i>", "<u>", "'</script>") if tag in page]


def test_it_is_stepped_by_keyboard_beside_a_figure_of_another_kind(open_page):
    """At each step the announced text is the library's, and outlined is what is under way; the other stays put."""
    figures = draw(ring.all_reduce(4)), draw(BOTH)
    page = open_page(*figures, reduced_motion="reduce")
    player, said = page.locator("collective-player").nth(1), figures[1].words
    player.get_by_role("button", name="Forward").focus()
    last = len(said) - 1
    keys = [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("ArrowRight", last), ("Home", 0)]
    for key, step in keys + [("ArrowRight", step) for step in range(1, last + 1)]:
        page.keyboard.press(key)
        assert player.get_attribute("data-step") == str(step)
        assert player.locator("[aria-live]").text_content() == said[step]
        assert player.get_by_role("img", name=said[step], exact=True).count() == 1
        under_way = [b for bars in figures[1].bars.values() for b in bars if b.first <= step - 1 < b.last]
        later = [b for bars in figures[1].bars.values() for b in bars if b.first > step - 1]
        assert player.locator(".now").count() == (len(under_way) if step else 0)
        assert player.locator(".later").count() == (len(later) if step else 0)
    assert page.locator("collective-player").first.get_attribute("data-step") == "0"
    assert player.get_by_role("slider").get_attribute("aria-valuetext") == figures[1].time(BOTH["no prefetch"].seconds)
    assert player.locator(".legend li").all_text_contents() == [
        *("forward", "backward", "optimizer", "all-gather", "reduce-scatter"),
        "communication while nothing computes: exposed",
    ]


def test_the_cursor_is_scrubbed(open_page):
    """A press on the picture goes to the last moment before it, dragging goes on, and nothing happens without."""
    figure = draw(BOTH)
    page = open_page(figure, viewport={"width": 1000, "height": 800})
    player = page.locator("collective-player")
    box = player.locator(".stage > svg").bounding_box()
    left = min(mark.bounding_box()["x"] for mark in player.locator(".stage > svg .span").all())
    width = box["x"] + box["width"] - 14 - left  # of the axis: the picture's margin is 14 pixels
    y = box["y"] + box["height"] / 2

    def move_after(step: int) -> None:
        """To between the moment of `step` and the next."""
        page.mouse.move(left + sum(figure.moments[step - 1 : step + 1]) / 2 / TICKS * width, y)

    move_after(12)
    assert player.get_attribute("data-step") == "0"
    page.mouse.down()
    assert player.get_attribute("data-step") == "12"
    move_after(20)
    assert player.get_attribute("data-step") == "20"
    page.mouse.up()
    move_after(5)
    assert player.get_attribute("data-step") == "20"


def test_a_micro_batch_is_followed_over_the_ranks(open_page):
    """Pointing at a bar of a pipeline leaves the bars of its micro-batch alone as they are; elsewhere nothing fades."""
    names = [["F0", "F1", "B0", "B1"], ["F0 of stage 1", "&B0 of stage 1", "F1 of stage 1", "F10 of stage 1"]]
    spans = [
        Span(name, name[0], at, 1, group=f"rank {r}") for r, row in enumerate(names) for at, name in enumerate(row)
    ]
    page = open_page(draw(Timeline(spans)), draw(BOTH))
    pipeline, other = page.locator("collective-player").all()
    bars = pipeline.locator(".stage > svg .span")
    assert "point at a bar to follow its micro-batch" in pipeline.locator(".legend").inner_text()
    assert "micro-batch" not in other.locator(".legend").inner_text()
    for name, followed in (
        ("F1", {"F1", "B1", "F1 of stage 1"}),
        ("&B0 of stage 1", {"F0", "B0", "F0 of stage 1", "&B0 of stage 1"}),
    ):
        bars.and_(page.locator(f'[data-name="{name}"]')).hover()
        unfaded = bars.and_(page.locator(":not(.other)")).evaluate_all("all => all.map((each) => each.dataset.name)")
        assert set(unfaded) == followed
    page.mouse.move(1, 1)
    assert bars.and_(page.locator(".other")).count() == 0
    other.locator(".stage > svg .span").first.hover()
    assert page.locator(".stage > svg .other").count() == 0


def test_play_goes_to_the_end_and_moves_the_cursor_unless_the_reader_asked_for_no_motion(open_page):
    for motion, moving in (("no-preference", 1), ("reduce", 0)):
        page = open_page(draw(BOTH), reduced_motion=motion)
        hold_time(page)
        player = page.locator("collective-player")
        player.get_by_role("button", name="Play").click()
        page.clock.run_for(2000)
        assert player.locator(".cursor.moving").count() == moving
        page.clock.run_for(60_000)
        assert player.get_attribute("data-step") == str(len(draw(BOTH).words) - 1)
        assert player.get_by_role("button", name="Play").count() == 1


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_it_fits_the_page_and_is_readable_at_every_width(open_page, width):
    """No scrolling to the side; letters keep their size; no text leaves the picture."""
    nameless = draw({"every hour": Timeline([Span("training", "", 0, 3600, "forward")])}, caption="A job, one lane")
    figures = draw(BOTH), draw(four_ranks(), caption="Four ranks"), nameless
    page = open_page(*figures, viewport={"width": width, "height": 800})
    wait_until_laid_out(page)
    assert fits(page)
    assert min(letter_heights(page)) > 10
    assert texts_outside(page) == []


def test_without_javascript_and_on_paper_there_is_the_still(open_page):
    figure = draw(BOTH)
    page = open_page(figure, java_script_enabled=False)
    assert page.get_by_role("img", name=figure.caption).bounding_box()["height"] > 100  # it has been decoded
    page.get_by_text("The steps in words").click()
    assert page.get_by_role("listitem").all_inner_texts() == figure.words
    page = open_page(figure)
    page.emulate_media(media="print")
    assert page.locator(".still svg").is_visible()
    assert not page.get_by_role("button", name="Play").is_visible()
    assert "exposed communication" in page.locator(".still svg text").all_text_contents()
