"""The Lab in a real browser: puzzles can be solved by mouse, touch and keyboard, and bad input does no harm."""

import gzip
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import audit
import pytest
from lab_solutions import SOLUTIONS
from pages import fits, hold_time

import collectives
from collectives import Schedule, contracts, lab, machines, price, topology
from collectives.algorithms import doubling, halving_doubling, hierarchical, pairwise, rails, ring, tree
from collectives.algorithms.scorecard import ROWS
from collectives.figures.lab import LabElement, notation, puzzles
from collectives.figures.network import Race
from collectives.figures.player import asset
from collectives.figures.slots import Drawing
from collectives.formats.address import to_fragment
from collectives.formats.json import to_json
from collectives.topology import Link

PUZZLES = {puzzle["id"]: puzzle for puzzle in puzzles()}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LAB = "document.querySelector('collective-lab')"


@pytest.fixture
def page_head():
    """A page that is as wide as the phone, as the book's pages are."""
    return "<meta charset=utf-8><meta name=viewport content='width=device-width'><title>the Lab</title>"


@pytest.fixture
def open_lab(open_page):
    """A function that opens the Lab with the fragment of an address, or without one."""

    def opened(given="v=1&puzzle=broadcast-4", **settings):
        page = open_page(LabElement(given), **{"viewport": {"width": 1280, "height": 900}, **settings})
        page.wait_for_function(f"{LAB}.schedule")
        return page

    return opened


def slot(page, rank, chunk=0):
    """The button over a slot."""
    return page.get_by_role("button", name=re.compile(f"^rank {rank}, chunk {chunk}:"))


def wait_until_kept(page):
    """Waits for what the Lab does 400 ms after a change, however slow the machine is."""
    page.wait_for_function(f"!{LAB}.saving")


def verdict(page):
    """What the Lab says of the schedule."""
    return page.locator(".verdict .head").inner_text()


def status(page):
    """What the Lab said last."""
    return page.locator(".status").inner_text()


def text_of(page):
    """The schedule in the text field."""
    return page.get_by_role("textbox").first.input_value()


# --- puzzles ---


@pytest.mark.parametrize("puzzle", PUZZLES.values(), ids=PUZZLES)
def test_a_puzzle_s_target_is_reached_by_its_solution(puzzle):
    """Proved, counted and priced by Python; the Lab's own verdict is tested below."""
    schedule = solution(puzzle)
    contracts.BY_NAME[puzzle["contract"]].check(schedule)
    limits, steps = puzzle["limits"], list(schedule)
    assert len(steps) <= limits.get("steps", len(steps))
    sent = [sum(t.count for step in steps for t in step if t.src == rank) for rank in range(schedule.world_size)]
    assert max(sent) <= limits.get("sent", max(sent))
    ports = puzzle.get("ports", 1) or len(sent)
    for step in steps:
        for end in ("src", "dst"):
            ranks = [getattr(t, end) for t in step]
            assert all(ranks.count(rank) <= ports for rank in ranks)
            assert not puzzle.get("busy") or len(set(ranks)) == schedule.world_size
        assert not puzzle.get("single") or all(t.count == 1 for t in step)
        assert all({t.src, t.dst} in map(set, puzzle["wires"]) for t in step) if "wires" in puzzle else True


def solution(puzzle):
    """The repository's solution of a puzzle."""
    sizes = puzzle["ranks"], puzzle["chunks"]
    return Schedule.parse(SOLUTIONS[puzzle["id"]], *sizes, collective=puzzle["contract"], root=puzzle.get("root"))


def test_the_two_nodes_of_the_puzzle_are_the_running_case_s_and_the_ring_is_twice_as_slow():
    puzzle = PUZZLES["two-nodes"]
    near, far = machines.RUNNING_CASE.links()
    on = {"link": [near.alpha, near.beta], "across": [far.alpha, far.beta], "perNode": 2, "overlapped": True}
    assert puzzle["on"] == on
    machine = topology.two_level(2, 2, near, far, overlapped=True)
    best = price(solution(puzzle), puzzle["bytes"], machine).seconds
    others = [row.algorithm(4) for row in ROWS] + [rails.all_reduce(4, 2), hierarchical.all_reduce(4, 2)]
    rivals = [price(other, puzzle["bytes"], machine).seconds for other in others if other.collective == "all_reduce"]
    assert best <= puzzle["limits"]["seconds"] < min(rivals) * 1.01
    assert price(ring.all_reduce(4), puzzle["bytes"], machine).seconds > 2 * puzzle["limits"]["seconds"]


def test_the_page_calls_every_solution_solved_and_no_start(open_lab):
    page = open_lab()
    judged = """([puzzle, text]) => { const Lab = CollectiveLab, start = Lab.startOf(puzzle);
        const met = (schedule) => Lab.judge(puzzle, schedule, Lab.check(schedule)).map(([, met]) => met);
        return [met({...start, steps: Lab.parseSteps(text)}), met(start)]; }"""
    for name, puzzle in PUZZLES.items():
        solved, started = page.evaluate(judged, [puzzle, SOLUTIONS[name]])
        assert all(solved), name
        assert not all(started), name


def test_a_rule_that_is_broken_is_named(open_lab):
    page = open_lab()
    another = "Use another step: press “Next step”."
    cases = {
        ("broadcast-4", "0:0→1 0:0→2\n0:0→3"): f"In step 0, rank 0 already sends one message. {another}",
        ("reduce-4", "0:1→0+ 0:3→0+ 0:2→3+"): f"In step 0, rank 0 already receives one message. {another}",
        ("all-gather-4", "0:0→2"): "There is no cable between ranks 0 and 2.",
        ("pipeline-4", "0-1:0→2"): "0-1:0→2 carries 2 chunks; here a message carries one.",
        ("all-to-all-4", "1:0→1:0 0:1→0:1"): "No rank is idle (now rank 2 in step 0 and 1 more)",
    }
    judged = """([puzzle, text]) => { const Lab = CollectiveLab;
        const schedule = {...Lab.startOf(puzzle), steps: Lab.parseSteps(text)};
        return Lab.judge(puzzle, schedule, Lab.check(schedule)).filter(([, met]) => !met).map(([text]) => text); }"""
    for (name, text), words in cases.items():
        assert words in page.evaluate(judged, [PUZZLES[name], text])


def test_puzzles_have_a_target_three_hints_and_a_chapter():
    assert len(PUZZLES) == 20
    assert SOLUTIONS.keys() == PUZZLES.keys()
    for puzzle in PUZZLES.values():
        assert len(puzzle["hints"]) == 3 and puzzle["limits"] and puzzle["best"] and puzzle["why"]
        assert re.fullmatch(r"0[1-7]_\w+", puzzle["page"])
    assert {puzzle["page"][:2] for puzzle in PUZZLES.values()} == {f"0{chapter}" for chapter in range(1, 8)}


def test_the_published_bug_is_right_on_gpu_0_only():
    puzzle = PUZZLES["fix-two-shot"]
    broken = Schedule.parse(puzzle["start"], 3, 3)
    with pytest.raises(contracts.ContractError) as error:
        contracts.all_reduce.check(broken)
    assert error.value.wrong.any(axis=1).tolist() == [False, True, True]


# --- building ---


