"""The figure of tokens and experts shows what the library's layer does, and a real browser steps it token by token."""

import pytest
import torch
from pages import fits, letter_heights, wait_until_laid_out
from torch import nn

from collectives import ranks
from collectives.algorithms import pairwise
from collectives.figures.routing import MAX_RANKS, Dispatch
from collectives.training.experts import ExpertParallel, Routing, route, within_capacity

WORLD_SIZE, EXPERTS = 4, 8


def routings(k=1, places=None, world_size=WORLD_SIZE):
    """Of every rank, 5 tokens on rank 0 and one more on each next; they lean to expert 2."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for rank in range(world_size):
        logits = torch.randn(5 + rank, EXPERTS, generator=generator)
        logits[:, 2] += 1.5
        routing = route(logits, k)
        made.append(routing if places is None else within_capacity(routing, places))
    return made


CASES = {"one each": routings(), "top-2, capped": routings(k=2, places=2)}


class Recorder(nn.Module):
    """An expert that answers a token with the token, and remembers whom it has seen."""

    def forward(self, tokens):
        self.seen = tokens[:, 0].tolist()
        return tokens


def recorded(rank, world_size, cases):
    """What this rank's experts saw in each case; token i of rank r is the number 100 r + i."""
    told = []
    for routing in cases:
        experts = [Recorder() for _ in range(EXPERTS // world_size)]
        tokens = 100.0 * rank + torch.arange(len(routing[rank].experts), dtype=torch.float64)
        ExpertParallel(experts)(tokens[:, None], routing[rank])
        told.append([expert.seen for expert in experts])
    return told


@pytest.mark.slow
def test_the_experts_of_the_figure_have_the_tokens_that_the_layer_gives_them_in_their_order():
    by_rank = ranks.run(recorded, WORLD_SIZE, list(CASES.values()))
    for number, routing in enumerate(CASES.values()):
        figure = Dispatch(routing)
        drawn = [[100 * figure.tokens[i].rank + figure.tokens[i].index for i in stack] for stack in figure.stacks]
        assert drawn == [seen for told in by_rank for seen in told[number]]


@pytest.mark.parametrize("name", CASES)
def test_in_a_step_a_rank_sends_one_token_and_receives_one_in_the_rounds_of_the_schedule(name):
    figure = Dispatch(CASES[name])
    table = [[len(figure.block(src, dst)) for dst in range(WORLD_SIZE)] for src in range(WORLD_SIZE)]
    for verb, blocks in (("dispatch", table), ("combine", [list(column) for column in zip(*table, strict=True)])):
        rounds = [[(t.src, t.dst) for t in step] for step in pairwise.all_to_all_uneven(blocks)]
        for distance, pairs in enumerate(rounds, start=1):
            moments = [m for m in figure.moments if m.name.startswith(f"{verb}, round {distance},")]
            assert len(moments) == max(blocks[src][dst] for src, dst in pairs)
            for turn, moment in enumerate(moments):
                ways = [(figure.tokens[move.token].rank, figure.tokens[move.token].dst) for move in moment.moves]
                ways = ways if verb == "dispatch" else [way[::-1] for way in ways]
                assert sorted(ways) == sorted((src, dst) for src, dst in pairs if blocks[src][dst] > turn)


@pytest.mark.parametrize("name", CASES)
def test_no_two_tokens_are_in_one_place_and_all_come_home_to_where_they_began(name):
    figure, where = Dispatch(CASES[name]), {}
    for moment in figure.moments:
        where |= {move.token: move for move in moment.moves}
        places = [(m.where, m.slot, figure.tokens[m.token].rank if m.where < 0 else None) for m in where.values()]
        assert len(set(places)) == len(figure.tokens)
    before, after = figure.moments[0].moves, figure.moments[-1].moves
    assert [move[:3] for move in before] == [move[:3] for move in after]
    assert [move.answered for move in after] == [not token.dropped for token in figure.tokens]


def test_what_is_said():
    """Two ranks with an expert each: both tokens of rank 0 are for expert 1, the one of rank 1 is its own."""
    tiny = [
        Routing(torch.tensor(chosen)[:, None], torch.ones(len(chosen), 1), torch.ones(1, 2)) for chosen in ([1, 1], [1])
    ]
    figure = Dispatch(tiny, caption="Tiny")
    assert repr(figure).splitlines() == [
        "Tiny",
        "Before: tokens on 2 ranks, each in the colour of its expert's rank. 0.1 is token 1 of rank 0. The ranks will "
        "compute 0 and 3 of 3 tokens.",
        "Sort: each rank sorts its tokens by expert, remembers where each came from, and sends all other ranks its "
        "token count for each expert.",
        "Dispatch: tokens that stay on their rank move first, 0 on rank 0 and 1 on rank 1.",
        "Dispatch, round 1 (rank r to rank r + 1), 1 of 2: 0.0 to expert 1 on rank 1; rank 1 has no more.",
        "Dispatch, round 1 (rank r to rank r + 1), 2 of 2: 0.1 to expert 1 on rank 1; rank 1 has no more.",
        "The experts compute: 0 on rank 0 and 3 on rank 1. The mean is 1.5, so the busiest rank has 2.00 times the "
        "mean, and all ranks wait for it.",
        "Combine: tokens that stay on their rank move first, 0 on rank 0 and 1 on rank 1.",
        "Combine, round 1 (rank r to rank r + 1), 1 of 2: expert 1's answer to 0.0 back to rank 0; rank 0 has no more.",
        "Combine, round 1 (rank r to rank r + 1), 2 of 2: expert 1's answer to 0.1 back to rank 0; rank 0 has no more.",
        "Home: each rank undoes its sort, so that every answer is in its token's place, and multiplies each answer by "
        "its weight.",
    ]
    capped = Dispatch(CASES["top-2, capped"])
    dropped = sum(token.dropped for token in capped.tokens)
    assert dropped > 0
    assert f"{dropped} are dropped" in capped.words[0] and "Dropped tokens have no answer" in capped.words[-1]


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="8 experts do not divide among 3 ranks"):
        Dispatch(routings(world_size=3))
    with pytest.raises(ValueError, match="there is nothing to draw"):
        Dispatch([route(torch.zeros(0, 8))] * 2)
    with pytest.raises(ValueError, match=f"draw at most 160 on {MAX_RANKS} ranks"):
        Dispatch([route(torch.zeros(100, 8))] * 2)


def test_a_figure_stays_small():
    assert len(Dispatch(CASES["top-2, capped"]).html().encode()) < 51_000  # with the player's link to the Lab


def test_it_is_stepped_by_keyboard(open_page):
    """At each step the announced text is the library's, outlined is what moves, and answers are round."""
    figure = Dispatch(CASES["top-2, capped"])
    page = open_page(figure, reduced_motion="reduce")
    player, last = page.locator("collective-player"), len(figure.moments) - 1
    player.get_by_role("button", name="Forward").focus()
    answered = set()
    for step in range(1, last + 1):
        page.keyboard.press("ArrowRight")
        moment = figure.moments[step]
        assert player.get_attribute("data-step") == str(step)
        assert player.locator("[aria-live]").text_content() == moment.said
        assert player.get_by_role("slider").get_attribute("aria-valuetext") == moment.name
        assert player.locator(".stage > svg .now").count() == len(moment.moves)
        answered = (answered | {m.token for m in moment.moves if m.answered}) - {
            m.token for m in moment.moves if not m.answered
        }
        assert player.locator(".stage > svg .token rect[rx='10']").count() == len(answered)
    assert len(answered) == sum(not token.dropped for token in figure.tokens)
    assert player.locator(".stage > svg .dropped").count() == sum(token.dropped for token in figure.tokens)
    for key, step in (("ArrowRight", last), ("ArrowLeft", last - 1), ("Home", 0), ("End", last)):
        page.keyboard.press(key)
        assert player.get_attribute("data-step") == str(step)
    first, lost = figure.tokens[0], next(token for token in figure.tokens if token.dropped)
    assert player.locator(".legend li").all_text_contents() == [
        f"0.0→{first.expert}token 0 of rank 0, for expert {first.expert} on rank {first.dst}, in that rank's colour",
        f"0.0→{first.expert}its answer",
        f"{lost.label}→{lost.expert}dropped: it isn't sent",
    ]


def test_a_token_is_drawn_in_its_expert_s_frame_in_the_colour_of_its_rank(open_page):
    figure = Dispatch(CASES["one each"])
    page = open_page(figure, reduced_motion="reduce")
    player = page.locator("collective-player")
    answers = [moment.name for moment in figure.moments].index("experts compute")
    player.get_by_role("slider").fill(str(answers))
    frames = [frame.bounding_box() for frame in player.locator(".stage > svg .expert").all()]
    drawn = player.locator(".stage > svg .token").all()
    colours = player.locator(".stage > svg .expert").evaluate_all(
        "all => all.map((each) => each.getAttribute('stroke'))"
    )
    for token, node in zip(figure.tokens, drawn, strict=True):
        box, frame = node.locator("rect").bounding_box(), frames[token.expert]
        assert frame["x"] <= box["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"]
        assert frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"]
        assert node.locator("rect").get_attribute("fill") == colours[token.expert]
        assert node.locator("text").text_content() == token.label


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_it_fits_the_page_and_is_readable_at_every_width(open_page, width):
    page = open_page(*map(Dispatch, CASES.values()), viewport={"width": width, "height": 800})
    wait_until_laid_out(page)
    assert fits(page)
    assert min(letter_heights(page)) > 10
    outside = page.evaluate(
        "[...document.querySelectorAll('.stage > svg .token')].map((token) => "
        "[...token.children].map((part) => part.getBoundingClientRect().width)).filter(([box, text]) => text > box)"
    )
    assert outside == []


def test_without_javascript_and_on_paper_there_is_the_still(open_page):
    figure = Dispatch(CASES["top-2, capped"])
    page = open_page(figure, java_script_enabled=False)
    assert page.get_by_role("img", name=figure.caption).bounding_box()["height"] > 100  # it has been decoded
    page.get_by_text("The steps in words").click()
    assert page.get_by_role("listitem").all_inner_texts() == figure.words
    page = open_page(figure)
    page.emulate_media(media="print")
    assert page.locator(".still svg").is_visible()
    texts = page.locator(".still svg text").all_text_contents()
    assert sum(text.endswith("dropped") for text in texts) == sum(token.dropped for token in figure.tokens)
