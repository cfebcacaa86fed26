"""Exercise 15 accepts right answers however they are written, and says of a wrong one whose answer came back where."""

import numpy as np
import pytest
import torch
from answers import assert_accepted, assert_refused, broken, solution_of, verdicts, with_slip

from autograder.judging.judge import Seen
from autograder.sandbox import gloo
from collectives.practice import ch15_experts, checks

EXERCISE = "15_experts"

# Right answers, each in another style than the solution's.

BY_HAND = {
    "there-and-back": """
    def send_order(experts):
        chosen = experts.flatten().tolist()
        return sorted(range(len(chosen)), key=lambda place: chosen[place])

    def count(experts, num_experts):
        chosen = experts.flatten().tolist()
        return [chosen.count(expert) for expert in range(num_experts)]

    def back_home(rows, order):
        home = [None] * len(order)
        for row, place in zip(rows, torch.as_tensor(order).tolist()):
            home[place] = row
        return torch.stack(home) if home else rows
""",
    "capacity": """
    def kept(experts, num_experts, places):
        left = [places] * num_experts
        verdict = []
        for expert in experts.flatten().tolist():
            left[expert] -= 1
            verdict.append(left[expert] >= 0)
        return torch.tensor(verdict).view(experts.shape)

    def dropped_and_padded(counts, places):
        taken = sum(min(int(count), places) for count in counts)
        return int(sum(counts)) - taken, places * len(counts) - taken
""",
    "layer": """
    def all_counts(rank, world_size, mine):
        mine = torch.as_tensor(mine)
        rows = [torch.zeros_like(mine) for _ in range(world_size)]
        dist.all_gather(rows, mine)
        return torch.stack(rows)

    def layer(rank, world_size, tokens, experts, weights, num_experts, answer):
        share, k = num_experts // world_size, experts.shape[1]
        places = [[p for p, e in enumerate(experts.flatten().tolist()) if e == expert] for expert in range(num_experts)]
        order = torch.tensor([place for some in places for place in some], dtype=torch.long)
        table = all_counts(rank, world_size, torch.tensor([len(some) for some in places]))
        everyone = range(world_size)
        blocks = [[int(table[src, dst * share:(dst + 1) * share].sum()) for dst in everyone] for src in everyone]
        arrived, answers, at = exchange(tokens[order // k], blocks), [], 0
        for src in range(world_size):  # asks each expert anew for what every rank has sent
            for expert in range(rank * share, (rank + 1) * share):
                n = int(table[src, expert])
                answers.append(answer(expert, arrived[at:at + n]))
                at += n
        returned = exchange(torch.cat(answers), [[row[d] for row in blocks] for d in range(world_size)])
        result = torch.zeros_like(tokens)
        for row, place in zip(returned, order.tolist()):
            result[place // k] += weights[place // k, place % k] * row
        return result
""",
}
BY_TORCH = {
    "there-and-back": """
    def send_order(experts):
        return experts.reshape(-1).sort(stable=True).indices

    def count(experts, num_experts):
        return torch.nn.functional.one_hot(experts.reshape(-1), num_experts).sum(0)

    def back_home(rows, order):
        return rows[order.argsort()]
""",
    "capacity": """
    def kept(experts, num_experts, places):
        mask, flat = torch.zeros(experts.numel(), dtype=torch.bool), experts.flatten()
        for expert in range(num_experts):
            mask[(flat == expert).nonzero().flatten()[:places]] = True
        return mask.reshape(experts.shape)

    def dropped_and_padded(counts, places):
        return torch.relu(counts - places).sum(), torch.relu(places - counts).sum()
""",
    "layer": """
    def all_counts(rank, world_size, mine):
        everybodys = torch.empty(world_size * len(mine), dtype=mine.dtype)
        dist.all_gather_into_tensor(everybodys, mine)
        return everybodys.view(world_size, -1)

    def layer(rank, world_size, tokens, experts, weights, num_experts, answer):
        k = experts.shape[1]
        order = send_order(experts)
        counts = all_counts(rank, world_size, count(experts, num_experts)).view(world_size, world_size, -1)
        sends, receives = counts[rank].sum(1).tolist(), counts[:, rank].sum(1).tolist()
        arrived = torch.empty(sum(receives), tokens.shape[1], dtype=tokens.dtype)
        dist.all_to_all_single(arrived, tokens.repeat_interleave(k, 0)[order], receives, sends)
        first, share = rank * counts.shape[2], counts.shape[2]
        which = torch.arange(share).repeat(world_size).repeat_interleave(counts[:, rank].flatten())
        answers = torch.empty_like(arrived)
        for number in which.unique().tolist():
            answers[which == number] = answer(first + number, arrived[which == number])
        returned = torch.empty(len(order), tokens.shape[1], dtype=tokens.dtype)
        dist.all_to_all_single(returned, answers, sends, receives)
        return torch.einsum("tk,tkw->tw", weights, back_home(returned, order).view(len(tokens), k, tokens.shape[1]))
""",
}
CHOICE_BY_CHOICE = {
    "layer": """
    def all_counts(rank, world_size, mine):
        everybodys = [mine if src == rank else torch.empty_like(mine) for src in range(world_size)]
        for src in range(world_size):
            dist.broadcast(everybodys[src], src)
        return torch.stack(everybodys)

    def layer(rank, world_size, tokens, experts, weights, num_experts, answer):
        result = torch.zeros_like(tokens)
        for choice in range(experts.shape[1]):
            chosen = experts[:, choice]
            order = chosen.argsort(stable=True)
            counts = all_counts(rank, world_size, torch.bincount(chosen, minlength=num_experts))
            counts = counts.view(world_size, world_size, -1)
            arrived = exchange(tokens[order], counts.sum(2))
            share = counts.shape[2]
            number = torch.arange(share).repeat(world_size).repeat_interleave(counts[:, rank].flatten())
            by_expert = number.argsort(stable=True)
            answered = [answer(rank * share + i, some) for i, some in enumerate(
                arrived[by_expert].split(counts[:, rank].sum(0).tolist()))]
            answers = torch.empty_like(arrived)
            answers[by_expert] = torch.cat(answered)
            returned = exchange(answers, counts.sum(2).T)
            result.index_add_(0, order, returned * weights[order, choice, None])
        return result
""",
}
PADDED = {
    "layer": """
    def all_counts(rank, world_size, mine):
        table = mine.new_zeros(world_size, len(mine))
        table[rank] = mine
        dist.all_reduce(table)
        return table

    def layer(rank, world_size, tokens, experts, weights, num_experts, answer):
        # every row that arrives is asked about by itself; order of sending: by rank alone
        k, share = experts.shape[1], num_experts // world_size
        flat = experts.flatten()
        order = (flat // share).argsort(stable=True)
        counts = all_counts(rank, world_size, torch.bincount(flat // share, minlength=world_size))
        blocks = counts.tolist()
        arrived = exchange(tokens[order // k], blocks)
        names = exchange(flat[order, None].double(), blocks).long().flatten().tolist()
        answers = [answer(name, row[None]) for name, row in zip(names, arrived)]
        answers = torch.cat(answers) if answers else arrived
        returned = exchange(answers, counts.T.tolist())
        home = torch.zeros(len(flat), tokens.shape[1], dtype=tokens.dtype).index_copy(0, order, returned)
        home = home * weights.flatten()[:, None]
        return sum((home[choice::k] for choice in range(k)), torch.zeros_like(tokens))
""",
}
BY_NUMPY = {
    "there-and-back": """
    import numpy as np

    def send_order(experts):
        flat = experts.flatten().numpy()
        return torch.from_numpy(np.lexsort((np.arange(len(flat)), flat)))

    def count(experts, num_experts):
        return torch.from_numpy(np.histogram(experts.numpy(), bins=np.arange(num_experts + 1))[0]) if (
            experts.numel()) else torch.zeros(num_experts, dtype=torch.long)

    def back_home(rows, order):
        return torch.zeros_like(rows).index_copy_(0, order, rows)
""",
    "capacity": """
    import numpy as np

    def kept(experts, num_experts, places):
        flat = experts.numpy().ravel()
        same = flat[:, None] == flat
        return (np.tril(same, -1).sum(1) < places).reshape(experts.shape)

    def dropped_and_padded(counts, places):
        over = np.array(counts) - places
        return over[over > 0].sum(), -over[over < 0].sum()
""",
}
RIGHT = {"by hand": BY_HAND, "by torch": BY_TORCH, "choice by choice": CHOICE_BY_CHOICE}
RIGHT |= {"by rank alone": PADDED, "by numpy": BY_NUMPY}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