def test_the_first_puzzle_is_solved_by_dragging(open_lab):
    page = open_lab()
    assert "Drag from one slot to another" in status(page)
    slot(page, 0).drag_to(slot(page, 1))
    assert status(page).startswith("Step 0: rank 0 sends chunk 0 to rank 1, which keeps a copy.")
    slot(page, 0).drag_to(slot(page, 2))
    assert status(page) == "In step 0, rank 0 already sends one message. Use another step: press “Next step”."
    page.get_by_role("button", name="Next step").click()
    page.wait_for_function(f"{LAB}.at === 1")
    slot(page, 0).drag_to(slot(page, 2))
    slot(page, 1).drag_to(slot(page, 3))
    assert verdict(page).startswith("Solved.")
    assert text_of(page) == "step 0: 0:0→1\nstep 1: 0:0→2  0:1→3"
    assert "1 of 20 solved" in page.locator(".sheet").inner_text()


def test_a_drag_right_after_next_step_counts(open_lab):
    page = open_lab("v=1&puzzle=broadcast-4&steps=0:0~1")
    page.get_by_role("button", name="Next step").click()
    slot(page, 0).drag_to(slot(page, 2))
    assert text_of(page) == "step 0: 0:0→1\nstep 1: 0:0→2"
    wait_until_kept(page)
    assert page.evaluate(f"{LAB}.at") == 1
    assert status(page).startswith("Step 1: rank 0 sends chunk 0 to rank 2")


def test_next_step_pressed_twice_goes_two_steps(open_lab):
    page = open_lab("v=1&puzzle=broadcast-4&steps=0:0~1;0:0~2,0:1~3")
    page.get_by_role("button", name="Next step").dblclick()
    page.wait_for_function(f"{LAB}.at === 2")


def test_the_first_puzzle_is_solved_by_tapping_on_a_phone(open_lab):
    page = open_lab(**PHONE, reduced_motion="reduce")
    taps = [slot(page, 0), slot(page, 1), page.get_by_role("button", name="Next step")]
    for tapped in [*taps, *(slot(page, rank) for rank in (0, 2, 1, 3))]:
        tapped.tap()
    assert verdict(page).startswith("Solved.")
    assert fits(page)


def test_the_first_puzzle_is_solved_from_the_keyboard(open_lab):
    page = open_lab(reduced_motion="reduce")
    slot(page, 0).focus()
    press = page.keyboard.press
    for key in ("Enter", "ArrowRight", "Enter", "PageDown"):
        press(key)
    assert page.evaluate(f"{LAB}.at") == 1
    for key in ("ArrowLeft", "Space", "ArrowRight", "ArrowRight", "Space"):
        press(key)
    for key in ("ArrowLeft", "Enter", "End", "Enter"):
        press(key)
    assert verdict(page).startswith("Solved.")
    press("Control+z")
    assert verdict(page).startswith("3 of 4 slots")
    press("Control+y")
    assert verdict(page).startswith("Solved.")
    press("Delete")
    assert status(page).startswith("Taken back.")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("rank 3, chunk 0: nothing yet")


def test_what_can_t_be_is_refused_in_a_sentence(open_lab):
    page = open_lab()
    slot(page, 1).drag_to(slot(page, 2))
    assert status(page) == "Rank 1 has nothing in chunk 0 yet, so it can't send it."
    slot(page, 0).drag_to(slot(page, 1))
    slot(page, 1).drag_to(slot(page, 2))
    assert status(page) == "Rank 1 gets chunk 0 only at the end of this step. Press “Next step” to send it on."
    assert text_of(page) == "step 0: 0:0→1"


def test_a_solved_puzzle_moves_nothing_and_says_so_beside_the_board(open_lab):
    low = {**PHONE, "viewport": {"width": 390, "height": 480}}  # the verdict is below it
    page = open_lab("v=1&puzzle=broadcast-4&steps=0:0~2;0:0~1", **low, reduced_motion="reduce")
    page.get_by_role("button", name="Next step").tap()
    slot(page, 2).tap()
    before = slot(page, 2).bounding_box(), page.evaluate("scrollY")
    slot(page, 3).tap()
    assert verdict(page).startswith("Solved.")
    assert (slot(page, 2).bounding_box(), page.evaluate("scrollY")) == before
    assert status(page).startswith("Solved. Step 1: rank 2 sends")
    assert 0 <= page.locator(".status").bounding_box()["y"] < before[0]["y"]


def test_no_goal_is_ticked_before_the_contract_is_met(open_lab):
    page = open_lab("v=1&puzzle=reduce-scatter-3&steps=0:1~2%2B,1:2~0%2B,2:0~1%2B")
    goals = page.locator(".goals li")
    assert goals.all_inner_texts() == ["At most 2 steps (now 1)", "A rank sends at most 2 chunks (now 1)"]
    assert page.locator(".goals .met").count() == 0
    page.evaluate("text => document.querySelector('collective-lab').typed(text)", SOLUTIONS["reduce-scatter-3"])
    assert page.locator(".goals .met").count() == 2


def test_a_right_result_over_the_limit_is_not_called_proved(open_lab):
    page, words = open_lab("v=1&puzzle=reduce-4&steps=0:1~0%2B;0:2~0%2B"), "at most 2 steps (now 3)."
    page.get_by_role("button", name="new step").click()
    slot(page, 3).drag_to(slot(page, 0))
    assert verdict(page) == f"The result is right, but the puzzle isn't solved: {words}"
    assert status(page).endswith(verdict(page))
    assert page.locator(".goals .missed").inner_text() == "At most 2 steps (now 3)"
    page.get_by_role("button", name="Undo").click()
    assert page.locator(".goals .missed").count() == 0


def test_a_solved_puzzle_looks_solved_beside_the_board_and_next_step_says_so_again(open_lab):
    page = open_lab("v=1&puzzle=sum-2&steps=0:0~1%2B", **PHONE, reduced_motion="reduce")
    assert status(page) == "Press “Play” to see these steps, or change them."
    slot(page, 1).tap()
    slot(page, 0).tap()
    assert page.locator(".status.solved").inner_text().startswith("Solved. Step 0: rank 1 sends")
    for _ in range(2):
        page.get_by_role("button", name="Next step").tap()
    assert page.locator(".status.solved").inner_text().strip() == "Solved."
    page.get_by_role("button", name="Undo").tap()
    assert page.locator(".status.solved").count() == 0


def test_the_keyboard_s_first_visit_to_the_board_tells_the_keys(open_lab):
    page = open_lab()
    page.get_by_role("button", name="Puzzles").focus()
    page.keyboard.press("Tab")
    assert status(page).startswith("The arrow keys move.")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert status(page) == "Rank 1 has nothing in chunk 0 yet, so it can't send it."


def test_slots_that_must_end_finished_say_so(open_lab):
    page = open_lab("v=1&puzzle=reduce-scatter-3")
    marked = page.get_by_role("button", name=re.compile("must end finished"))
    assert [each.get_attribute("aria-label")[:15] for each in marked.all()] == [
        f"rank {rank}, chunk {rank}" for rank in range(3)
    ]


def test_the_signs_and_names_on_the_board_are_whole_on_a_phone(open_lab):
    page = open_lab("v=1&puzzle=reduce-scatter-3", **PHONE)
    right = """Math.max(...[...document.querySelectorAll('.board svg text')]
        .filter((text) => text.textContent.startsWith('chunk')).map((text) => text.getBoundingClientRect().right))"""
    left = "document.querySelector('.board .goal').getBoundingClientRect().left"
    assert page.evaluate(right) < page.evaluate(left)


