"""The figure says what `dataflow` says, in the same bytes every time, and a real browser can step through it."""

import os
import subprocess
import sys

import numpy as np
import pytest
from pages import hold_time

from collectives import contracts
from collectives.algorithms import halving_doubling, hierarchical, pairwise, ring, tree
from collectives.algorithms.scorecard import ROWS
from collectives.dataflow import contributions, live
from collectives.draw import draw
from collectives.figures.colours import RANK_COLOURS
from collectives.figures.slots import KINDS, MAX_RANKS, frames, words
from collectives.figures.still import Still
from collectives.schedule import REDUCE, Schedule, ScheduleError

RIGHT = [
    *(row.algorithm(size) for row in ROWS for size in (2, 4, 5) if row.takes(size)),
    *(make(size, root=1) for make in (tree.broadcast, tree.reduce, tree.scatter, tree.gather) for size in (2, 4, 5)),
    pairwise.all_to_all_uneven([[1, 2, 0], [3, 1, 4], [2, 2, 2]]),
]
STEPS_OF_RING = 6


def name_of(schedule: Schedule) -> str:
    return f"{schedule.name} {schedule.world_size}"


def wrong_ring() -> Schedule:
    """A ring all-reduce that goes on adding for one step too long, in step 3."""
    steps = [list(step) for step in ring.all_reduce(4)]
    steps[3] = [transfer._replace(combine=REDUCE) for transfer in steps[3]]
    return Schedule.of(4, 4, steps, name="one addition too many", collective="all_reduce")


@pytest.mark.parametrize("schedule", RIGHT, ids=name_of)
def test_frames_hold_what_the_contributions_say(schedule):
    """Frame by frame, a figure shows exactly the counts of `dataflow`, and the player's data says the same."""
    figure = draw(schedule)
    slots = list(figure.data()["first"])
    changes = [{}, *(step["changed"] for step in figure.data()["steps"])]
    for frame, contents, changed in zip(figure.frames, contributions(schedule), changes, strict=True):
        assert (frame.counts == contents.ranks).all()
        for slot, text in changed.items():
            slots[slot] = text
        for (rank, chunk), kind in np.ndenumerate(frame.kinds):
            text = slots[rank * schedule.num_chunks + chunk]
            assert text[0] == kind[0]
            held = np.flatnonzero(contents.ranks[rank, chunk]).tolist()
            assert kind == "empty" or sorted({int(digit, 16) for digit in text[1:]}) == held


@pytest.mark.parametrize("schedule", RIGHT, ids=name_of)
def test_a_right_schedule_ends_finished_where_the_contract_wants_it_and_never_wrong(schedule):
    """Kinds follow the contract: wanted slots end finished, no others are, and nothing is ever called wrong."""
    told = frames(schedule)
    assert ((told[-1].kinds == "finished") == contracts.of(schedule).terms(schedule).wanted).all()
    assert not any((frame.kinds == "wrong").any() for frame in told)


@pytest.mark.parametrize("schedule", RIGHT, ids=name_of)
def test_a_slot_is_stale_when_it_has_data_that_nobody_will_read(schedule):
    """Stale means written, or given at first, and not live."""
    terms = contracts.of(schedule).terms(schedule)
    written = terms.given.copy()
    for frame, needed in zip(frames(schedule), live(schedule, terms.wanted), strict=True):
        if frame.step is not None:
            written[frame.step.dst, frame.step.chunk] = True
        assert ((frame.kinds == "stale") == (written & ~needed)).all()
        assert ((frame.kinds == "empty") == ~written).all()


def test_every_reduce_scatter_step_of_a_ring_makes_one_slot_a_rank_stale():
    """On 4 ranks: after s of the 3 reduce-scatter steps, s slots a rank are stale; the all-gather refills them."""
    stale = [(frame.kinds == "stale").sum(axis=1).tolist() for frame in frames(ring.all_reduce(4))]
    assert stale == [[count] * 4 for count in (0, 1, 2, 3, 2, 1, 0)]