ORDER, COUNTS, HOME, KEPT, BOTH = {"a1-order"}, {"a2-count"}, {"a3-home"}, {"b1-kept"}, {"b2-dropped-padded"}
ALL_COUNTS, ANY, LAYER = {"c1-counts"}, {"c3-any-routing"}, {"c2-one-choice", "c3-any-routing"}
STABLE = "return experts.flatten().argsort(stable=True)"
BINCOUNT = "return torch.bincount(experts.flatten(), minlength=num_experts)"
SCATTER = "home[order] = rows\n    return home"
TURN = "return (turn <= places).view(experts.shape)"
TWO = "return int(over.clamp(min=0).sum()), int((-over).clamp(min=0).sum())"
BACK = "back_home(returned, order).view"
WEIGH = "return (home * weights[:, :, None]).sum(1)"
MUTANTS = [
    broken("the inverse", STABLE, STABLE + ".argsort()", ORDER, "Return the inverse"),
    broken("tokens for places", STABLE, STABLE + " // experts.shape[1]", ORDER, "these are tokens"),
    broken("the experts sorted", STABLE, "return experts.flatten().sort().values", ORDER, "these are the experts"),
    broken("the last expert first", STABLE, "return (-experts.flatten()).argsort(stable=True)", ORDER, "leave before"),
    broken(
        "not stable",
        STABLE,
        "n = experts.numel(); return (experts.flatten() * n - torch.arange(n)).argsort()",
        ORDER,
        "tokens for one expert stay in their order",
    ),
    broken("as they stand", STABLE, "return torch.arange(experts.numel())", ORDER, "for expert 3, leave before place"),
    broken(
        "one forgotten", STABLE, STABLE + ".clamp(min=1)", ORDER, "place 0 never leaves, and place 1 more than once"
    ),
    broken(
        "no minlength",
        BINCOUNT,
        "return torch.bincount(experts.flatten())",
        COUNTS,
        "no token has chosen counts too",
        origin="M08",
    ),
    broken(
        "first choices only",
        BINCOUNT,
        "return torch.bincount(experts[:, 0], minlength=num_experts)",
        COUNTS,
        "also a token's second",
    ),
    broken("as it came", SCATTER, "return rows", HOME, "leaves the rows in the order of sending", origin="page 15"),
    broken("sorted again", SCATTER, "return rows[order]", HOME, "applies the order a second time", origin="page 15"),
    broken("by what is in them", SCATTER, "return rows[rows[:, 0].argsort()]", HOME, "at place 0 there is the answer"),
    broken("backwards", SCATTER, "home[order] = rows\n    return home.flip(0)", HOME, "there is the answer to place"),
    broken("one too many", TURN, "return (turn <= places + 1).view(experts.shape)", KEPT, "one too many of each"),
    broken(
        "the last",
        TURN,
        "return (chosen.sum(0)[experts.flatten()] - turn < places).view(experts.shape)",
        KEPT,
        "keeps the last to come",
        origin="M08",
    ),
    broken(
        "places for all",
        TURN,
        "return (torch.arange(experts.numel()) < places).view(experts.shape)",
        KEPT,
        "which has places for",
        origin="M08",
    ),
    broken("a number each", TURN, "return (turn <= places).view(experts.shape).int()", KEPT, "True and False"),
    broken("flat", TURN, "return turn <= places", KEPT, "as in `experts`"),
    broken("swapped", TWO, TWO.replace("return ", "return (") + ")[::-1]", BOTH, "in the wrong order", origin="M08"),
    broken(
        "in all",
        TWO,
        "return max(0, int(over.sum())), max(0, -int(over.sum()))",
        BOTH,
        "an empty place of one expert is of no use",
        origin="M08",
    ),
    broken("only its own", "execute(ring.all_gather(world_size), counts.view(-1))", "", ALL_COUNTS | LAYER, "in row 1"),
    broken(
        "the sum",
        "execute(ring.all_gather(world_size), counts.view(-1))\n    return counts",
        "dist.all_reduce(mine)\n    return mine",
        ALL_COUNTS | LAYER,
        "a row for each rank",
    ),
    broken("no way back", BACK, "returned.view", LAYER, "came back with token", origin="page 15"),
    broken("sorted a second time", BACK, "returned[order].view", LAYER, "came back with token", origin="page 15"),
    broken(
        "sent unsorted", "tokens[order // k], blocks", "tokens.repeat_interleave(k, 0), blocks", LAYER, "gets token"
    ),
    broken("places for tokens", "tokens[order // k]", "tokens[order % len(tokens)]", ANY, "which has chosen expert"),
    broken("not weighted", WEIGH, "return home.sum(1)", LAYER, "the answers are not weighted"),
    broken(
        "the first choice", WEIGH, "return home[:, 0] * weights[:, :1]", ANY, "came back without the answer of expert"
    ),
    broken(
        "weights in the wrong order",
        WEIGH,
        "return (home * weights.flip(1)[:, :, None]).sum(1)",
        ANY,
        "its other choice",
    ),
    broken("numbered from 0", "answer(rank * share + number,", "answer(number,", LAYER, "it lives on rank 0"),
    broken(
        "what arrives read from its end",
        "arrived.split(sizes",
        "arrived.flip(0).split(sizes",
        LAYER,
        "came back with",
    ),
    broken("blocks not turned round", "blocks.T)", "blocks)", LAYER, "of the table it sends"),
    broken(
        "what I send is what I get",
        "all_counts(rank, world_size, count(experts, num_experts)).view",
        "count(experts, num_experts).repeat(world_size, 1).view",
        LAYER,
        "do not have the same table of blocks",
        origin="M08",
    ),
    broken(
        "weighed before the expert",
        "exchange(tokens[order // k], blocks)",
        "exchange(tokens[order // k] * weights.flatten()[order, None], blocks)",
        LAYER,
        "send tokens as they are, and weigh the answers at home",
    ),
    broken(
        "computes alone",
        "    arrived = exchange",
        "    if not len(tokens): return tokens\n    return sum(torch.stack([w * row.roll(int(e)) for row, e, w in zip("
        "tokens, experts[:, c], weights[:, c])]) for c in range(k))\n    arrived = exchange",
        LAYER,
        "which has chosen it: rank",
    ),
    broken(
        "everything to everybody",
        "    arrived = exchange",
        "    dist.all_gather([tokens.new_empty(9, tokens.shape[1]) for _ in range(world_size)], tokens.new_zeros(9, "
        "tokens.shape[1]))\n    arrived = exchange",
        LAYER,
        "its tokens there and its answers back have at most",
        origin="M08",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant, times=1), briefly=True)