def test_after_the_last_hint_the_button_says_so(open_lab):
    page = open_lab()
    for name in ("A hint", "Next hint", "Next hint"):
        page.get_by_role("button", name=name).click()
    assert page.get_by_role("button", name="No more hints").is_disabled()


def test_the_main_actions_are_few_tabs_away(open_lab):
    page = open_lab("v=1&puzzle=broadcast-4&steps=0:0~1;0:0~2,0:1~3")
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    slot(page, 0).focus()
    found = []
    while not found or found[-1] != "Next puzzle" or found.count("Next puzzle") < 2:
        page.keyboard.press("Tab")
        found.append(page.evaluate(focused))
        assert len(found) < 10
    assert found == ["step 0", "Next step", "Puzzle", "Previous puzzle", "Next puzzle", "A hint", "Next puzzle"]
    page.get_by_role("button", name="step 0", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == "step 1"
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    assert page.evaluate(focused) == "new step"
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(focused) == "new step"


def test_paper_has_the_board_the_verdict_and_the_schedule(open_lab):
    page = open_lab("v=1&puzzle=broadcast-4&steps=0:0~1;0:0~2,0:1~3")
    page.emulate_media(media="print")
    assert page.locator("pre.paper").inner_text() == "step 0: 0:0→1\nstep 1: 0:0→2  0:1→3"
    for shown in (".board svg", ".verdict .head", ".task"):
        assert page.locator(shown).first.is_visible(), shown
    assert page.get_by_role("button").all_inner_texts() == ["step 0"]  # which the board shows
    page.evaluate(f"{LAB}.show('race')")
    for shown in (".outcome", ".race .stage > svg", ".curve svg", ".race table"):
        assert page.locator(shown).first.is_visible(), shown


def test_a_browser_without_storage_is_reported_to_screen_readers(open_lab):
    page = open_lab()
    line = page.get_by_role("status").filter(has_text="can't store anything")
    assert line.count() == 0
    page.evaluate("Storage.prototype.setItem = function () { throw new Error('full'); }; null")
    slot(page, 0).drag_to(slot(page, 1))
    line.wait_for()


def test_a_refusal_is_visible_beside_the_board_on_a_phone_and_looks_like_one(open_lab):
    page = open_lab("v=1&puzzle=scatter-4", **PHONE)
    slot(page, 1, 3).scroll_into_view_if_needed()
    slot(page, 1, 3).tap()
    line = page.locator(".status.wrong")
    assert line.inner_text() == "Rank 1 has nothing in chunk 3 yet, so it can't send it."
    top = line.bounding_box()["y"]
    assert 0 <= top < slot(page, 1, 3).bounding_box()["y"]
    slot(page, 0, 3).tap()
    assert page.locator(".status.wrong").count() == 0


def test_steps_are_moved_inserted_deleted_and_taken_back(open_lab):
    page = open_lab("v=1&ranks=3&chunks=1&contract=broadcast&root=0&steps=0:0~1;0:1~2")
    press = lambda name: page.get_by_role("button", name=name, exact=True).click()  # noqa: E731
    press("step 1")
    press("Move earlier")
    assert text_of(page) == "step 0: 0:1→2\nstep 1: 0:0→1"
    press("Insert a step")
    assert text_of(page) == "step 0:\nstep 1: 0:1→2\nstep 2: 0:0→1"
    press("Delete the step")
    press("Undo")
    press("Undo")
    press("Undo")
    assert text_of(page) == "step 0: 0:0→1\nstep 1: 0:1→2"
    assert verdict(page) == "Proved: broadcast, for every input."


def test_adjacent_chunks_travel_together_and_combine_as_the_contract_wants(open_lab):
    page = open_lab("v=1&ranks=2&chunks=3&contract=all_reduce")
    for chunk in (1, 0, 2):
        slot(page, 0, chunk).drag_to(slot(page, 1, chunk))
    assert text_of(page) == "step 0: 0-2:0→1+"
    page.get_by_role("button", name="0-2:0→1+ adds; switch").click()
    assert text_of(page) == "step 0: 0-2:0→1"
    page.get_by_role("button", name="Take back 0-2:0→1").click()
    assert text_of(page) == ""


def test_a_drag_in_a_sum_adds_and_says_why_if_it_copies(open_lab):
    swaps = "0:0~1+,0:1~0+,0:2~3+,0:3~2+"
    page = open_lab("v=1&puzzle=all-reduce-4&steps=0:0~1+,0:1~2+,0:2~3+,0:3~0+", reduced_motion="reduce")
    page.get_by_role("button", name="Next step").click()
    slot(page, 0).drag_to(slot(page, 1))
    assert text_of(page).endswith("step 1: 0:0→1+")
    assert "holds rank 0 twice" in page.locator(".verdict").inner_text()
    page.evaluate(f"{LAB}.open('v=1&puzzle=fold-6&steps={swaps}')")
    page.get_by_role("button", name="Next step").click()
    slot(page, 0).drag_to(slot(page, 1))
    assert status(page).startswith(
        "Step 1: rank 0 sends chunk 0 to rank 1, which keeps a copy, because adding would count ranks 0 and 1 twice."
    )


def test_what_is_typed_or_pasted_is_read_or_refused_and_nothing_is_lost(open_lab):
    page = open_lab("v=1&ranks=4&chunks=4&contract=all_reduce")
    field, trouble = page.get_by_role("textbox").first, page.locator(".typing .trouble")
    field.fill("0:0->1+\n0:1>2")
    assert page.evaluate(f"CollectiveLab.printAll({LAB}.schedule)") == "step 0: 0:0→1+\nstep 1: 0:1→2"
    field.fill("0:0->1+\n0:1>9")
    assert "step 1: 0:1→9 has dst 9, but the ranks are 0 to 3" in trouble.inner_text()
    assert page.evaluate(f"CollectiveLab.printAll({LAB}.schedule)") == "step 0: 0:0→1+\nstep 1: 0:1→2"
    field.fill(to_json(ring.all_reduce(4)))
    assert verdict(page) == "Proved: all-reduce, for every input."
    assert trouble.inner_text() == ""
    paste = """([node, size]) => { const data = new DataTransfer(); data.setData("text", "x".repeat(size));
        return node.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, cancelable: true})); }"""
    assert page.evaluate(paste, [field.element_handle(), 10_000_000]) is False
    assert trouble.inner_text() == "The text that you pasted has 10,000,000 characters; the Lab reads 200,000."
    assert verdict(page) == "Proved: all-reduce, for every input."


# --- sharing ---


@pytest.mark.parametrize(
    "schedule",
    [ring.all_reduce(4), tree.scatter(5, root=3), pairwise.all_to_all(4), Schedule.parse("", 2, 1, name="né “x” & y")],
    ids=lambda schedule: schedule.name,
)
def test_a_schedule_opens_in_the_lab_and_comes_back_as_a_link_and_as_python(open_lab, schedule):
    page = open_lab(lab(schedule).given)
    assert text_of(page).split() == notation_lines(schedule)
    again = page.evaluate(f"CollectiveLab.toFragment({LAB}.schedule)")
    assert again == to_fragment(schedule)
    found = {}
    exec(page.evaluate(f"CollectiveLab.toPython({LAB}.schedule)"), found)
    copied = found["schedule"]
    assert notation(copied) == notation(schedule)
    names = ("name", "collective", "root", "world_size", "num_chunks")
    assert [getattr(copied, name) for name in names] == [getattr(schedule, name) for name in names]


def notation_lines(schedule):
    return [word for number, step in enumerate(schedule) for word in ("step", f"{number}:", *map(str, step))]


BAD_FRAGMENTS = {
    "v=1&ranks=4&ranks=5&chunks=1": 'The address has the field "ranks" twice.',
    "hello": 'The address has "hello" after the #; its parts look like ranks=4.',
    "v=2&ranks=4": 'The address has version "2"; this page reads version 1.',
    "v=1&puzzle=chess": 'There is no puzzle "chess".',
    "v=1&ranks=4": "The address lacks the field 'chunks'.",
    "v=1&ranks=1e9&chunks=1": 'Ranks is "1e9"; it must be a whole number from 1 to 128.',
    "v=1&ranks=128&chunks=4096": "Schedule has 128 ranks x 4,096 chunks; the Lab takes at most 16,384 slots.",
    "v=1&ranks=4&chunks=1&steps=0:0~9": "Schedule, step 0: 0:0→9 has dst 9, but the ranks are 0 to 3.",
    "v=1&ranks=4&chunks=1&steps=<script>": 'Step 0: "<script>" is not a transfer; write chunk:src→dst, such as 0:1→2, ',
    "v=1&ranks=3&chunks=4&contract=all_gather": "4 chunks don't divide evenly among 3 ranks; use a multiple of 3.",
    "v=1&ranks=4&chunks=1&contract=sum": 'There is no contract "sum"; use one of broadcast, reduce, ',
    "v=1&ranks=4&chunks=1&x=%ff": 'The address has "%ff", which is not a text.',
    "v=1&ranks=4&chunks=1&x=1": 'The address has an unknown field "x"; the Lab knows v, ',
    "v=1&ranks=2&chunks=2&lengths=1e9.1e300": 'Lengths is "1e9.1e300"; it must be whole numbers with dots',
    "v=1&ranks=4&chunks=1&view=home": 'The address has the view "home"; it must be build or race.',
    "v=1&ranks=40&chunks=1": "This schedule has 40 ranks, 1 chunk and 0 steps; the Lab draws at most 16, 64 and 256.",
    "v=1&ranks=4&chunks=1&steps="
    + "0:0~1," * 20_000: "The address has 120,027 characters after the #; the Lab reads 60,000.",
}


def test_a_bad_address_gives_one_sentence_and_a_working_page(open_lab):
    page = open_lab()
    for bad, words in BAD_FRAGMENTS.items():
        page.evaluate(f"bad => {LAB}.open(bad)", bad)
        assert status(page).startswith(words)
        assert status(page).count(". ") == 0
    page = open_lab("v=1&puzzle=chess")
    assert status(page) == 'There is no puzzle "chess".'
    slot(page, 0).drag_to(slot(page, 1))
    assert status(page).startswith("Step 0: rank 0 sends")


def test_the_page_s_address_follows_the_board_and_answers_stay(browser, tmp_path):
    path = tmp_path / "lab.html"
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>lab</title>{LabElement(paged=True).html()}"
    )
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    slot(page, 0).drag_to(slot(page, 1))
    page.wait_for_function("location.hash === '#v=1&puzzle=broadcast-4&steps=0:0~1'")
    page.get_by_role("button", name="Next puzzle").first.click()
    page.get_by_role("button", name="Previous puzzle").click()
    assert text_of(page) == "step 0: 0:0→1"
    leave(page, tmp_path)
    page.goto(path.as_uri())
    assert text_of(page) == "step 0: 0:0→1"
    context.close()