def test_a_broadcast_begins_empty_but_for_the_root():
    """What the other ranks' buffers hold before a broadcast is nothing, not "their own input"."""
    first = frames(tree.broadcast(4, root=2))[0]
    assert first.kinds[:, 0].tolist() == ["empty", "empty", "finished", "empty"]


def test_without_a_contract_nothing_is_judged():
    """A schedule of one's own that names no collective has no finished and no wrong slots, and is still drawn."""
    nameless = Schedule.of(2, 1, [[(0, 1, 0, REDUCE)], [(0, 1, 0, REDUCE)]])
    kinds = {str(kind) for frame in frames(nameless) for kind in frame.kinds.ravel()}
    assert kinds == {"own", "partial"}
    assert draw(nameless).fault is None


def test_a_wrong_schedule_is_drawn_with_the_step_that_did_it_and_the_error_as_its_last_words():
    """The figure marks every slot that ends wrong, accuses the contract error's step, and ends with its message."""
    schedule = wrong_ring()
    with pytest.raises(contracts.ContractError) as error:
        contracts.all_reduce.check(schedule)
    figure = draw(schedule)
    assert ((figure.frames[-1].kinds == "wrong") == error.value.wrong).all()
    assert not any((frame.kinds == "wrong").any() for frame in figure.frames[:4])  # up to step 3 all is well
    assert (figure.frames[4].kinds == "wrong").sum() == 4
    assert figure.words[-1].endswith(str(error.value))
    assert [text.endswith("goes wrong.") for text in figure.words].index(True) == 4
    assert figure.data()["alarms"] == [4, 6]
    blamed = [[move[5] for move in step["moves"]] for step in figure.data()["steps"]]
    assert blamed == [[0] * 4, [0] * 4, [0] * 4, [1] * 4, [0] * 4, [0] * 4]


def test_a_superfluous_step_is_not_called_wrong_when_the_promise_is_kept():
    """One more addition, to slots that nobody wants, spoils nothing that anybody will read."""
    steps = [*ring.reduce_scatter(4), [(0, 1, 3, REDUCE)]]
    figure = draw(Schedule.of(4, 4, steps, name="one too many", collective="reduce_scatter"))
    assert not any((frame.kinds == "wrong").any() for frame in figure.frames)
    assert "wrong" not in " ".join(figure.words)


def test_the_words_say_who_sends_what_to_whom():
    """One text a state; a few transfers are told one by one, alike ones in one sentence, long lists are cut."""
    said = words(tree.reduce(4))
    assert len(said) == 3
    assert said[1].startswith(
        "Step 0 (1 of 2), reduce: Rank 1 sends chunk 0 to rank 0, which adds it and now holds ranks 0 and 1."
    )
    assert (
        "Every rank sends one chunk to the next rank, which adds it: chunk 3 from rank 0,"
        in words(ring.all_reduce(4))[1]
    )
    assert "chunk 6 from rank 7 and 8 more." in words(ring.all_gather(16))[2]
    assert all("_" not in text for text in words(ring.all_reduce(4)))


@pytest.mark.parametrize(
    "schedule, step, says",
    [
        (
            halving_doubling.reduce_scatter(8),
            0,
            "swaps 4 chunks with a partner (0 with 4, 1 with 5, 2 with 6 and 3 with 7)",
        ),
        (
            halving_doubling.reduce_scatter(8),
            0,
            "gets: chunks 4 to 7 from each of ranks 0 to 3, chunks 0 to 3 from each",
        ),
        (
            hierarchical.all_reduce(6, 3),
            0,
            "2 chunks to the next rank in its group of 3, which adds them: chunks 4 and 5",
        ),
        (
            pairwise.all_gather(5),
            0,
            "each of the other ranks; each receiver keeps copies: the chunk with the sender's number",
        ),
        (
            ring.all_reduce_bidirectional(5),
            1,
            "each neighbour; each receiver adds what it gets: the chunk with the receiver's number",
        ),
        (
            pairwise.all_to_all_xor(4),
            2,
            "(0 with 3 and 1 with 2) and keeps what it gets: the chunk with the receiver's",
        ),
    ],
)
def test_a_step_in_which_all_ranks_do_the_same_is_told_in_one_sentence(schedule, step, says):
    assert says in words(schedule)[1 + step]
    assert "move and are" not in words(schedule)[1 + step]


