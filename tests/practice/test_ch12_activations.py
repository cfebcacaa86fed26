"""Exercise 12 accepts right answers however they are written, and refuses wrong ones in words that name the slip."""

import pytest
import torch
from answers import assert_accepted, assert_refused, broken, graded, verdicts, with_slip, written

from collectives.practice import ch12_activations
from collectives.practice.ch12_activations import Op

EXERCISE = "12_activations"
NEEDED, BYTES = "a1-needed", "a2-bytes"
GRADIENTS, MEMORY, DROPOUT = "b1-gradients", "b2-memory", "b3-dropout"
RUNS = {GRADIENTS, MEMORY, DROPOUT}
AGAIN, FITS, BEST = "c1-again", "c2-fits", "c3-best"
CHOSEN = {FITS, BEST}

# Right answers, each in another style than the solution's.

BY_A_FUNCTION = {
    "keeps": """
    READS = dict.fromkeys("norm product silu square mul swiglu".split(), "i") | {"attention": "io", "tanh": "o"}

    def needed(ops):
        for op in ops:
            how = READS.get(op.kind, "")
            yield from op.inputs if "i" in how else ()
            if "o" in how:
                yield op.output

    def kept_bytes(ops, names, num_layers):
        inside = sum(op.num_bytes for op in ops[:-1] if op.output in names)
        between = ops[-1].num_bytes
        ends = ("x" in names) + (ops[-1].output in names)
        return float(num_layers * inside + between * (num_layers * (ends > 0) + (ends == 2)))
    """,
    "recompute": """
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, anchor, function, *inputs):
            ctx.function, ctx.state = function, torch.get_rng_state()
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            inputs = [x.detach() for x in ctx.saved_tensors]
            for own, x in zip(inputs, ctx.saved_tensors):
                own.requires_grad = x.requires_grad
            now = torch.get_rng_state()
            torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                output = ctx.function(*inputs)
            torch.set_rng_state(now)
            output.backward(gradient)
            return None, None, *[x.grad for x in inputs]

    def recomputed(function, *inputs):
        return Again.apply(torch.zeros(1, requires_grad=True), function, *inputs)
    """,
    "choice": """
    from functools import lru_cache

    def again(ops, needed, kept):
        by_name = {op.output: op for op in ops}
        done = set()

        def visit(name):
            if name == "x" or name in kept or name in done:
                return 0
            done.add(name)
            return by_name[name].time + sum(visit(each) for each in by_name[name].inputs)

        return sum(map(visit, needed))

    def choose(ops, needed, budget):
        def best(index, room, kept):
            if index == len(ops):
                return again(ops, needed, kept), kept
            without = best(index + 1, room, kept)
            if ops[index].num_bytes > room or not without[0]:
                return without
            return min(without, best(index + 1, room - ops[index].num_bytes, kept + (ops[index].output,)))

        wanted = set(needed)
        for op in ops[::-1]:
            wanted |= set(op.inputs) if op.output in wanted else set()
        ops = [op for op in ops if op.output in wanted]
        return best(0, budget, ())[1]
    """,
}
WITH_ARRAYS = {
    "keeps": """
    import numpy as np

    def needed(ops):
        inputs = [name for op in ops if op.kind not in {"add", "tanh", "rotate"} for name in op.inputs]
        return np.array(inputs + [op.output for op in ops if op.kind in {"attention", "tanh"}])

    def kept_bytes(ops, names, num_layers):
        last = ops[-1].output
        sizes = {(op.output, layer): op.num_bytes for op in ops for layer in range(num_layers)}
        sizes[last, -1] = ops[-1].num_bytes
        kept = {(last, layer - 1) if name == "x" else (name, layer) for name in names for layer in range(num_layers)}
        return np.sum([sizes[each] for each in kept], dtype=np.int64)
    """,
    "recompute": """
    def recomputed(function, *inputs):
        start = torch.random.get_rng_state()
        saved = None
        index = -1

        def pack(_):
            nonlocal index
            index += 1
            return index

        def unpack(at):
            nonlocal saved
            if saved is None:
                saved = {}
                copies = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
                later = torch.random.get_rng_state()
                torch.random.set_rng_state(start)
                with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(
                    lambda t: saved.setdefault(len(saved), t.detach()), lambda t: t
                ):
                    function(*copies)
                torch.random.set_rng_state(later)
            return saved.pop(at)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return function(*inputs)
    """,
    "choice": """
    import numpy as np

    def tables(ops, needed):
        masks = np.arange(1 << len(ops))
        kept = {op.output: (masks >> k) % 2 == 1 for k, op in enumerate(ops)}
        asked = {op.output: np.full(len(masks), op.output in needed) for op in ops}
        total = np.zeros(len(masks), dtype=np.int64)
        for op in ops[::-1]:
            redo = asked[op.output] & ~kept[op.output]
            total = total + np.where(redo, op.time, 0)
            for name in op.inputs:
                if name in asked:
                    asked[name] = asked[name] | redo
        return kept, total

    def again(ops, needed, kept):
        index = sum(1 << k for k, op in enumerate(ops) if op.output in kept)
        return torch.tensor(tables(ops, needed)[1][index])

    def choose(ops, needed, budget):
        kept, total = tables(ops, needed)
        size = sum(kept[op.output] * op.num_bytes for op in ops)
        winner = np.argmin(np.where(size <= budget, total, np.inf))
        return np.array([op.output for op in ops if kept[op.output][winner]], dtype=str)
    """,
}
BY_VJP = {
    "recompute": """
    class Anchor(torch.autograd.Function):
        @staticmethod
        def forward(ctx, anchor, call, *inputs):
            ctx.call, ctx.inputs = call, inputs
            ctx.cpu = torch.get_rng_state()
            with torch.no_grad():
                return call(*inputs)

        @staticmethod
        def backward(ctx, upstream):
            with torch.random.fork_rng(devices=()), torch.enable_grad():
                torch.set_rng_state(ctx.cpu)
                leaves = tuple(t.detach().requires_grad_(t.requires_grad) for t in ctx.inputs)
                result = ctx.call(*leaves)
            torch.autograd.backward((result,), (upstream,))
            ctx.inputs = None
            return (None, None) + tuple(leaf.grad for leaf in leaves)

    def recomputed(function, *inputs):
        anchor = torch.tensor(0.0).requires_grad_()
        return Anchor.apply(anchor, function, *inputs)
    """,
    "choice": """
    def again(ops, needed, kept):
        todo, seen, times = list(needed), set(kept) | {"x"}, []
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                (op,) = [op for op in ops if op.output == name]
                times.append(op.time)
                todo.extend(op.inputs)
        return sum(times)

    def choose(ops, needed, budget):
        table = {}
        for op in ops:
            table[op.output] = op
        choices = [frozenset()]
        useful = {op.output for op in ops if again(ops, needed, ()) != again(
            [o._replace(time=o.time + 1) if o is op else o for o in ops], needed, ())}
        for name in useful:
            choices += [choice | {name} for choice in choices
                        if sum(table[each].num_bytes for each in choice | {name}) <= budget]
        return min(choices, key=lambda choice: (again(ops, needed, choice), len(choice)))
    """,
}
TUPLES_AND_TENSORS = {
    "keeps": """
    def needed(ops):
        kept = {}
        for output, kind, inputs, *_ in ops:
            match kind:
                case "tanh":
                    kept[output] = True
                case "attention":
                    kept |= dict.fromkeys((*inputs, output))
                case "add" | "rotate":
                    pass
                case _:
                    kept.update(dict.fromkeys(inputs))
        return kept.keys()

    def kept_bytes(ops, names, num_layers):
        sizes = [op.num_bytes for op in ops if op.output in names]
        if "x" in names and ops[-1].output not in names:
            sizes.append(ops[-1].num_bytes)
        total = torch.tensor(sizes, dtype=torch.int64).sum() * num_layers
        return total + ops[-1].num_bytes if {"x", ops[-1].output} <= names else total
    """,
    "recompute": """
    class Memo:
        def __init__(self, function, inputs):
            self.function, self.inputs, self.state = function, inputs, torch.get_rng_state()
            self.packed, self.recovered = 0, None

        def pack(self, tensor):
            self.packed += 1
            return self.packed - 1

        def unpack(self, ticket):
            if self.recovered is None:
                self.recovered = []
                own = [t.detach() for t in self.inputs]
                for mine, theirs in zip(own, self.inputs):
                    mine.requires_grad_(theirs.requires_grad)
                before = torch.get_rng_state()
                torch.set_rng_state(self.state)
                with torch.enable_grad(), saved_tensors_hooks(self.keep, lambda nothing: nothing):
                    self.function(*own)
                torch.set_rng_state(before)
            return self.recovered[ticket]

        def keep(self, tensor):
            self.recovered.append(tensor.detach())

    def recomputed(function, *inputs):
        memo = Memo(function, inputs)
        with saved_tensors_hooks(memo.pack, memo.unpack):
            return function(*inputs)
    """,
    "choice": """
    def again(ops, needed, kept):
        flags = [op.output in needed for op in ops]
        place = {op.output: k for k, op in enumerate(ops)}
        total = 0.0
        for k in range(len(ops) - 1, -1, -1):
            if flags[k] and not ops[k].output in kept:
                total += ops[k].time
                for name in ops[k].inputs:
                    if name in place:
                        flags[place[name]] = True
        return total

    def choose(ops, needed, budget):
        wanted = list(needed)
        for name in wanted:
            wanted += [i for op in ops if op.output == name for i in op.inputs if i != "x" and i not in wanted]
        some = [op for op in ops if op.output in wanted]
        found = []
        for bits in range(2 ** len(some)):
            picked = [op for k, op in enumerate(some) if bits & 1 << k]
            if sum(op.num_bytes for op in picked) <= budget:
                found.append((again(some, needed, [op.output for op in picked]), bits))
        bits = min(found)[1]
        return [op for k, op in enumerate(some) if bits & 1 << k]
    """,
}
RIGHT = {
    "generators, a Function, a recursion": BY_A_FUNCTION,
    "numpy": WITH_ARRAYS,
    "no grad in the forward pass; sets that grow": BY_VJP,
    "a class of hooks; operations instead of names": TUPLES_AND_TENSORS,
    "keeps x by name": {
        "choice": """
        def again(ops, needed, kept):
            wanted = {*needed}
            return sum(op.time for op in ops[::-1]
                       if op.output in wanted and op.output not in kept and not wanted.update(op.inputs))

        def choose(ops, needed, budget):
            wanted = {*needed}
            for op in ops[::-1]:
                wanted |= {*op.inputs} if op.output in wanted else {*()}
            ops = [op for op in ops if op.output in wanted]
            fit = [(again(ops, needed, {op.output for op in some}), n, k, {"x"} | {op.output for op in some})
                   for n in range(len(ops) + 1) for k, some in enumerate(combinations(ops, n))
                   if sum(op.num_bytes for op in some) <= budget]
            return min(fit)[3]
        """
    },
}