def leave(page, folder):
    """Go to an empty page, and wait there until the browser has what the Lab stored.

    In Chromium, another process may show the next page. For a moment it can read what was in the storage before.
    """
    kept = page.evaluate("localStorage.getItem('collectives-lab')")
    empty = folder / "empty.html"
    empty.write_text("<!doctype html><title>empty</title>")
    page.goto(empty.as_uri())
    page.wait_for_function("kept => localStorage.getItem('collectives-lab') === kept", arg=kept)


@pytest.fixture
def lab_page(browser, tmp_path):
    """The Lab on a page of its own, whose address follows what it shows."""
    path, context = tmp_path / "lab.html", browser.new_context()
    html = LabElement(paged=True).html()
    path.write_text(f"<!doctype html><html lang=en><meta charset=utf-8><title>lab</title><h2 id=what>What</h2>{html}")
    page = context.new_page()
    page.goto(path.as_uri())
    yield page
    context.close()


def test_back_returns_to_the_tab_and_the_puzzle_before(lab_page):
    press = lambda name: lab_page.get_by_role("button", name=name, exact=True).first.click()  # noqa: E731
    chosen = f"{LAB}.view + ' ' + ({LAB}.puzzle?.id ?? '')"
    slot(lab_page, 0).drag_to(slot(lab_page, 1))
    press("Next puzzle")
    press("Race")
    press("Build")
    for shown in ("race sum-2", "puzzles sum-2", "puzzles broadcast-4"):
        lab_page.go_back()
        lab_page.wait_for_function(f"{chosen} === '{shown}'")
    assert text_of(lab_page) == "step 0: 0:0→1"
    lab_page.go_forward()
    lab_page.wait_for_function(f"{chosen} === 'puzzles sum-2'")


def test_a_tab_or_a_puzzle_comes_back_as_it_was_with_what_can_be_undone(lab_page):
    press = lambda name: lab_page.get_by_role("button", name=name, exact=True).first.click()  # noqa: E731
    for _ in range(2):
        press("Next puzzle")
    slot(lab_page, 1).drag_to(slot(lab_page, 0))
    press("Next step")
    lab_page.wait_for_function(f"{LAB}.at === 1")
    press("Build")
    slot(lab_page, 0).drag_to(slot(lab_page, 1))
    press("Race")
    press("Puzzles")
    assert lab_page.evaluate(f"[{LAB}.puzzle.id, {LAB}.at]") == ["reduce-4", 1]
    press("Undo")
    assert text_of(lab_page) == ""
    press("Next puzzle")
    press("Previous puzzle")
    press("Redo")
    assert text_of(lab_page) == "step 0: 0:1→0+"
    press("Build")
    assert text_of(lab_page) == "step 0: 0:0→1+"
    lab_page.reload()
    press("Puzzles")
    assert lab_page.evaluate(f"{LAB}.puzzle.id") == "reduce-4"
    assert text_of(lab_page) == "step 0: 0:1→0+"


def test_a_linked_schedule_stays_while_the_reader_looks_elsewhere(open_lab):
    page = open_lab("v=1&puzzle=sum-2&steps=0:0~1+,0:1~0+")
    press = lambda name: page.get_by_role("button", name=name, exact=True).first.click()  # noqa: E731
    press("Next puzzle")
    press("Previous puzzle")
    assert text_of(page) == "step 0: 0:0→1+  0:1→0+"
    press("Build")
    press("Puzzles")
    assert text_of(page) == "step 0: 0:0→1+  0:1→0+"
    assert "0 of 20 solved" in page.locator(".sheet").inner_text()
    page.evaluate(f"{LAB}.open('v=1&puzzle=sum-2&steps=0:0~1+')")
    assert text_of(page) == "step 0: 0:0→1+"


