"""Exercise 09 accepts every step that is ZeRO-2's, and says what a wrong one computes, holds or sends wrongly."""

import re
import textwrap

import observed
import pytest
import torch
from answers import Mutant, assert_accepted, assert_refused, points_of, solution_of, verdicts, with_slip, written

from collectives.practice import ch09_zero, checks
from collectives.training import memory, traffic

EXERCISE = "09_zero"

# Right answers, each in another style than the solution's.

BY_CEILING = """
    def shard_bounds(num_elements, rank, world_size):
        size = -(-num_elements // world_size)
        return [size * rank, size * rank + size]

    def optimizer_state(parameters, rank, world_size):
        own = parameters.tensor_split(world_size)[rank].detach().clone().to(torch.float32)
        return State(own, torch.zeros(len(own)), torch.zeros(len(own)))
"""
BY_COUNTING = """
    def shard_bounds(num_elements, rank, world_size):
        whole, left = divmod(num_elements, world_size)
        size = whole + 1 if left else whole
        begin = sum(size for other in range(rank))
        return begin, begin + size

    def optimizer_state(parameters, rank, world_size):
        begin, end = shard_bounds(parameters.numel(), rank, world_size)
        full = parameters.float()
        return State(*(tensor[begin:end].clone() for tensor in (full, 0 * full, 0 * full)))
"""
LIKE_TORCHS = """
    def update(state, summed, world_size, lr=0.01, *settings):
        *betas, eps = settings or (0.9, 0.999, 1e-8)
        g = summed.to(torch.float32).div_(world_size)
        state.steps += 1
        state.mean.mul_(betas[0]).add_(g, alpha=1 - betas[0])
        state.square.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        root = state.square.sqrt() / (1 - betas[1] ** state.steps) ** 0.5 + eps
        state.master.addcdiv_(state.mean, root, value=-lr / (1 - betas[0] ** state.steps))
        return state.master.to(summed.dtype)
"""
IN_DOUBLE = """
    def update(state, summed, world_size, eta=0.01, b=0.9, c=0.999, e=1e-8):
        g = summed.double() / world_size
        t = state.steps = state.steps + 1
        m = b * state.mean.double() + (1 - b) * g
        v = c * state.square.double() + (1 - c) * g * g
        w = state.master.double() - eta * (m / (1 - b**t)) / (torch.sqrt(v / (1 - c**t)) + e)
        state.mean, state.square, state.master = m.float(), v.float(), w.float()
        return state.master.bfloat16()
"""
ADDED_IN_PLACE = """
    def arrived(rank, world_size, unit, tensor):
        if not unit.collect(tensor):
            return
        execute(ring.reduce_scatter(world_size), unit.gradients)
        finished = unit.gradients.chunk(world_size)[rank]
        if unit.reduced is None:
            unit.reduced = torch.zeros_like(finished)
        unit.reduced += finished
        unit.gradients = None

    def step(rank, world_size, units, update):
        for unit in units:
            unit.parameters.chunk(world_size)[rank].copy_(update(unit.state, unit.reduced, world_size))
            unit.reduced = None
        for unit in reversed(units):
            execute(ring.all_gather(world_size), unit.parameters)
"""
WITHOUT_COLLECT = """
    def arrived(rank, world_size, unit, tensor):
        if any(tensor.grad is None for tensor in unit.tensors):
            return
        flat = torch.cat([tensor.grad.flatten() for tensor in unit.tensors])
        flat = torch.nn.functional.pad(flat, (0, len(unit.parameters) - len(flat)))
        for tensor in unit.tensors:
            tensor.grad = None
        execute(ring.reduce_scatter(world_size), flat)
        own = flat.view(world_size, -1)[rank].clone()
        unit.total = own + getattr(unit, "total", 0)

    def step(rank, world_size, units, update):
        for unit in units:
            unit.parameters.view(world_size, -1)[rank] = update(unit.state, unit.total, world_size)
            del unit.total
            execute(ring.all_gather(world_size), unit.parameters)
"""
KEPT_ELSEWHERE = """
    SHARDS = {}

    def arrived(rank, world_size, unit, tensor):
        if unit.collect(tensor):
            flat, unit.gradients = unit.gradients, None
            execute(ring.reduce_scatter(world_size), flat)
            SHARDS.setdefault(unit, []).append(flat.chunk(world_size)[rank].clone())

    def step(rank, world_size, units, update):
        for unit in units:
            first, *others = SHARDS.pop(unit)
            for other in others:
                first = first + other
            size = len(first)
            unit.parameters[rank * size:(rank + 1) * size] = update(unit.state, first, world_size)
            execute(ring.all_gather(world_size), unit.parameters)
"""
BY_SEND_AND_RECV = """
    def go_round(rank, world_size, chunks, first, add):
        for turn in range(world_size - 1):
            out, target = chunks[(rank + first - turn) % world_size], chunks[(rank + first - turn - 1) % world_size]
            incoming = torch.empty_like(target)
            sending = dist.isend(out, (rank + 1) % world_size)
            dist.recv(incoming, (rank - 1) % world_size)
            sending.wait()
            target.copy_(target + incoming if add else incoming)

    def arrived(rank, world_size, unit, tensor):
        if unit.collect(tensor):
            chunks = unit.gradients.chunk(world_size)
            go_round(rank, world_size, chunks, -1, add=True)
            unit.reduced = chunks[rank] + (0 if unit.reduced is None else unit.reduced)
            unit.gradients = None

    def step(rank, world_size, units, update):
        for unit in units:
            chunks = unit.parameters.chunk(world_size)
            chunks[rank][:] = update(unit.state, unit.reduced, world_size)
            go_round(rank, world_size, chunks, 0, add=False)
            unit.reduced = None
"""