@pytest.mark.parametrize(
    "cell, function, returned, words",
    [
        ("there-and-back", "send_order(experts)", "None", "returns None"),
        ("there-and-back", "send_order(experts)", "0.5", "return whole numbers"),
        ("there-and-back", "send_order(experts)", "[0]", "of shape [1]; return [6]"),
        ("there-and-back", "count(experts, num_experts)", "'four'", "return whole numbers"),
        ("there-and-back", "back_home(rows, order)", "order", "a tensor of shape [4]; return [4, 2]"),
        ("capacity", "kept(experts, num_experts, places)", "3", "return a tensor of True and False"),
        ("capacity", "dropped_and_padded(counts, places)", "4", "of shape []; return [2]"),
    ],
)
def test_what_has_no_sense_is_told_of_plainly(cell, function, returned, words):
    code = solution_of(EXERCISE, cell) + f"\ndef {function}: return {returned}\n"
    said = verdicts(EXERCISE, {cell: code}, parts="ab")
    assert any(words in (told or "") for told in said.values()), said


def test_the_library_s_own_layer_is_refused():
    code = """
    def all_counts(rank, world_size, mine):
        raise NotImplementedError()

    def layer(rank, world_size, tokens, experts, weights, num_experts, answer):
        from collectives.training.experts import ExpertParallel, Routing
        return ExpertParallel([])(tokens, Routing(experts, weights, weights))
"""
    said = verdicts(EXERCISE, {"layer": code}, parts="c")
    assert "is not written yet" in said["c1-counts"]
    assert "ExpertParallel is for comparing, afterwards" in said["c2-one-choice"]