def test_a_shared_solution_is_not_the_receiver_s(open_lab):
    page = open_lab("v=1&puzzle=sum-2&steps=0:0~1+,0:1~0+")
    assert verdict(page).startswith("Solved.")
    assert "0 of 20 solved" in page.locator(".sheet").inner_text()


def test_a_link_to_a_heading_of_the_page_changes_nothing(lab_page):
    slot(lab_page, 0).drag_to(slot(lab_page, 1))
    lab_page.evaluate("location.hash = 'what'")
    wait_until_kept(lab_page)
    assert status(lab_page).startswith("Step 0: rank 0 sends")
    assert text_of(lab_page) == "step 0: 0:0→1"
    lab_page.goto(lab_page.url.split("#")[0] + "#what")
    lab_page.reload()
    assert text_of(lab_page) == "step 0: 0:0→1"
    assert lab_page.locator(".status.wrong").count() == 0


def test_a_link_takes_nothing_away_that_the_reader_built(open_lab):
    page = open_lab("v=1&ranks=4&chunks=1&contract=all_reduce")
    slot(page, 0).drag_to(slot(page, 1))
    wait_until_kept(page)
    page.evaluate(f"{LAB}.open('v=1&ranks=3&chunks=1&contract=all_reduce&steps=0:2~1+')")
    wait_until_kept(page)
    assert page.evaluate(f"{LAB}.freeBoard().steps.length") == 1
    assert page.evaluate(f"{LAB}.freeBoard().ranks") == 4
    assert status(page).endswith("Undo brings back what you had built here.")
    page.get_by_role("button", name="Undo").click()
    assert text_of(page) == "step 0: 0:0→1+"
    bad_race = "v=1&ranks=2&chunks=1&contract=all_reduce&view=race&race=all_reduce!7!ring!ring!nowhere!1!8"
    page.evaluate(f"{LAB}.open('{bad_race}')")
    assert status(page).startswith('The address has the machine "nowhere"')
    assert text_of(page) == "step 0: 0:0→1+"


@pytest.mark.parametrize(
    "damaged", ['{"v":1,"solved":null}', '{"v":1,"answers":7,"free":5}', '{"v":1,"solved":"yes"}', "7"]
)
def test_damaged_storage_costs_only_what_it_held(open_lab, damaged):
    page = open_lab()
    page.evaluate(f"{LAB}.kept.solved['sum-2'] = true")
    page.evaluate("damaged => localStorage.setItem('collectives-lab', damaged)", damaged)
    page.evaluate("dispatchEvent(new StorageEvent('storage', { key: 'collectives-lab' }))")
    page.get_by_role("button", name="Next puzzle").first.click()
    slot(page, 0).drag_to(slot(page, 1))
    slot(page, 1).drag_to(slot(page, 0))
    assert verdict(page).startswith("Solved.")


def test_what_a_newer_page_keeps_is_left_alone(open_lab):
    page, newer = open_lab(), '{"v":2,"boards":["mine"]}'
    page.evaluate("newer => localStorage.setItem('collectives-lab', newer)", newer)
    slot(page, 0).drag_to(slot(page, 1))
    wait_until_kept(page)
    assert page.evaluate("localStorage.getItem('collectives-lab')") == newer
    assert text_of(page) == "step 0: 0:0→1"


@pytest.fixture
def tabs(browser, tmp_path):
    """A function that opens the Lab in another tab of one browser, after running a script there."""
    path, context = tmp_path / "lab.html", browser.new_context()
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>lab</title>{LabElement(paged=True).html()}"
    )

    def opened(first="", fragment=""):
        page = context.new_page()
        page.add_init_script(first)
        page.goto(path.as_uri() + fragment)
        page.wait_for_function(f"{LAB}.schedule")
        return page

    yield opened
    context.close()


STORED = "JSON.parse(localStorage.getItem('collectives-lab'))"
DEAF = "addEventListener('storage', (event) => event.stopImmediatePropagation(), true)"
STALE = """const get = Storage.prototype.getItem;
    window.stale = true;
    Storage.prototype.getItem = function (key) { return window.stale ? null : get.call(this, key); };"""


def wait_until_stored(page):
    """Waits until what another tab has stored is there in this tab, too: a browser brings it later."""
    page.wait_for_function(f"{STORED}?.answers")


def solve_sum(page):
    slot(page, 0).drag_to(slot(page, 1))
    slot(page, 1).drag_to(slot(page, 0))
    wait_until_kept(page)


def test_two_tabs_keep_what_each_has_solved(tabs):
    first, second = tabs(), tabs(DEAF)  # the second misses what the first keeps
    first.get_by_role("button", name="Next puzzle").first.click()
    solve_sum(first)
    wait_until_stored(second)
    slot(second, 0).drag_to(slot(second, 1))
    wait_until_kept(second)
    kept = second.evaluate(STORED)
    assert kept["solved"] == {"sum-2": True}
    assert kept["answers"] == {"sum-2": "0:0~1+,0:1~0+", "broadcast-4": "0:0~1"}
    assert "1 of 20 solved" in second.locator(".sheet").inner_text()
    first.wait_for_function(f"{LAB}.kept.answers['broadcast-4']")
    second.get_by_role("button", name="Next puzzle").first.click()
    assert text_of(second) == "step 0: 0:0→1+  0:1→0+"


def test_a_tab_in_which_the_reader_only_looks_overwrites_no_answer(tabs):
    first, second = tabs(fragment="#v=1&puzzle=sum-2"), tabs(DEAF, "#v=1&puzzle=sum-2")
    solve_sum(first)
    wait_until_stored(second)
    for name in ("Race", "Build", "Puzzles"):
        second.get_by_role("button", name=name, exact=True).click()
    wait_until_kept(second)
    assert second.evaluate(STORED)["answers"] == {"sum-2": "0:0~1+,0:1~0+"}


def test_a_page_that_opens_with_old_storage_overwrites_nothing(tabs):
    first = tabs(fragment="#v=1&puzzle=sum-2")
    solve_sum(first)
    kept = first.evaluate(STORED)
    second = tabs(DEAF + ";" + STALE, "#v=1&puzzle=broadcast-4")
    wait_until_kept(second)
    second.evaluate("window.stale = false")
    assert second.evaluate(STORED) == kept
    slot(second, 0).drag_to(slot(second, 1))
    wait_until_kept(second)
    assert second.evaluate(STORED)["answers"] == kept["answers"] | {"broadcast-4": "0:0~1"}
    assert second.evaluate(STORED)["solved"] == {"sum-2": True}


def test_what_was_drawn_just_before_the_reader_left_is_kept(tabs):
    first = tabs(fragment="#v=1&puzzle=broadcast-4")
    slot(first, 0).drag_to(slot(first, 1))
    first.goto("about:blank")
    assert tabs().evaluate(STORED)["answers"] == {"broadcast-4": "0:0~1"}


def test_storage_that_the_reader_clears_stays_clear(tabs):
    first, second = tabs(fragment="#v=1&puzzle=sum-2"), tabs()
    solve_sum(first)
    second.evaluate("localStorage.clear()")
    first.wait_for_function(f"!Object.keys({LAB}.kept.solved).length")
    first.get_by_role("button", name="Previous puzzle").click()
    slot(first, 0).drag_to(slot(first, 1))
    wait_until_kept(first)
    assert first.evaluate(STORED)["answers"] == {"broadcast-4": "0:0~1"}