def test_what_cannot_be_drawn_says_what_to_do():
    """Too many ranks, chunks or steps, or a schedule that cannot be run: an error, at once, in words."""
    for schedule in (ring.all_reduce(17), ring.all_reduce(2**14), Schedule(2, 65, lambda: ())):
        with pytest.raises(ValueError, match="fewer ranks"):
            draw(schedule)
    with pytest.raises(ValueError, match="at most 128 steps"):
        draw(Schedule.of(2, 1, [[(0, 1, 0)]] * 129))
    with pytest.raises(ScheduleError, match="itself"):
        draw(Schedule(2, 1, lambda: Schedule.of(2, 1, [[(0, 1, 0), (1, 1, 0)]])))


def test_a_figure_stays_small():
    """The page pays for every byte: below 45 kB at 4 ranks and below 90 kB at 8, with script, data and still."""
    assert len(draw(ring.all_reduce(4)).html().encode()) < 45_000
    assert len(draw(wrong_ring()).html().encode()) < 46_000
    assert len(draw(ring.all_reduce(8)).html().encode()) < 90_000
    assert len(draw(ring.all_reduce(16)).html().encode()) < 132_000


def test_a_figure_is_the_same_bytes_every_time_and_asks_no_host():
    """Notebooks are compared cell by cell: two calls agree, and so does another process with other hash seeds."""
    here = draw(ring.all_reduce(4)).html()
    assert draw(ring.all_reduce(4)).html() == here
    code = (
        "from collectives.draw import draw; from collectives.algorithms import ring; "
        "print(draw(ring.all_reduce(4)).html(), end='')"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"}
    there = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert there.stdout == here
    assert here.replace("http://www.w3.org/2000/svg", "").count("http") == 0  # the one address is SVG's own name
    assert " id=" not in here  # several figures on a page must not share an id


def test_two_figures_on_a_page_are_stepped_by_keyboard_each_for_itself(open_page):
    """Arrows, Home and End step; at every step the announced text is `words(schedule)[step]`; the other stays put."""
    schedules = ring.all_reduce(4), wrong_ring()
    page = open_page(*map(draw, schedules), reduced_motion="reduce")
    for index, schedule in enumerate(schedules):
        player, said = page.locator("collective-player").nth(index), words(schedule)
        live_text = player.locator("[aria-live]")
        player.get_by_role("button", name="Forward").focus()
        there = [("ArrowRight", step) for step in range(1, STEPS_OF_RING + 1)]
        back = [("ArrowLeft", step) for step in range(STEPS_OF_RING - 1, -1, -1)]
        ends = [("End", STEPS_OF_RING), ("ArrowRight", STEPS_OF_RING), ("Home", 0), ("ArrowLeft", 0)]
        assert live_text.inner_text() == said[0]
        for key, step in there + back + ends:
            page.keyboard.press(key)
            assert player.get_attribute("data-step") == str(step)
            assert live_text.text_content() == said[step]
            assert player.get_by_role("img", name=said[step]).count() == 1
    assert page.locator("collective-player").first.get_attribute("data-step") == "0"


def test_buttons_slider_and_play_step_too(open_page):
    """Every control does what its label says; playing goes on to the end by itself and stops there."""
    schedule = tree.broadcast(4)
    page = open_page(draw(schedule), reduced_motion="reduce")
    hold_time(page)
    player = page.locator("collective-player")
    for label, step in (("Forward", 1), ("Last", 2), ("Back", 1), ("First", 0)):
        player.get_by_role("button", name=label, exact=True).click()
        assert player.get_attribute("data-step") == str(step)
        assert player.locator("[aria-live]").text_content() == words(schedule)[step]
    player.get_by_role("slider").fill("2")
    assert player.get_attribute("data-step") == "2"
    player.get_by_role("slider").focus()
    page.keyboard.press("Space")  # plays, from the start again
    assert player.get_attribute("data-step") == "1"
    assert player.get_by_role("button", name="Pause").count() == 1
    page.clock.run_for(6000)
    assert player.get_attribute("data-step") == "2"
    assert player.get_by_role("button", name="Play").count() == 1


def test_chips_move_unless_the_reader_asked_for_no_motion(open_page):
    """A step forward sends a chip a transfer on its way, and then shows the new state; with reduced motion at once."""
    arrived = "collective-player .stage > svg .f"
    for motion, chips in (("no-preference", 1), ("reduce", 0)):
        page = open_page(draw(tree.broadcast(4)), reduced_motion=motion)
        page.get_by_role("button", name="Forward").click()
        assert page.locator(".chip").count() == chips
        page.wait_for_function(f"document.querySelectorAll('{arrived}').length === 2")
        assert page.locator(".chip").count() == 0


def test_a_player_survives_being_moved_and_copied(open_page):
    """Notebooks move outputs about and pages are saved while they play: the step is kept, a copy starts afresh."""
    page = open_page(draw(tree.broadcast(4)), reduced_motion="reduce")
    page.get_by_role("button", name="Forward").click()
    page.evaluate(
        "document.body.prepend(document.createElement('main')); "
        "document.querySelector('main').append(document.querySelector('collective-player'))"
    )
    assert page.locator("collective-player").get_attribute("data-step") == "1"
    page.evaluate("document.body.append(document.querySelector('collective-player').cloneNode(true))")
    copy = page.locator("collective-player").nth(1)
    assert copy.locator(".stage").count() == 1
    copy.get_by_role("button", name="Last").click()
    assert [page.locator("collective-player").nth(i).get_attribute("data-step") for i in (0, 1)] == ["1", "2"]


def test_without_javascript_there_is_the_still(open_page):
    """A picture of every step and the words, no control that would do nothing, and no file or host asked for."""
    figure = draw(tree.broadcast(4))
    page = open_page(figure, java_script_enabled=False)
    picture = page.get_by_role("img", name=figure.caption)
    assert picture.bounding_box()["height"] > 40  # of the picture, not of its name: it has been decoded
    page.get_by_text("The steps in words").click()
    assert page.get_by_role("listitem").all_inner_texts() == figure.words
    assert page.get_by_role("button").count() == 0


def test_on_paper_there_is_the_still_in_the_page_s_own_ink(open_page):
    """Printing shows every step, whichever one the player had reached, and hides the controls."""
    page = open_page(draw(tree.broadcast(4)))
    page.emulate_media(media="print")
    titles = page.locator(".still svg text").all_text_contents()
    assert [title for title in titles if len(title) > 1] == ["before", "step 0", "step 1"]
    ink = "getComputedStyle(document.querySelector('.still svg text')).fill"
    assert page.evaluate(f"document.body.style.color = 'rgb(1, 2, 3)'; {ink}") == "rgb(1, 2, 3)"
    assert not page.get_by_role("button", name="Play").is_visible()


def test_the_still_of_a_long_schedule_shows_some_of_it_and_the_fault_always():
    """Small schedules are shown whole; long ones by first, last and some between, and by the step that goes wrong."""
    assert Still(draw(ring.all_reduce(4))).shown() == list(range(7))
    assert Still(draw(ring.all_reduce(16))).shown() == [0, 15, 30]
    steps = [list(step) for step in ring.all_reduce(8)]
    steps[9] = [transfer._replace(combine=REDUCE) for transfer in steps[9]]
    broken = draw(Schedule.of(8, 8, steps, collective="all_reduce"))
    assert broken.fault.step + 1 in Still(broken).shown()


def test_every_rank_has_its_own_colour_and_every_kind_its_own_letter():
    """The player's data tells kinds apart by their first letter, and ranks by colour."""
    assert len(set(RANK_COLOURS)) == MAX_RANKS
    assert len({kind[0] for kind in KINDS}) == len(KINDS)