# Wrong answers. `origin`: where a mistake comes from.

ALWAYS_INPUTS = 'if op.kind not in ("add", "rotate", "tanh"):'
MUTANTS = [
    broken(
        "an addition keeps",
        '("add", "rotate", "tanh")',
        '("rotate", "tanh")',
        {NEEDED},
        "an addition's gradient",
        "page 12",
    ),
    broken(
        "a rotation keeps", '("add", "rotate", "tanh")', '("add", "tanh")', {NEEDED}, "rotate multiplies by constants"
    ),
    broken("tanh keeps both", '("add", "rotate", "tanh")', '("add", "rotate")', {NEEDED}, "not its input as well"),
    broken(
        "tanh keeps nothing",
        '("tanh", "attention")',
        '("attention",)',
        {NEEDED},
        "so it reads its output",
        "page 12",
    ),
    broken(
        "attention without its result",
        '("tanh", "attention")',
        '("tanh",)',
        {NEEDED},
        "reads its result besides",
        "page 12",
    ),
    broken(
        "norm like an addition",
        '("add", "rotate", "tanh")',
        '("add", "rotate", "tanh", "norm")',
        {NEEDED},
        "a norm isn't linear",
    ),
    broken(
        "mul like an addition",
        '("add", "rotate", "tanh")',
        '("add", "rotate", "tanh", "mul")',
        {NEEDED},
        "the other factor",
    ),
    broken(
        "product keeps its output",
        '("tanh", "attention")',
        '("tanh", "attention", "product")',
        {NEEDED},
        "don't read its output",
    ),
    broken("every input", ALWAYS_INPUTS, "if True:", {NEEDED}, "add and rotate read nothing"),
    broken("without x", "return names\n", 'return names - {"x"}\n', {NEEDED}, "the layer's input is kept too"),
    broken(
        "a name that isn't there",
        "return names\n",
        'return names | {"weight"}\n',
        {NEEDED},
        "among the names; the layer has",
    ),
    broken("a number", "return names\n", "return len(names)\n", {NEEDED}, "return a set of names"),
    broken("one layer", "num_bytes = num_layers * sum", "num_bytes = sum", {BYTES}, "this is one layer"),
    broken("twice", "(num_layers - 1) * sizes", "0 * sizes", {BYTES}, "one tensor, which counts once"),
    broken("no input", "for name in names)", 'for name in names - {"x"})', {BYTES}, "torch keeps"),
    broken(
        "one too many", "(num_layers - 1) * sizes", "num_layers * sizes", {BYTES}, "no other layer has the first one's"
    ),
    broken("all tensors", "for name in names)", "for name in sizes)", {BYTES}, "torch keeps"),
    broken("in GB", "return num_bytes", "return num_bytes / 1e9", {BYTES}, "this is in GB"),
    broken("a tensor each", "sum(sizes[name] for name in names)", "len(names)", {BYTES}, "torch keeps"),
    written(
        "no recomputation",
        "recompute",
        "def recomputed(function, *inputs):\n    return function(*inputs)",
        RUNS,
        "doesn't run the function again",
    ),
    written(
        "torch's checkpoint",
        "recompute",
        "from torch.utils.checkpoint import checkpoint as c\n\ndef recomputed(function, *inputs):\n"
        "    return c(function, *inputs, use_reentrant=False)",
        RUNS,
        "torch.utils.checkpoint and the library's own are for comparing",
        "usual slip",
    ),
    written(
        "torch's reentrant checkpoint",
        "recompute",
        "import torch.utils.checkpoint as t\n\ndef recomputed(function, *inputs):\n"
        "    return t.checkpoint(function, *inputs, use_reentrant=True)",
        RUNS,
        "torch.utils.checkpoint and the library's own are for comparing",
        "usual slip",
    ),
    written(
        "detached",
        "recompute",
        "def recomputed(function, *inputs):\n    return function(*inputs).detach()",
        RUNS,
        "a tensor without a gradient",
    ),
    written(
        "offloaded",
        "recompute",
        "def recomputed(function, *inputs):\n"
        "    with saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):\n"
        "        return function(*inputs)",
        RUNS,
        "something else than its inputs is kept",
        "page 12",
    ),
    written(
        "offloaded, and run again for show",
        "recompute",
        """
        def recomputed(function, *inputs):
            ran = []

            def unpack(array):
                if not ran:
                    ran.append(True)
                    with torch.no_grad(), torch.random.fork_rng(devices=[]):
                        function(*inputs)
                return torch.from_numpy(array)

            with saved_tensors_hooks(lambda tensor: tensor.detach().numpy().copy(), unpack):
                return function(*inputs)
        """,
        RUNS,
        "doesn't come from the second run",
        "usual slip",
    ),
    broken("new masks", "torch.set_rng_state(state)", "pass", {DROPOUT}, "must drop the same numbers again", "page 12"),
    broken(
        "the generator stays back",
        "with torch.random.fork_rng(devices=[]), torch.enable_grad():",
        "with torch.enable_grad():",
        {DROPOUT},
        "or the next step draws masks that were used",
        "page 12",
    ),
    broken(
        "once for each tensor",
        "if not tensors:\n            run_again()",
        "tensors.clear()\n        run_again()",
        {MEMORY},
        "the backward pass runs the function",
    ),
    broken(
        "runs ahead",
        "    with saved_tensors_hooks(pack, unpack):",
        "    function(*inputs)\n    with saved_tensors_hooks(pack, unpack):",
        {MEMORY, DROPOUT},
        "the forward pass runs the function 2 times",
    ),
    broken(
        "keeps it all",
        "    def pack(tensor):\n",
        "    everything = []\n\n    def pack(tensor):\n        everything.append(tensor.detach())\n",
        {MEMORY},
        "bytes are kept besides the first input",
    ),
    broken(
        "never dropped",
        "tensor, tensors[number] = tensors[number], None\n        return tensor",
        "globals().setdefault('ALL', []).append(tensors[number])\n        return tensors[number]",
        {MEMORY},
        "dropped when it is done",
    ),
    written(
        "no anchor",
        "recompute",
        """
        class Again(torch.autograd.Function):
            @staticmethod
            def forward(ctx, function, *inputs):
                ctx.function, ctx.state = function, torch.get_rng_state()
                ctx.save_for_backward(*inputs)
                return function(*inputs)

            @staticmethod
            def backward(ctx, gradient):
                own = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
                with torch.random.fork_rng(devices=[]), torch.enable_grad():
                    torch.set_rng_state(ctx.state)
                    output = ctx.function(*own)
                output.backward(gradient)
                return None, *[x.grad for x in own]

        def recomputed(function, *inputs):
            return Again.apply(function, *inputs)
        """,
        {GRADIENTS},
        "whether or not an input does",
        "usual slip",
    ),
    written(
        "first input's gradient only",
        "recompute",
        """
        class Again(torch.autograd.Function):
            @staticmethod
            def forward(ctx, anchor, function, *inputs):
                ctx.function, ctx.state = function, torch.get_rng_state()
                ctx.save_for_backward(*inputs)
                return function(*inputs)

            @staticmethod
            def backward(ctx, gradient):
                own = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
                with torch.random.fork_rng(devices=[]), torch.enable_grad():
                    torch.set_rng_state(ctx.state)
                    output = ctx.function(*own)
                output.backward(gradient)
                return None, None, own[0].grad, *[None for x in own[1:]]

        def recomputed(function, *inputs):
            return Again.apply(torch.zeros(1, requires_grad=True), function, *inputs)
        """,
        {GRADIENTS, MEMORY},
        "the gate has no gradient",
    ),
    written(
        "rounded",
        "recompute",
        "def recomputed(function, *inputs):\n"
        "    def pack(t):\n        return t.bfloat16() if t.is_floating_point() else t\n\n"
        "    def unpack(t):\n        return t.float() if t.is_floating_point() else t\n\n"
        "    with saved_tensors_hooks(pack, unpack):\n"
        "        return function(*inputs)",
        RUNS,
        "a plain run gives",
    ),
    broken(
        "one op back",
        "wanted.update(op.inputs)\n    return time",
        "pass\n    return time",
        {AGAIN, BEST},
        "needs that one first",
        "page 12",
    ),
    broken(
        "through what is kept",
        "if op.output in wanted and op.output not in kept:",
        "if op.output in wanted:",
        {AGAIN, FITS, BEST},
        "what is kept needs no computing",
    ),
    broken(
        "whatever is dropped",
        "if op.output in wanted and op.output not in kept:",
        "if op.output not in kept:",
        {AGAIN, BEST},
        "some of it nothing needs",
    ),
    written(
        "for each reader",
        "choice",
        "def again(ops, needed, kept):\n    by = {op.output: op for op in ops}\n"
        "    def cost(name):\n        if name == 'x' or name in kept:\n            return 0\n"
        "        return by[name].time + sum(map(cost, by[name].inputs))\n"
        "    return sum(map(cost, needed))\n\ndef choose(ops, needed, budget):\n    return set()",
        {AGAIN, FITS, BEST},
        "computed again only once",
    ),
    broken("operations", "time += op.time", "time += 1", {AGAIN, FITS, BEST}, "counts operations, not their time"),
    broken(
        "fits strictly",
        "for op in some) <= budget",
        "for op in some) < budget",
        {BEST},
        "to the byte, fits",
        "usual slip",
    ),
    broken("over budget", "for op in some) <= budget", "for op in some[1:]) <= budget", CHOSEN, "bytes of"),
    broken("keeps nothing", "return set(best)", "return set()", CHOSEN, "save only 0%"),
    broken("keeps what is read", "return set(best)", "return set(needed)", CHOSEN, "bytes of"),
    broken(
        "only what is read",
        "ops = [op for op in ops if op.output in wanted]  #",
        "ops = [op for op in ops if op.output in needed]  #",
        {BEST},
        "microseconds again",
    ),
    written(
        "greedy by a tensor's own time",
        "choice",
        """
        def again(ops, needed, kept):
            wanted, time = set(needed), 0
            for op in reversed(ops):
                if op.output in wanted and op.output not in kept:
                    time += op.time
                    wanted.update(op.inputs)
            return time

        def choose(ops, needed, budget):
            kept, room = set(), budget
            for op in sorted(ops, key=lambda op: op.time / op.num_bytes, reverse=True):
                if op.output in needed and op.num_bytes <= room:
                    kept.add(op.output)
                    room -= op.num_bytes
            return kept
        """,
        {BEST},
        "greedy by each tensor's own time a byte",
    ),
    written(
        "greedy by what it saves",
        "choice",
        """
        def again(ops, needed, kept):
            wanted, time = set(needed), 0
            for op in reversed(ops):
                if op.output in wanted and op.output not in kept:
                    time += op.time
                    wanted.update(op.inputs)
            return time

        def choose(ops, needed, budget):
            kept, room = set(), budget
            while True:
                now = again(ops, needed, kept)
                fit = [op for op in ops if op.output not in kept and op.num_bytes <= room]
                saved = {op: (now - again(ops, needed, kept | {op.output})) / op.num_bytes for op in fit}
                if not saved or max(saved.values()) <= 0:
                    return kept
                best = max(saved, key=saved.get)
                kept.add(best.output)
                room -= best.num_bytes
        """,
        {BEST},
        "greedy by saving a byte",
    ),
    written(
        "a knapsack without inputs",
        "choice",
        """
        def again(ops, needed, kept):
            wanted, time = set(needed), 0
            for op in reversed(ops):
                if op.output in wanted and op.output not in kept:
                    time += op.time
                    wanted.update(op.inputs)
            return time

        def choose(ops, needed, budget):
            ops = [op for op in ops if op.output in needed]
            some = [some for n in range(len(ops) + 1) for some in combinations(ops, n)]
            fit = [some for some in some if sum(op.num_bytes for op in some) <= budget]
            return {op.output for op in max(fit, key=lambda some: sum(op.time for op in some))}
        """,
        {BEST},
        "microseconds again",
        "page 12",
    ),
    written(
        "a library's function",
        "keeps",
        "needed = ch12_activations.reads\ndef kept_bytes(*_): return 0",
        {NEEDED, BYTES},
        "write this part yourself",
        "usual slip",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.slip)
def test_a_wrong_answer_is_refused_and_the_slip_is_named(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), looks=False)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name], looks=False)