def test_a_schedule_too_long_for_an_address_says_so(open_lab):
    page = open_lab()
    steps = "\n".join(" ".join(f"{chunk}:{step % 16}→{(step + 1) % 16}+" for chunk in range(64)) for step in range(200))
    page.evaluate(
        f"""text => {LAB}.take(null, {{ schedule: {{ ranks: 16, chunks: 64, collective: "all_reduce", root: null,
            lengths: null, name: "long", steps: CollectiveLab.parseSteps(text) }} }})""",
        steps,
    )
    page.wait_for_function(f"{LAB}.status.textContent.startsWith('This schedule is too long for an address')")
    page.get_by_role("button", name="Copy a link").first.click()
    assert status(page) == "This schedule is too long for an address; save it as JSON."


def test_a_step_changes_only_the_slots_that_it_writes(open_lab):
    page = open_lab("v=1&ranks=4&chunks=4&contract=all_reduce&steps=0:0~1+")
    page.evaluate("for (const cell of document.querySelectorAll('.board .cell')) cell.old = true")
    slot(page, 0).press("PageDown")
    assert status(page) == "Step 1 is empty. 0 of 16 slots finished."
    new = (
        "[...document.querySelectorAll('.board .stage > svg > g:first-child .cell')].filter((cell) => !cell.old).length"
    )
    assert page.evaluate(new) == 1


def test_the_keyboard_stays_where_it_was_when_a_panel_changes(open_lab):
    page = open_lab("v=1&puzzle=broadcast-4&steps=0:0~1;0:0~2,0:1~3")
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    for name, after in {
        "A hint": "Next hint",
        "step 1": "step 1",
        "0:0→2 copies; switch": "0:0→2+ adds; switch",
    }.items():
        page.get_by_role("button", name=name, exact=True).press("Enter")
        assert page.evaluate(focused) == after
    page.get_by_role("button", name="0:0→2+ adds; switch").press("Enter")
    page.locator(".verdict").get_by_role("button", name="Next puzzle").press("Enter")
    assert page.evaluate(focused).startswith("rank 0, chunk 0:")
    page.get_by_role("button", name="Next puzzle").press("Enter")
    assert page.evaluate(focused) == "Next puzzle"


def test_the_next_puzzle_comes_into_view_and_is_announced(open_lab):
    page = open_lab("v=1&puzzle=scatter-4", **PHONE)
    slot(page, 0, 3).focus()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.evaluate(f"{LAB}.openPuzzle({LAB}.puzzles[5])")
    assert page.locator(".task").bounding_box()["y"] >= 0
    assert page.locator(".status .spoken").inner_text() == f"Puzzle 6: {PUZZLES['broadcast-5']['task']}"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("rank 2, chunk 0: rank 2")


def saved(page, button):
    """The name and the text of the file that a button saves."""
    with page.expect_download() as download:
        page.locator(".sharing").get_by_role("button", name=button).click()
    return download.value.suggested_filename, download.value.path().read_text(encoding="utf-8")


def test_files_are_named_after_what_they_hold_and_the_picture_has_all_steps(open_lab):
    page, schedule = open_lab(lab(ring.all_reduce(4)).given), ring.all_reduce(4)
    assert saved(page, "JSON")[0] == "all-reduce-ring-4-ranks.json"
    assert saved(page, "MSCCL XML")[0] == "all-reduce-ring-4-ranks.xml"
    name, text = saved(page, "SVG")
    assert status(page) == f"Saved as {name}." == "Saved as all-reduce-ring-4-ranks.svg."
    steps = list(ElementTree.fromstring(text))
    assert len(steps) == len(list(schedule)) + 1
    assert [step.find("{*}text").text for step in steps[-2:]] == ["before step 5, with its transfers", "after step 5"]
    heads = [sum("M" in path.get("d") for path in step.iterfind(".//{*}path[@class='head']")) for step in steps]
    assert heads == [len(step) for step in schedule] + [0]
    strokes = {node.get("stroke") for node in steps[0].iterfind(".//{*}path[@class='arrow']")}
    assert len(strokes) == 1 and strokes.pop().startswith("rgb(")
    page.evaluate(f"{LAB}.open('v=1&puzzle=broadcast-4')")
    assert saved(page, "JSON")[0] == "puzzle-broadcast-4.json"
    for ranks in (11, 16):  # all steps of 11 ranks are under the limit of slots, but make 4 MB of text
        page.evaluate(f"{LAB}.open('{lab(ring.all_reduce(ranks)).given}')")
        name, text = saved(page, "SVG")
        assert name == f"all-reduce-ring-{ranks}-ranks-step-0.svg"
        assert len(list(ElementTree.fromstring(text))) == 1 and len(text) < 200_000
    assert status(page).startswith("All steps are too large for one picture, so the file has step 0.")


def test_the_button_says_that_the_link_is_copied(open_lab):
    page = open_lab()
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: { writeText: async () => {} } })")
    page.locator(".sharing").get_by_role("button", name="Copy a link").click()
    page.locator(".sharing").get_by_role("button", name="The link is copied.").click()
    page.locator(".sharing").get_by_role("button", name="Copy a link").wait_for()


def test_an_empty_slot_is_not_blamed_for_what_it_began_with(open_lab):
    page = open_lab("v=1&puzzle=broadcast-4&steps=0:0~1")
    assert "Rank 2 still has nothing in chunk 0: no step writes it." in page.locator(".verdict").inner_text()


STILL_OPEN = {
    "v=1&puzzle=reduce-4&steps=0:1~0%2B": "Rank 0 still needs the data of ranks 2 and 3 in chunk 0.",
    "v=1&puzzle=all-reduce-4&steps=0:0~1+,0:1~2+,0:2~3+,0:3~0+": "Rank 0 still needs the data of ranks 1 and 2",
    "v=1&puzzle=all-to-all-4&steps=1:0~1:0,0:1~0:1": "Rank 0 still needs the data of rank 2 in chunk 2.",
    "v=1&puzzle=fix-two-shot": "in chunk 2. Step 1 forwards a stale value (2:0→1): rank 2 already holds",
}
SPOILT = {
    "v=1&puzzle=all-reduce-4&steps=0:0~1+;0:0~1+": "step 1 adds rank 0 a second time (0:0→1+).",
    "v=1&puzzle=reduce-4&steps=0:0~1": "no slot is left from which the data of rank 1 could come.",
    "v=1&ranks=3&chunks=1&contract=all_reduce&steps=0:0~1+,0:1~2+,0:2~0+": "Step 0 spoils chunk 0: the sums left",
    "v=1&puzzle=scatter-4&steps=0:0~1:1": "Rank 1 holds chunk 0 in the row of chunk 1. Step 0 put it there (0:0→1:1).",
}


def test_only_what_no_later_step_can_repair_turns_red_while_you_build(open_lab):
    page = open_lab()
    for fragments, spoilt in ((STILL_OPEN, False), (SPOILT, True)):
        for fragment, words in fragments.items():
            page.evaluate(f"fragment => {LAB}.open(fragment)", fragment)
            assert words in page.locator(".verdict").inner_text()
            assert page.locator(".steps .guilty").count() == page.locator(".verdict.bad").count() == spoilt