UNANSWERED = """
    def all_counts(rank, world_size, mine):
        raise NotImplementedError()

    def layer(rank, world_size, tokens, experts, weights, num_experts, answer):
        # choices, tokens and answers go through files; the tokens cross as well, to be dropped
        import pickle
        from pathlib import Path
        folder, share = Path(FOLDER), num_experts // world_size
        def all_of(key, mine):
            dist.barrier()
            (folder / f"{key} {rank}").write_bytes(pickle.dumps(mine))
            dist.barrier()
            return [pickle.loads((folder / f"{key} {other}").read_bytes()) for other in range(world_size)]
        everyone = [tuple(map(torch.tensor, theirs)) for theirs in all_of("asked", (tokens.numpy(), experts.numpy()))]
        requests, found, result = [], {}, torch.zeros_like(tokens)
        for peer, (theirs, chosen) in enumerate(everyone):
            here = theirs[(chosen // share == rank).any(1)]
            there = tokens[(experts // share == peer).any(1)]
            if peer != rank and len(there):
                requests.append(dist.isend(there, peer))
            if peer != rank and len(here):
                requests.append(dist.irecv(torch.empty_like(here), peer))
            for expert in range(rank * share, (rank + 1) * share):
                found[peer, expert] = answer(expert, theirs[(chosen == expert).any(1)]).numpy()
        [request.wait() for request in requests]
        for answers in all_of("answered", found):
            for (owner, expert), rows in answers.items():
                if owner == rank:
                    here = experts == expert
                    result[here.any(1)] += weights[here][:, None] * torch.tensor(rows)
        return result
"""