# What the checks compare with


def test_what_the_choices_build_on_is_what_autograd_keeps():
    layers = [*ch12_activations.short_layers(), *ch12_activations.random_layers(seed=3, longest=10)]
    for layer in layers:
        assert ch12_activations.reads(layer) == ch12_activations.saves(tuple(layer))


@pytest.mark.parametrize("slip", ch12_activations.SLIPS)
def test_every_mistake_about_a_kind_matters_among_the_short_layers(slip):
    layers = ch12_activations.short_layers()
    assert sum(ch12_activations.SLIPS[slip](layer) != ch12_activations.reads(layer) for layer in layers) >= 20


@pytest.mark.parametrize("seed", range(10))
def test_every_mistaken_choice_is_wrong_in_every_draw_of_cases(seed):
    cases = ch12_activations.random_cases(seed)
    for mistake in ch12_activations.CHOICES.values():
        wrong = [case for case in cases if ch12_activations._why_wrong(*case, mistake(*case))]
        assert len(wrong) >= 2


def test_the_time_of_a_subset_is_that_of_what_runs_again():
    layer = ch12_activations.random_layers(seed=8, how_many=1)[0]
    needed = ch12_activations.reads(layer) - {"x"}
    sizes, times = ch12_activations.all_seconds(layer, needed)
    for subset in range(len(sizes)):
        kept = {op.output for k, op in enumerate(layer) if subset >> k & 1}
        assert sizes[subset] == sum(op.num_bytes for op in layer if op.output in kept)
        assert times[subset] == ch12_activations._spent(layer, kept)