def test_a_chunk_in_the_row_of_another_is_marked_and_named(open_lab):
    page = open_lab("v=1&puzzle=scatter-4&steps=0:0~1:1;1:0~2")
    slot(page, 0).press("PageDown")
    assert page.locator(".board .w .fault").count() == 1
    assert (
        slot(page, 1, 1).get_attribute("aria-label") == "rank 1, chunk 1: chunk 0 of rank 0, wrong, must end finished"
    )


def test_what_can_t_be_copied_is_shown_to_be_copied_by_hand(open_lab):
    page = open_lab()
    page.get_by_text("As text").click()  # folds the field, as on a phone
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="Copy as Python").click()
    field = page.get_by_role("textbox").first
    assert field.is_visible()
    assert field.input_value().startswith("from collectives import")


def test_a_schedule_that_is_too_big_for_the_lab_is_refused_in_python():
    with pytest.raises(ValueError, match="ring all_reduce is too big for the Lab, which draws at most 16 ranks"):
        collectives.lab(ring.all_reduce(17))
    with pytest.raises(collectives.ScheduleError, match="0:0→0 sends rank 0 to itself"):
        collectives.lab(Schedule(2, 1, lambda: [collectives.Step.of([(0, 0, 0)])]))
    assert repr(collectives.lab(tree.broadcast(2))).startswith("The Lab, with lab.html#v=1&ranks=2&chunks=1")


# --- pictures and races are those of Python ---


def test_the_board_shows_what_python_s_figures_show(open_lab):
    page = open_lab()
    drawn = """text => { const Lab = CollectiveLab; return Lab.drawing(Lab.analyse(Lab.fromJson(text)), [], {}); }"""
    for row in ROWS:
        for world_size in (size for size in (2, 4, 5, 8) if row.takes(size)):
            schedule = row.algorithm(world_size)
            expected = json.loads(json.dumps(Drawing(schedule).data()))
            found = page.evaluate(drawn, to_json(schedule))
            assert found["first"] == expected["first"]
            assert found["steps"] == expected["steps"], schedule.name