OTHER_CALLS = {
    "ownership": """
    def shard_bounds(num_elements, rank, world_size):
        size, left = divmod(num_elements, world_size)
        size += left > 0
        return tuple(size * number for number in (rank, rank + 1))

    def optimizer_state(parameters, rank, world_size):
        own = torch.narrow(parameters, 0, rank * len(parameters) // world_size, len(parameters) // world_size)
        return State(master=own.to(torch.float32, copy=True), mean=own.new_zeros(len(own), dtype=torch.float32),
                     square=torch.zeros(own.shape))
""",
    "update": """
    def update(state, summed, world_size, lr=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-8):
        state.steps = state.steps + 1
        gradient = summed.to(torch.float32) * (1 / world_size)
        state.mean = torch.lerp(gradient, state.mean, beta_1)
        state.square = torch.lerp(gradient.square(), state.square, beta_2)
        unbiased = [1 - beta**state.steps for beta in (beta_1, beta_2)]
        move = (state.mean / unbiased[0]) / ((state.square / unbiased[1]) ** 0.5 + epsilon)
        state.master = torch.sub(state.master, move, alpha=lr)
        return state.master.type(torch.bfloat16)
""",
}
RIGHT = {
    "added in place": {"ownership": BY_CEILING, "update": LIKE_TORCHS, "zero-2": ADDED_IN_PLACE},
    "without collect, and in double": {"ownership": BY_COUNTING, "update": IN_DOUBLE, "zero-2": WITHOUT_COLLECT},
    "shards kept elsewhere": {"zero-2": KEPT_ELSEWHERE},
    "by send and recv": {"zero-2": BY_SEND_AND_RECV},
    "other calls of torch": OTHER_CALLS,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Wrong answers: which checks must refuse them, and what the first must say.


A1, A2, BOTH_OF_B = {"a1-bounds"}, {"a2-state"}, {"b1-adam", "b2-small-updates"}
ALL_OF_C = {"c1-losses", "c2-memory", "c3-traffic", "c4-micro-batches"}
BOUNDS = "    return rank * size, (rank + 1) * size\n"
GATHER = "        execute(ring.all_gather(world_size), unit.parameters)\n"
REDUCE = "        execute(ring.reduce_scatter(world_size), unit.gradients)\n"
UPDATE = "update(unit.state, unit.reduced, world_size)"
FREE = "        unit.gradients = None\n"
KEEP = "        unit.reduced = shard if unit.reduced is None else unit.reduced + shard\n"
KEPT_AS_BYTES = """
    def arrived(rank, world_size, unit, tensor):
        if unit.collect(tensor):
            vars(unit).setdefault("kept", []).append(unit.gradients.float().numpy().tobytes())
            unit.gradients = None

    def step(rank, world_size, units, update):
        for unit in units:
            begin, end = shard_bounds(len(unit.parameters), rank, world_size)
            total = None
            for kept in unit.kept:
                whole = torch.frombuffer(bytearray(kept), dtype=torch.float32).bfloat16()
                execute(ring.reduce_scatter(world_size), whole)
                total = whole[begin:end].clone() if total is None else total + whole[begin:end]
            unit.kept.clear()
            unit.parameters[begin:end] = update(unit.state, total, world_size)
            execute(ring.all_gather(world_size), unit.parameters)
"""
ALONE = """
    import sys
    from collectives.practice import ch09_zero
    from collectives.training import tiny

    KNOWN = {}  # this rank's states of all shards, and the number of the next backward pass

    def flat(unit, tensors):
        whole = torch.zeros(len(unit.parameters), dtype=torch.bfloat16)
        numbers = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        whole[: len(numbers)] = numbers
        return whole

    def arrived(rank, world_size, unit, tensor):
        if unit.collect(tensor):
            unit.gradients = None

    def step(rank, world_size, units, update):
        frame = sys._getframe()
        while not {"task", "batches"} <= frame.f_locals.keys():
            frame = frame.f_back
        task, sums = frame.f_locals["task"], [None] * len(units)
        if not KNOWN:
            KNOWN.update(step=0, states=[ch09_zero._new_state(unit.parameters.clone()) for unit in units])
        for _ in range(task.micro):
            terms = []
            for other in range(world_size):
                model = ch09_zero._model(task)
                with torch.no_grad():
                    for mine, theirs in zip((t for unit in units for t in unit.tensors), model.parameters()):
                        theirs.copy_(mine)
                how = {"width": task.width, "dtype": torch.bfloat16, "seed": task.seed}
                tiny.loss(model, *tiny.batch(KNOWN["step"], other, world_size, **how)).backward()
                terms.append([flat(unit, [t.grad for t in module.parameters()]) for unit, module in zip(units, model)])
            KNOWN["step"] += 1
            for at, of_unit in enumerate(zip(*terms)):
                pieces = []
                for chunk in range(world_size):  # in the order of a ring
                    parts = [each.view(world_size, -1)[chunk] for each in of_unit]
                    total = parts[(chunk + 1) % world_size]
                    for hop in range(2, world_size + 1):
                        total = parts[(chunk + hop) % world_size] + total
                    pieces.append(total)
                sums[at] = torch.cat(pieces) if sums[at] is None else sums[at] + torch.cat(pieces)
        for unit, state, total in zip(units, KNOWN["states"], sums):
            update(unit.state, total.view(world_size, -1)[rank].clone(), world_size)
            unit.parameters.copy_(ch09_zero.adam(state, total, world_size))
"""
MUTANTS = [
    written("every rank computes all ranks' gradients alone", "zero-2", ALONE, ALL_OF_C, "the sum of its shard is"),
    Mutant(
        "a length rounded down",
        "ownership",
        "(num_elements + world_size - 1) // world_size",
        "num_elements // world_size",
        A1,
        "shard_bounds of 10 elements on 4 ranks gives shards of 2, so 2 elements belong to no rank: round the length",
        origin="D10",
    ),
    Mutant(
        "a length rounded up too far",
        "ownership",
        "(num_elements + world_size - 1) // world_size",
        "num_elements // world_size + 1",
        A1 | A2,
        "gives shards of 5; 4 are enough",
    ),
    Mutant(
        "no padding",
        "ownership",
        BOUNDS,
        "    return rank * size, min((rank + 1) * size, num_elements)\n",
        A1,
        "gives shards of 3, 3, 3 and 1 elements; all must be equally long",
    ),
    Mutant(
        "an end that belongs to it", "ownership", BOUNDS, BOUNDS.replace(" size\n", " size - 1\n"), A1 | A2, "not in"
    ),
    Mutant(
        "begin and length",
        "ownership",
        BOUNDS,
        "    return size\n",
        A1 | A2,
        "shard_bounds(12, 0, 3) returns 4; return two whole numbers",
    ),
    Mutant("half numbers", "ownership", ") // world_size", ") / world_size", A1 | A2, "return two whole numbers"),
    Mutant(
        "converted, then sliced",
        "ownership",
        "parameters[begin:end].float()",
        "parameters.float()[begin:end]",
        A2,
        "its master has 6 numbers, but keeps 48 bytes alive, not 24: a slice is a view of the whole buffer",
    ),
    Mutant(
        "a master in bf16",
        "ownership",
        "[begin:end].float()",
        "[begin:end].clone()",
        A2,
        "its master is torch.bfloat16",
        origin="D06",
    ),
    Mutant(
        "everything owned",
        "ownership",
        "parameters[begin:end].float()",
        "parameters.float()",
        A2,
        "its master has the shape [12]; the shard has 6 elements",
        origin="D10",
    ),
    Mutant(
        "one tensor for two",
        "ownership",
        "return State(master, mean=torch.zeros_like(master), square=torch.zeros_like(master))",
        "zeros = torch.zeros_like(master); return State(master, zeros, zeros)",
        A2,
        "its mean and its square are the same tensor",
    ),
    Mutant(
        "the shard of another",
        "ownership",
        "    begin, end = shard_bounds(len(parameters), rank, world_size)\n",
        "    begin, end = shard_bounds(len(parameters), world_size - 1 - rank, world_size)\n",
        A2,
        "it must be this rank's shard of the parameters",
    ),
    Mutant(
        "no mean",
        "update",
        "summed.float() / world_size",
        "summed.float()",
        {"b1-adam"},  # constant gradients of any size move Adam by the same
        "update on 2 ranks, update number 1 leaves state.mean[0] at",
    ),
    Mutant(
        "no mean, named",
        "update",
        ".float() / world_size",
        ".float()",
        {"b1-adam"},
        "sum was not divided by the number",
    ),
    Mutant(
        "divided in bf16",
        "update",
        "summed.float() / world_size",
        "(summed / world_size).float()",
        {"b1-adam"},
        "a division in bf16 rounds: go to fp32 first",
        origin="D06",
    ),
    Mutant(
        "bf16 parameters updated",
        "update",
        "state.master -= lr * mean / (square.sqrt() + epsilon)",
        "state.master = (state.master.bfloat16() - (lr * mean / (square.sqrt() + epsilon)).bfloat16()).float()",
        {"b2-small-updates", "b1-adam"},
        "update number 1 leaves state.master[0] at",
        origin="D06",
    ),
    Mutant(
        "no epsilon", "update", "(square.sqrt() + epsilon)", "square.sqrt()", {"b1-adam"}, "add epsilon to the root"
    ),
    Mutant(
        "settings of its own",
        "update",
        "    gradient = summed",
        "    lr, beta_1, beta_2 = 0.01, 0.9, 0.999\n    gradient = summed",
        {"b1-adam"},
        "use the lr, the betas and the epsilon that the call gives",
    ),
    Mutant(
        "updates not counted", "update", "state.steps += 1", "state.steps or 1", BOTH_OF_B, "leaves state.steps at 0"
    ),
    Mutant(
        "no bias correction",
        "update",
        "mean = state.mean / (1 - beta_1**state.steps)\n    square = state.square / (1 - beta_2**state.steps)",
        "mean, square = state.mean, state.square",
        BOTH_OF_B,
        "both means begin at 0 and are too small at first",
    ),
    Mutant("uphill", "update", "state.master -= lr", "state.master += lr", BOTH_OF_B, "it goes downhill: subtract"),
    Mutant("not squared", "update", "gradient**2", "gradient", BOTH_OF_B, "the gradient was not squared"),
    Mutant("no root", "update", "square.sqrt()", "square", BOTH_OF_B, "divide by the root of the squares"),
    Mutant(
        "the mean the wrong way round",
        "update",
        "state.mean.lerp_(gradient, 1 - beta_1)",
        "state.mean.lerp_(gradient, beta_1)",
        BOTH_OF_B,
        "0.9 of it is the old mean",
    ),
    Mutant(
        "a state that is left as it was",
        "update",
        "state.master -= lr",
        "state.master - lr",
        BOTH_OF_B,
        "it is still as it was; put the new one into state.master",
    ),
    Mutant("fp32 returned", "update", ".bfloat16()", "", {"b1-adam"}, "returns torch.float32; the layers compute in"),
    Mutant("nothing returned", "update", "return state", "state", BOTH_OF_B, "returns None; is its `return` missing?"),
    Mutant(
        "epsilon under the root",
        "update",
        "(square.sqrt() + epsilon)",
        "(square + epsilon).sqrt()",
        {"b1-adam"},
        "epsilon is added after the root, not under it",
    ),
    Mutant(
        "all-reduce",
        "zero-2",
        "ring.reduce_scatter(",
        "ring.all_reduce(",
        {"c3-traffic"},
        "rank 0 sends 1.5 times what DDP sends, 49,680 bytes in step 0 instead of 33,120: does it all-reduce where",
        origin="D02",
    ),
    Mutant(
        "a view kept",
        "zero-2",
        ".clone()",
        "",
        {"c2-memory"},
        "rank 0 holds 33,120 bytes of gradients after the backward pass; its shard is 16,560: does it free",
        origin="D05",
    ),
    written("kept as bytes until the step", "zero-2", KEPT_AS_BYTES, {"c2-memory"}, "bytes of complete gradients to"),
    Mutant(
        "fp32 shards",
        "zero-2",
        ".clone()",
        ".float()",
        {"c2-memory", "c4-micro-batches"},
        "rank 0 holds 33,120 bytes",
        origin="D06",
    ),
    Mutant(
        "not reduced",
        "zero-2",
        REDUCE,
        "",
        ALL_OF_C,
        "these are rank 0's own gradients alone: did it reduce anything?",
    ),
    Mutant("not gathered", "zero-2", GATHER, "", ALL_OF_C, "in shard 1: did it gather them?", origin="D11"),
    Mutant(
        "gathered before the update",
        "zero-2",
        f"        unit.parameters[begin:end] = {UPDATE}\n",
        f"{GATHER}        unit.parameters[begin:end] = {UPDATE}\n        continue\n",
        ALL_OF_C,
        "in shard 1: did it gather them?",
        origin="D11",
    ),
    Mutant(
        "what update returns dropped",
        "zero-2",
        f"unit.parameters[begin:end] = {UPDATE}",
        UPDATE,
        ALL_OF_C,
        "even in its own shard: write what update returns into unit.parameters[begin:end]",
    ),
    Mutant("old gradients left", "zero-2", FREE, "", ALL_OF_C, "step 0 was right: does it clean up?"),
    Mutant(
        "old sums left",
        "zero-2",
        "        unit.reduced = None\n",
        "",
        ALL_OF_C,
        "step 0 was right: does it clean up?",
    ),
    Mutant(
        "only the last pass",
        "zero-2",
        KEEP,
        "        unit.reduced = shard\n",
        {"c4-micro-batches"},
        "shards of all passes",
        origin="D05",
    ),
    Mutant(
        "divided before the update",
        "zero-2",
        UPDATE,
        "update(unit.state, unit.reduced / world_size, world_size)",
        ALL_OF_C,
        "this is the mean already",
    ),
    Mutant(
        "a new tensor for the parameters",
        "zero-2",
        "        begin, end = shard_bounds(len(unit.parameters), rank, world_size)\n        unit.parameters[",
        "        begin, end = shard_bounds(len(unit.parameters), rank, world_size)\n"
        "        unit.parameters = unit.parameters.clone()\n        unit.parameters[",
        ALL_OF_C,
        "unit.parameters of unit 0 is right, but it is a new tensor",
    ),
    Mutant(
        "the shard of another rank",
        "zero-2",
        "shard = unit.gradients[begin:end].clone()",
        "execute(ring.all_gather(world_size), unit.gradients)\n"
        "        shard = unit.gradients.chunk(world_size)[rank - 1].clone()",
        ALL_OF_C,
        "this is the shard of rank 1: rank r keeps chunk r",
    ),
    Mutant(
        "the first unit's length for all",
        "zero-2",
        "begin, end = shard_bounds(len(unit.parameters), rank, world_size)\n        unit.parameters",
        "begin, end = shard_bounds(len(units[0].parameters), rank, world_size)\n        unit.parameters",
        ALL_OF_C,
        "must match the existing size (1776)",
    ),
    Mutant(
        "the whole buffer for the update",
        "zero-2",
        "unit.gradients[begin:end].clone()",
        "unit.gradients",
        ALL_OF_C,
        "gives update a tensor of shape [4728]; its shard has 2364 elements",
    ),
    Mutant(
        "reduced before it is complete",
        "zero-2",
        "    if unit.collect(tensor):\n",
        "    complete = unit.collect(tensor)\n    execute(ring.reduce_scatter(world_size), unit.gradients)\n"
        "    if complete:\n",
        ALL_OF_C,
        "is a unit reduced once in each backward pass, when it is complete",
    ),
    Mutant("a unit left out", "zero-2", "in units:", "in units[1:]:", ALL_OF_C, "has not called update for unit 0"),
    Mutant(
        "updated twice", "zero-2", UPDATE, f"{UPDATE}; {UPDATE}", ALL_OF_C, "calls update twice for unit 0 in one step"
    ),
    Mutant("a state of its own", "zero-2", "unit.state", "State(0, 0, 0)", ALL_OF_C, "a state that is not unit.state"),
    Mutant(
        "no tensor", "zero-2", "unit.state, unit.reduced", "unit.state, None", ALL_OF_C, "hand it a tensor with sums"
    ),
    Mutant(
        "torch's own",
        "zero-2",
        GATHER,
        "        dist.all_gather_into_tensor(unit.parameters, unit.parameters[begin:end].clone())\n",
        ALL_OF_C,
        "rank 0 calls torch's own dist.all_gather, whose bytes the check can't count",
    ),
    Mutant(
        "an error", "zero-2", "if unit.collect(tensor)", "if unit.colect(tensor)", ALL_OF_C, "no attribute 'colect'"
    ),
]
ZERO_1 = """
    def arrived(rank, world_size, unit, tensor):
        unit.collect(tensor)

    def step(rank, world_size, units, update):
        for unit in units:
            begin, end = shard_bounds(len(unit.parameters), rank, world_size)
            execute(ring.reduce_scatter(world_size), unit.gradients)
            unit.parameters[begin:end] = update(unit.state, unit.gradients[begin:end], world_size)
            unit.gradients = None
            execute(ring.all_gather(world_size), unit.parameters)
"""
ALL_AT_THE_END = """
    COMPLETE = []

    def arrived(rank, world_size, unit, tensor):
        if unit.collect(tensor):
            COMPLETE.append(unit)
        if len(COMPLETE) == 4:
            for unit in COMPLETE:
                execute(ring.reduce_scatter(world_size), unit.gradients)
                shard = unit.gradients.chunk(world_size)[rank].clone()
                unit.reduced = shard if unit.reduced is None else unit.reduced + shard
                unit.gradients = None
            COMPLETE.clear()

    def step(rank, world_size, units, update):
        for unit in units:
            size = len(unit.reduced)
            unit.parameters[rank * size:(rank + 1) * size] = update(unit.state, unit.reduced, world_size)
            unit.reduced = None
            execute(ring.all_gather(world_size), unit.parameters)
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    wrong = with_slip(EXERCISE, mutant)
    # Each check of part c asks first whether the step is right. Only what ALONE sends is wrong.
    if mutant.refuse == ALL_OF_C and mutant.wrong != ALONE and not observed.recording():
        with pytest.raises(checks.NotYet, match=re.escape(mutant.says)) as refusal:
            ch09_zero.check_step(*step_of(wrong[mutant.cell]), world_size=2)
        observed.wrong(EXERCISE, mutant, {"c1-losses": (0, str(refusal.value))}, "c1-losses", points_of(EXERCISE))
        return
    assert_refused(EXERCISE, mutant, wrong)


def step_of(code):
    """The two functions of part c, which `code` defines."""
    names = {}
    before = [solution_of(EXERCISE, cell) for cell in ("setup", "ownership")]
    exec(compile("\n".join([*before, textwrap.dedent(code)]), "zero-2", "exec"), names)
    return names["arrived"], names["step"]


@pytest.mark.slow
def test_a_wrong_step_gets_no_points_for_being_frugal():
    said = verdicts(EXERCISE, {"zero-2": solution_of(EXERCISE, "zero-2").replace(GATHER, "")}, parts="c")
    assert {check for check, words in said.items() if words} == ALL_OF_C


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer, refuse, words",
    [
        (ZERO_1, {"c2-memory", "c4-micro-batches"}, "holds 33,120 bytes of gradients after the backward pass"),
        (ALL_AT_THE_END, {"c2-memory"}, "up to 37,728 bytes of gradients in the backward pass; with one unit in full"),
    ],
    ids=["stage 1", "all at the end"],
)
def test_a_right_step_that_holds_too_much_is_told_how_much(answer, refuse, words):
    said = verdicts(EXERCISE, {"zero-2": answer}, parts="c")
    assert {check for check, told in said.items() if told} == refuse
    assert words in said["c2-memory"]


def test_bf16_parameters_do_not_move_by_updates_too_small_for_them():
    rounded = solution_of(EXERCISE, "update").replace(
        "return", "state.master = state.master.bfloat16().float()\n    return"
    )
    said = verdicts(EXERCISE, {"update": rounded}, parts="b")
    assert "rounded to bf16; update the fp32 master, and round only what you return" in said["b1-adam"]
    assert "30 updates of 0.01 each bring a parameter from 5 to 5; it must be 4.6875" in said["b2-small-updates"]
    assert "bf16 numbers are 0.03125 apart there" in said["b2-small-updates"]


@pytest.mark.slow
def test_ranks_that_wait_for_each_other_are_named():
    send_first = BY_SEND_AND_RECV.replace("sending = dist.isend(", "dist.send(").replace("sending.wait()", "pass")
    with pytest.raises(checks.NotYet, match=r"each waits for the next: rank 0 → rank 1 → rank 0"):
        ch09_zero.check_step(*step_of(textwrap.dedent(send_first)), world_size=2)


@pytest.mark.slow
def test_what_is_missing_is_named():
    missing = "def arrived(*_):\n    raise NotImplementedError()\n\n\ndef step(*_):\n    raise NotImplementedError()"
    said = verdicts(EXERCISE, {"zero-2": missing}, parts="c")
    assert set(said.values()) == {"arrived is not written yet"}
    half = solution_of(EXERCISE, "zero-2").split("def step")[0] + missing.split("\n\n\n")[1]
    assert set(verdicts(EXERCISE, {"zero-2": half}, parts="c").values()) == {"step is not written yet"}


def test_the_checks_adam_is_torchs():
    start, gradients = torch.randn(50), [torch.randn(50).bfloat16() for _ in range(9)]
    state, parameter = (
        ch09_zero.State(start.clone(), torch.zeros(50), torch.zeros(50)),
        torch.nn.Parameter(start.clone()),
    )
    optimizer = torch.optim.Adam(
        [parameter], lr=ch09_zero.LR, betas=(ch09_zero.BETA_1, ch09_zero.BETA_2), eps=ch09_zero.EPSILON
    )
    for gradient in gradients:
        parameter.grad = gradient.float() / 3
        optimizer.step()
        assert torch.equal(ch09_zero.adam(state, gradient, 3), state.master.bfloat16())
        torch.testing.assert_close(state.master, parameter.detach())


def test_the_checks_ddp_sends_and_the_solution_holds_what_the_formulas_say():
    outcomes = ch09_zero.check_step(*step_of(solution_of(EXERCISE, "zero-2")), 3, watched=True)
    units = [sum(unit) for unit in ch09_zero._unit_sizes(ch09_zero.Task())]
    for ddp, mine in outcomes:
        assert ddp.sent == mine.sent == [traffic.sent(traffic.step(sum(units), 2), 3)] * ch09_zero.STEPS
        assert mine.rest == [memory.of_units(units, 3, 2).gradients] * ch09_zero.STEPS
        assert mine.peak <= memory.at_peak(ch09_zero._unit_sizes(ch09_zero.Task()), 3, 2).gradients