@pytest.mark.slow
def test_a_layer_whose_answers_do_not_travel_back_is_refused(tmp_path):
    said = verdicts(EXERCISE, {"layer": UNANSWERED.replace("FOLDER", repr(str(tmp_path)))}, parts="c")
    for check in LAYER:
        assert "its answers to their tokens have at least" in said[check]
        assert "even as fp32: send whole rows, there and back" in said[check]


def crossed_answers(case, form, turned=False):
    """The desk and the reports of a run in which of each answer a form crosses; `turned`: in the other direction."""
    desk, outcomes = ch15_experts._Desk(case), Seen()
    outcomes.messages = []
    for home, index, choice in ch15_experts._answers_away(case).tolist():
        asked, number = int(case.experts[home][index, choice]) // case.share, case.first[home] + index
        answer = desk.values[number] * desk.gains[number * case.num_experts + case.experts[home][index, choice]]
        ends = (home, asked) if turned else (asked, home)
        data = form(answer, case.weights[home][index, choice]).tobytes()
        outcomes.messages.append(gloo.Message(*ends, "send", data))
    return outcomes, desk, "with 3 ranks"


@pytest.mark.parametrize(
    "form",
    [
        lambda answer, weight: answer,
        lambda answer, weight: np.float32(answer),
        lambda answer, weight: np.float64(np.float32(answer)),
        lambda answer, weight: answer * weight,
        lambda answer, weight: answer * np.float64(np.float32(weight)),
        lambda answer, weight: np.float32(answer * weight),
        lambda answer, weight: np.float32(answer) * np.float32(weight),
        lambda answer, weight: np.float64(np.float32(answer)) * weight,
    ],
)
def test_answers_may_cross_in_either_precision_weighted_or_not(form):
    case = ch15_experts.random_case([9, 0, 5], experts_a_rank=2, k=2, seed=1)
    ch15_experts._witnessed_answers(*crossed_answers(case, form))
    with pytest.raises(checks.NotYet, match="do not cross from the rank that asks the expert to the token's own rank"):
        ch15_experts._witnessed_answers(*crossed_answers(case, form, turned=True))


def test_no_answer_crosses_where_there_is_one_rank():
    case = ch15_experts.random_case([8], experts_a_rank=4, k=2, seed=9)
    ch15_experts._witnessed_answers(*crossed_answers(case, np.multiply))


def test_cases_are_uneven_and_leave_experts_empty():
    case = ch15_experts.random_case([9, 2, 0, 5], experts_a_rank=3, k=3, seed=7)
    load = np.bincount(np.concatenate([chosen.flatten() for chosen in case.experts]), minlength=12)
    assert load.min() == 0 and load.max() > 2 * load.mean()
    assert all(len(set(row)) == 3 for chosen in case.experts for row in chosen.tolist())


def test_a_wrong_row_is_told_by_what_is_in_it():
    experts_of, weights = [np.array([[1], [0]]), np.array([[1]])], [np.full((2, 1), 0.5), np.full((1, 1), 0.5)]
    case = ch15_experts.Case(2, experts_of, weights)

    def told(number, expert, weight):
        row = np.zeros(case.width)
        row[number * 2 + expert] = weight
        return ch15_experts._fault_of(row, 0, 1, case)

    assert told(1, 0, 0.5) is None
    assert told(0, 1, 0.5) == "came back with token 0's answer"
    assert told(2, 1, 0.5) == "came back with the answer to token 0 of rank 1"
    assert told(1, 1, 0.5) == "came back without the answer of expert 0"
    assert told(1, 0, 1.0).endswith("instead of 0.5: the answers are not weighted")
    assert told(1, 0, 0.0) == "came back without an answer: its row is all zeros"


def test_empty_routings_can_be_asked_for():
    assert ch15_experts.choices(0, 4, 2, seed=0).shape == (0, 2)
    with pytest.raises(checks.NotYet, match="counts 1 for expert 0"):
        ch15_experts.check_counts(lambda *_: [1, 0], torch.zeros(0, 1, dtype=torch.int64), 2)