NVLINK, NDR = Link(3.4e-6, 1 / 450e9), Link(14e-6, 1 / 50e9)
MACHINES = {
    "one switch": topology.uniform(8, 1e-5, 1e-10),
    "two nodes": topology.two_level(2, 4, NVLINK, NDR, overlapped=True),
    "four nodes": topology.two_level(4, 2, NVLINK, NDR, overlapped=True),
    "a shared card": topology.two_level(2, 4, NVLINK, NDR, ranks_per_nic=4),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_race_is_drawn_as_python_draws_it(open_lab, name):
    page, on = open_lab(), MACHINES[name]
    schedules = {"ring": ring.all_reduce(8), "halving-doubling": halving_doubling.all_reduce(8)}
    expected = Race(schedules, on, 8_000_000, "circle" if on.across is None else "nodes").data()
    machine = {
        "link": [on.link.alpha, on.link.beta],
        "across": on.across and [on.across.alpha, on.across.beta],
        "perNode": on.ranks_per_node,
        "perNic": on.ranks_per_nic,
        "overlapped": on.overlapped,
    }
    laid = """([texts, machine]) => { const Lab = CollectiveLab, on = Lab.topology(8, machine.link, machine);
        const lanes = texts.map(([title, text]) => Lab.lane(title, Lab.fromJson(text), 8e6, on));
        const tick = Math.max(...lanes.map(({cost}) => cost.seconds)) / Lab.TICKS;
        return lanes.map((lane) => Lab.laid(lane, tick)); }"""
    found = page.evaluate(laid, [[[title, to_json(each)] for title, each in schedules.items()], machine])
    for lane, other in zip(found, expected["lanes"], strict=True):
        other = json.loads(json.dumps(other))
        assert [lane[key] for key in ("title", "begin", "chunks", "finish")] == [
            other[key] for key in ("title", "begin", "chunks", "finish")
        ]
        assert numbers(lane["points"] + [lane["span"]]) == pytest.approx(
            numbers(other["points"] + [other["span"]]), abs=0.011
        )
        assert [link[:2] + link[3:] for link in lane["links"]] == [link[:2] + link[3:] for link in other["links"]]
        ways = [[float(n) for n in re.findall(r"-?[\d.]+", link[2])] for link in lane["links"]]
        expected_ways = [[float(n) for n in re.findall(r"-?[\d.]+", link[2])] for link in other["links"]]
        assert numbers(ways) == pytest.approx(numbers(expected_ways), abs=0.011)
        assert expanded(lane) == expanded(other)


def numbers(rows):
    return [number for row in rows for number in row]


def expanded(lane):
    """Each message with its size in full: sizes may be numbered in another order."""
    return [[[row[0], lane["sizes"][row[1]], *row[2:]] for row in step] for step in lane["steps"]]


def test_a_race_says_who_wins_and_where_the_two_cross(open_lab):
    page = open_lab()
    page.get_by_role("button", name="Race", exact=True).click()
    on = topology.uniform(8, 1e-5, 1e-10)
    first, second = (price(make(8), 1_000_000, on).seconds for make in (ring.all_reduce, tree.all_reduce))
    outcome = page.locator(".outcome")
    assert outcome.inner_text().lower() == (
        f"ring wins in {first * 1e6:.0f} µs; "
        f"binomial tree takes {second / first:.3g} times as long, {second * 1e6:.0f} µs."
    )
    low, high = 8, 10**9
    while high - low > 8:
        middle = (low + high) // 16 * 8
        ahead = price(tree.all_reduce(8), middle, on).seconds < price(ring.all_reduce(8), middle, on).seconds
        low, high = (middle, high) if ahead else (low, middle)
    words = page.locator(".everywhere").inner_text().lower()
    assert words == f"below {high / 1e3:.3g} kb binomial tree is faster, above it ring."
    assert page.get_by_label("second").locator("option:disabled").all_inner_texts() == ["ring"]
    page.get_by_label("machine").select_option("8 H100 a node, NDR")
    page.get_by_label("nodes × ranks").select_option("2 × 4")
    near, far = machines.RUNNING_CASE.links()
    on = topology.two_level(2, 4, near, far, overlapped=True)
    winner = min(price(make(8), 1_000_000, on).seconds for make in (ring.all_reduce, tree.all_reduce))
    assert f"wins in {winner * 1e6:.3g} µs" in outcome.inner_text()
    page.get_by_label("across: GB/s").fill("0")
    page.get_by_label("across: GB/s").blur()
    assert page.locator(".race .trouble").inner_text() == "A link needs an alpha of at least 0 and a bandwidth above 0."


def test_your_own_schedule_races(open_lab):
    page = open_lab("v=1&ranks=4&chunks=1&contract=broadcast&root=0&steps=0:0~1;0:0~2;0:0~3&view=race")
    assert page.evaluate(f"{LAB}.race.state.first") == "mine"
    assert "takes 1.5 times as long" in page.locator(".outcome").inner_text()


def test_a_machine_brings_its_own_nodes(open_lab):
    page = open_lab()
    page.evaluate(f"{LAB}.show('race')")
    page.evaluate(f"{LAB}.race.change({{ ranks: 4 }})")
    page.get_by_label("machine").select_option(label="DGX H100")
    assert page.evaluate(f"[{LAB}.race.state.ranks, {LAB}.race.state.inside]") == [16, 8]


UNFINISHED = (
    "Your schedule is no all-reduce yet, so it can't race: 0 of 4 slots finished. "
    "Rank 0 still needs the data of ranks 1, 2 and 3 in chunk 0."
)


def test_a_schedule_that_breaks_its_contract_takes_no_place_in_a_race(open_lab):
    page = open_lab("v=1&puzzle=all-reduce-4&steps=0:0~1+&view=race&race=all_gather!6!ring!pairwise!DGX H100!2!5000000")
    assert status(page) == UNFINISHED
    shown = ["all_gather", 6, "ring", "pairwise", "DGX H100", 2, 5_000_000]
    assert page.evaluate(f"{LAB}.race.parts()") == shown
    assert "wins in" in page.locator(".outcome").inner_text()
    page.evaluate(f"{LAB}.open('v=1&ranks=4&chunks=1&contract=all_reduce&steps=0:0~1+')")
    page.get_by_role("button", name="Race it against another").click()
    assert page.evaluate(f"{LAB}.view") == "build"
    assert status(page) == UNFINISHED


def test_your_schedule_leaves_a_race_of_another_size_with_a_word_and_comes_back(open_lab):
    page = open_lab(lab(doubling.all_reduce(4)).given)
    page.get_by_role("button", name="Race it against another").click()
    first, ranks = page.get_by_label("first"), page.locator(".race select").nth(1)
    assert first.locator("option:checked").inner_text() == "your schedule"
    ranks.select_option("16")
    taken = first.locator("option:checked").inner_text()
    assert status(page) == (
        f"Your schedule is for all-reduce on 4 ranks, so {taken} takes its place here. "
        "It comes back when you choose these again."
    )
    assert first.locator("option:disabled").last.inner_text() == "your schedule: all-reduce, 4 ranks"
    ranks.select_option("4")
    assert first.locator("option:checked").inner_text() == "your schedule"
    assert status(page) == "Your schedule is back."
    page.evaluate(f"{LAB}.open('{lab(ring.all_reduce(9)).given}')")
    page.get_by_role("button", name="Race it against another").click()
    page.get_by_label("collective").select_option("broadcast")
    assert page.evaluate(f"{LAB}.race.state.ranks") == 8
    assert "wins in" in page.locator(".outcome").inner_text()


def test_a_machine_of_one_s_own_has_alpha_beta_ports_and_nodes(open_lab):
    page = open_lab("v=1&puzzle=broadcast-4&view=race")
    page.get_by_label("machine").select_option("your own numbers")
    page.get_by_label("nodes × ranks").select_option("4 × 2")
    for name, value in {
        "in a node: alpha, µs": "2",
        "in a node: GB/s": "100",
        "across: alpha, µs": "30",
        "across: GB/s": "5",
        "ports": "2",
    }.items():
        page.get_by_label(name).fill(value)
        page.get_by_label(name).blur()
    on = replace(topology.two_level(4, 2, Link(2e-6, 1e-11), Link(30e-6, 2e-10)), ports=2)
    times = sorted(price(make(8), 1_000_000, on).seconds for make in (ring.all_reduce, tree.all_reduce))
    assert f"wins in {times[0] * 1e6:.3g} µs" in page.locator(".outcome").inner_text()
    assert page.get_by_label("machine").locator("option:checked").inner_text().startswith("your own, from one switch")


STEPS_DONE = """(() => { const { picture } = document.querySelector(".race collective-player");
    return picture.data.lanes.map(({ steps, messages }) => String(steps.filter((_, number) =>
        messages.every((each) => each.number !== number || each.end <= picture.now + 1)).length)); })()"""


def test_a_paused_race_shows_one_time(open_lab):
    page = open_lab("v=1&puzzle=broadcast-4&view=race")
    clock, words = page.locator(".race .time"), page.locator(".race [aria-live]")
    slider, play = page.locator(".race").get_by_role("slider"), page.locator(".race").get_by_role("button", name="Play")
    hold_time(page)
    for pause in range(3):
        play.click()
        page.clock.run_for(150 + 90 * pause)
        page.locator(".race").get_by_role("button", name="Pause").click()
        time = clock.text_content().split(" of ")[0]
        assert words.text_content().startswith(f"At {time}: ")
        assert slider.get_attribute("aria-valuetext") == time
        done = re.findall(r"has done (\d+) of", words.text_content())
        assert (done or ["0", "0"]) == page.evaluate(STEPS_DONE)


# --- the page ---


def test_the_scripts_are_light(open_lab):
    scripts = re.findall(r"<script>(.*?)</script>", LabElement().html(), re.DOTALL)
    assert len(gzip.compress("".join(scripts).encode())) < 60_000
    assert all("http" not in script.replace("http://www.w3.org/2000/svg", "") for script in scripts)


@pytest.mark.parametrize("view", ["puzzles", "build", "race"])
@pytest.mark.parametrize("settings", [{"color_scheme": "dark"}, PHONE], ids=["dark", "phone"])
def test_the_lab_is_accessible_and_fits(open_lab, view, settings):
    page = open_lab(**settings)
    page.evaluate(f"{LAB}.show('{view}')")
    of_a_page = "landmark-one-main", "page-has-heading-one"  # this page is the Lab alone
    assert [rule for rule in audit.run_axe(page) if not rule.startswith(of_a_page)] == []
    assert fits(page)


def test_the_interpreter_asks_for_nothing_but_itself():
    """It is teaching material: no DOM, no figure, no other file."""
    for name in ("schedule", "simulate", "contracts", "price"):
        assert not re.search(r"document|window|customElements|fetch|import", asset(f"lab/{name}.js"))


def test_a_link_opens_the_same_race(open_lab):
    race = "all_reduce!8!ring!halving-doubling!8 H100 a node, NDR!4!5000000"
    page = open_lab(f"v=1&puzzle=broadcast-4&view=race&race={race}")
    near, far = machines.RUNNING_CASE.links()
    on = topology.two_level(2, 4, near, far, overlapped=True)
    best = min(price(make(8), 5_000_000, on).seconds for make in (ring.all_reduce, halving_doubling.all_reduce))
    assert f"wins in {best * 1e6:.0f} µs" in page.locator(".outcome").inner_text()
    assert page.evaluate(f"{LAB}.fragment()") == f"v=1&puzzle=broadcast-4&view=race&race={race.replace(' ', '%20')}"
    page.get_by_label("across: GB/s").fill("25")
    page.get_by_label("across: GB/s").blur()
    changed = page.evaluate(f"{LAB}.fragment()")
    again = open_lab(changed)
    assert again.locator(".outcome").inner_text() == page.locator(".outcome").inner_text()
    for bad, words in {
        "all_reduce!8!ring!tree!Cray-1!8!1": 'The address has the machine "Cray-1"; the Lab has one switch: ',
        "all_reduce!9!ring!tree!DGX H100!8!1": 'The Lab has no algorithm for "all_reduce" on 9 ranks.',
        "all_reduce!8!ring!tree!DGX H100!8!-1": 'The address has the race "8, 8, -1"; its numbers must be at least 0.',
    }.items():
        page.evaluate(f"bad => {LAB}.open(bad)", f"v=1&puzzle=broadcast-4&view=race&race={bad}")
        assert status(page).startswith(words)