def test_a_layer_of_the_running_case_keeps_what_the_book_counts():
    for name in ch12_activations.LLAMAS:
        model, layer = ch12_activations.MODELS[name], ch12_activations.llama_layer(name)
        sizes = {"x": layer[0].num_bytes, **{op.output: op.num_bytes for op in layer}}
        kept = ch12_activations.saves(tuple(layer))
        assert sum(sizes[each] for each in kept) == sum(model.kept["none"]) * model.sequence


def test_a_run_leaves_torchs_random_state_and_threads_as_they_were():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    ch12_activations.tried(ch12_activations.plainly, ch12_activations.Task("dropout"))
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads


@pytest.mark.parametrize("library", ["saves(tuple(ops))", "reads(ops)", "_table() and set()"])
def test_the_checks_own_count_is_refused_as_an_answer(library):
    answer = f"def needed(ops):\n    return ch12_activations.{library}\n\ndef kept_bytes(*_): ..."
    ch12_activations.reads([Op("a", "tanh", ("x",))])  # what is remembered would need no call
    (words,) = verdicts(EXERCISE, {"keeps": answer}, [NEEDED]).values()
    assert "for comparing" in words


def test_a_table_of_known_layers_is_no_choice():
    """Names and kinds of operations were the key, whatever the units, as long as the layers were known."""
    table = {
        repr([op[:3] for op in layer]): ch12_activations.best(layer, budget)
        for seed in (15, 2204)
        for layer, budget in ch12_activations.random_cases(seed)
    }
    answer = f"""
    def again(*_): ...

    def choose(ops, needed, budget):
        return {table!r}[repr([tuple(op)[:3] for op in ops])]
    """
    ((_, words),) = graded(EXERCISE, {"choice": answer}, [FITS], looks=False).values()
    assert "KeyError" in words and "drawn at random" in words
