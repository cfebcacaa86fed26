"""Exercise 11 accepts right answers however they are written, and refuses wrong ones in words that name the slip."""

import contextlib
from itertools import permutations

import numpy as np
import pytest
import torch
from answers import assert_accepted, assert_refused, broken, solution_of, verdicts, with_slip, written

from autograder.judging.judge import Seen
from autograder.sandbox import gloo
from collectives.practice import ch11_fewer_bits as ch11
from collectives.practice.checks import NotYet
from collectives.training import quantized

EXERCISE = "11_fewer_bits"
ERROR, BYTES, BOUND = "a1-error", "a2-bytes", "a3-bound"
SUM, TRAFFIC, TWO = "b1-sum", "b2-traffic", "b3-two-hops"
FEEDBACK, TOTAL = "c1-feedback", "c2-total"
SECONDS, FASTEST = "d1-seconds", "d2-fastest"

# Right answers, each in another style than the solution's.

IN_NUMPY = {
    "pack": """
    import numpy as np

    def pack(values, bits, block):
        values, top = np.array(values), 2 ** (bits - 1) - 1
        steps, codes = [], []
        for at in range(0, len(values), block):
            part = values[at : at + block].astype(float)
            step = np.float32(max(abs(part)) / top)
            steps.append(step)
            codes += [0] * len(part) if step == 0 else list(np.clip(np.rint(part / step), -top, top).astype(int))
        if bits == 8:
            body = np.array(codes, dtype=np.int8).tobytes()
        else:
            codes += [0] * (len(codes) % 2)
            body = bytes((low & 15) | (high & 15) << 4 for low, high in zip(codes[::2], codes[1::2]))
        return np.frombuffer(body + np.array(steps, dtype=np.float32).tobytes(), dtype=np.uint8)

    def unpack(message, num_elements, bits, block):
        raw = bytes(message.tolist())
        cut = len(raw) - 4 * -(-num_elements // block)
        steps = np.frombuffer(raw[cut:], dtype=np.float32)
        body = np.frombuffer(raw[:cut], dtype=np.int8)
        if bits == 4:
            body = np.array([part << 4 & 255 for byte in raw[:cut] for part in (byte, byte >> 4)], dtype=np.uint8)
            body = body.view(np.int8) // 16
        return [float(code) * float(steps[n // block]) for n, code in enumerate(body[:num_elements])]

    def bound(values, bits, block):
        return [
            max(abs(float(v)) for v in values[n // block * block : n // block * block + block]) / (2**bits - 2)
            for n in range(len(values))
        ]
    """,
    "feedback": """
    def feed(gradient, residual, codec):
        wanted = gradient.add(residual)
        sent = codec.pack(wanted)
        return [sent, wanted.sub(codec.unpack(sent, wanted.numel()))]

    def total(gradients):
        return torch.stack(list(gradients)).double().sum(dim=0).to(torch.bfloat16)
    """,
}
ONE_BY_ONE = {
    "sums": """
    def reduce_scatter(rank, world_size, values, codec):
        \"\"\"In rounds, with blocking receives. The own part is rounded, too.\"\"\"
        size = len(values) // world_size
        chunks = [values[owner * size : (owner + 1) * size] for owner in range(world_size)]
        result = codec.unpack(codec.pack(chunks[rank]), size) if world_size > 1 else chunks[rank].clone()
        for distance in range(1, world_size):
            to, source = (rank + distance) % world_size, (rank - distance) % world_size
            message = codec.pack(chunks[to])
            arriving = torch.zeros_like(message)
            sending = dist.isend(message, to)
            dist.recv(arriving, source)
            sending.wait()
            result += codec.unpack(arriving, size)
        return result

    def reduce_scatter_in_two(rank, world_size, ranks_per_node, values, codec):
        size = len(values) // world_size
        node, place = rank // ranks_per_node, rank % ranks_per_node
        nodes = world_size // ranks_per_node
        def of(place):
            return torch.cat([values[(n * ranks_per_node + place) * size :][:size] for n in range(nodes)])
        mine = of(place).clone()
        for step in range(1, ranks_per_node):
            there, back = (place + step) % ranks_per_node, (place - step) % ranks_per_node
            message = codec.pack(of(there))
            arriving = torch.empty(len(message), dtype=torch.uint8)
            work = dist.isend(message, node * ranks_per_node + there)
            dist.recv(arriving, node * ranks_per_node + back)
            work.wait()
            mine += codec.unpack(arriving, len(mine))
        result = mine[node * size : (node + 1) * size].clone()
        for step in range(1, nodes):
            there, back = (node + step) % nodes, (node - step) % nodes
            message = codec.pack(mine[there * size : (there + 1) * size])
            arriving = torch.empty_like(message)
            work = dist.isend(message, there * ranks_per_node + place)
            dist.recv(arriving, back * ranks_per_node + place)
            work.wait()
            result += codec.unpack(arriving, size)
        return result.numpy()
    """,
}
PAIRED = {
    "sums": """
    def traded(outgoing, codec, count):
        \"\"\"outgoing: {peer: numbers}; returns {peer: numbers that arrive}.\"\"\"
        messages = {peer: codec.pack(numbers) for peer, numbers in outgoing.items()}
        boxes = {peer: torch.empty_like(message) for peer, message in messages.items()}
        works = [dist.irecv(boxes[peer], src=peer) for peer in boxes]
        works += [dist.isend(messages[peer], dst=peer) for peer in messages]
        [work.wait() for work in works]
        return {peer: codec.unpack(box, count) for peer, box in boxes.items()}

    def reduce_scatter(rank, world_size, values, codec):
        rows = values.reshape(world_size, -1)
        arrived = traded({peer: rows[peer] for peer in range(world_size) if peer != rank}, codec, rows.shape[1])
        return sum(arrived.values(), rows[rank].double()).float()

    def reduce_scatter_in_two(rank, world_size, ranks_per_node, values, codec):
        rows = values.reshape(world_size, -1)
        node, place = rank // ranks_per_node, rank % ranks_per_node
        near = [peer for peer in range(world_size) if peer // ranks_per_node == node]
        far = [peer for peer in range(world_size) if peer % ranks_per_node == place]
        for_place = {peer: rows[peer % ranks_per_node :: ranks_per_node].reshape(-1) for peer in near}
        own = for_place.pop(rank)
        of_node = (own + sum(traded(for_place, codec, len(own)).values())).reshape(len(far), -1)
        outgoing = {peer: of_node[n] for n, peer in enumerate(far) if peer != rank}
        return sum(traded(outgoing, codec, rows.shape[1]).values(), of_node[far.index(rank)])
    """,
    "fastest": """
    import numpy as np
    WAYS = ["bf16", "8 bits", "8 and 4 bits", "zero++"]

    def seconds(way, weights, machine):
        n, g, near, far = (np.float64(machine[key]) for key in ("nodes", "gpus", "near", "far"))
        size = {16: 2 * weights, 8: weights + 4 * -(-weights // 2048), 4: weights / 2 + 4 * -(-weights // 2048)}
        far_seconds = {bits: each * (1 - 1 / n) / far for bits, each in size.items()}
        near_seconds = {bits: each * (1 - 1 / g) / near for bits, each in size.items()}
        hops = near_seconds[4] + far_seconds[4]
        table = {
            "bf16": [far_seconds[16], 2 * far_seconds[16]],
            "8 bits": [far_seconds[8], far_seconds[8] + far_seconds[16]],
            "8 and 4 bits": [far_seconds[8], far_seconds[8] + hops],
            "zero++": [far_seconds[8], near_seconds[16] + hops],
        }
        return np.array(table[way])

    def fastest(weights, machine, tokens, seconds):
        found = None
        for way in WAYS:
            takes = sum(
                max(factor * weights * tokens / machine["flops"], each)
                for factor, each in zip((2, 4), seconds[way])
            )
            if found is None or takes < found[0] * (1 - 1e-12):
                found = takes, way
        return found[1]
    """,
}
IN_BYTES = {
    "pack": """
    import struct

    def encoded(values, bits, block):
        for at in range(0, len(values), block):
            part = values[at : at + block].double()
            step = part.abs().max().item() / (2 ** (bits - 1) - 1)
            step = struct.unpack("f", struct.pack("f", step))[0]
            yield step, [round(v / step) if step else 0 for v in part.tolist()]

    def pack(values, bits, block):
        \"\"\"Steps and codes by turns in one whole number, most significant first.\"\"\"
        steps, number = b"", 1
        for step, codes in encoded(values, bits, block):
            steps += struct.pack("f", step)
            for code in codes:
                number = number << bits | code % 2**bits
        size = -(-len(values) * bits // 8)
        number = number ^ 1 << bits * len(values)
        return torch.frombuffer(bytearray(number.to_bytes(size, "big") + steps), dtype=torch.uint8)

    def unpack(message, num_elements, bits, block):
        size = -(-num_elements * bits // 8)
        raw = bytes(message.numpy())
        number, found = int.from_bytes(raw[:size], "big"), []
        for n in reversed(range(num_elements)):
            code = number % 2**bits
            number //= 2**bits
            (step,) = struct.unpack_from("f", raw, size + 4 * (n // block))
            found.insert(0, (code - 2**bits * (code >= 2 ** (bits - 1))) * step)
        return torch.tensor(found, dtype=torch.float64)

    def bound(values, bits, block):
        return torch.tensor([step / 2 for step, codes in encoded(values, bits, block) for _ in codes])
    """,
}
DELAYED = {
    "feedback": """
    def feed(gradient, residual, codec):
        message = codec.pack((gradient.double() + residual).float())
        arrived = codec.unpack(message, gradient.shape[0])
        return message.clone(), (gradient - arrived + residual).numpy()

    def total(gradients):
        \"\"\"Pairs of pairs, in fp32.\"\"\"
        level = [each.float() for each in gradients]
        while len(level) > 1:
            level = [sum(level[n : n + 2]) for n in range(0, len(level), 2)]
        return level[0].to(torch.bfloat16)
    """,
}
OWN_PARTS_ROUNDED = {
    "sums": """
    def exchanged(rows, me, peers, codec):
        packed = [codec.pack(row) for row in rows]
        got = [each.clone() if place == me else torch.empty_like(each) for place, each in enumerate(packed)]
        operations = [
            dist.P2POp(way, tensors[place], peer)
            for way, tensors in ((dist.isend, packed), (dist.irecv, got))
            for place, peer in enumerate(peers)
            if place != me
        ]
        [work.wait() for work in (dist.batch_isend_irecv(operations) if operations else [])]
        return sum(codec.unpack(each, len(rows[me])) for each in got)

    def reduce_scatter(rank, world_size, values, codec):
        return exchanged(values.chunk(world_size), rank, range(world_size), codec)

    def reduce_scatter_in_two(rank, world_size, ranks_per_node, values, codec):
        node, place = divmod(rank, ranks_per_node)
        chunks = values.chunk(world_size)
        rows = [torch.cat(chunks[each::ranks_per_node]) for each in range(ranks_per_node)]
        first = rank - place
        mine = exchanged(rows, place, range(first, first + ranks_per_node), codec)
        across = range(place, world_size, ranks_per_node)
        return exchanged(mine.chunk(len(across)), node, across, codec)
    """,
}
RIGHT = {
    "rounds its own parts in both hops": OWN_PARTS_ROUNDED,
    "numpy, bytes and lists": IN_NUMPY,
    "one peer after the other": ONE_BY_ONE,
    "dicts of peers, and a table": PAIRED,
    "one long whole number": IN_BYTES,
    "pairs, and the residual in another order": DELAYED,
}

# Wrong answers. `origin`: the row of the ledger, or the page, that a mistake comes from.

RING = """
    def reduce_scatter(rank, world_size, values, codec):
        held = list(values.clone().chunk(world_size))
        for step in range(world_size - 1):
            message = codec.pack(held[(rank - 1 - step) % world_size])
            arriving = torch.empty_like(message)
            sending = dist.isend(message, (rank + 1) % world_size)
            dist.recv(arriving, (rank - 1) % world_size)
            sending.wait()
            held[(rank - 2 - step) % world_size] += codec.unpack(arriving, len(held[0]))
        return held[rank]
"""
IN_TWO = "\n    def exchanged" + solution_of(EXERCISE, "sums").split("def exchanged")[1].replace("\n", "\n    ")
IN_TWO = IN_TWO.replace("def reduce_scatter(", "def in_one(")
LIBRARYS = """
    from collectives.training import quantized

    def reduce_scatter(rank, world_size, values, codec):
        return quantized.reduce_scatter(values)

    def reduce_scatter_in_two(rank, world_size, ranks_per_node, values, codec):
        return quantized.reduce_scatter_in_two(values, ranks_per_node)
"""
LIBRARYS_PACK = """
    from collectives.training import quantized

    def pack(values, bits, block):
        return quantized.pack(values[None], bits, block)[0]

    def unpack(message, num_elements, bits, block):
        return quantized.unpack(message[None], num_elements, bits, block)[0]

    def bound(values, bits, block):
        return quantized.bound(values, bits, block)
"""
RAW = """
    def pack(values, bits, block):
        return values.clone().view(torch.uint8)

    def unpack(message, num_elements, bits, block):
        return message.clone().view(torch.float32)

    def bound(values, bits, block):
        return torch.zeros(len(values))
"""
ZEROS = """
    def pack(values, bits, block):
        return torch.zeros(4 * -(-len(values) // block) + -(-len(values) * bits // 8), dtype=torch.uint8)

    def unpack(message, num_elements, bits, block):
        return torch.zeros(num_elements)

    def bound(values, bits, block):
        return torch.zeros(len(values))
"""
ONE_STEP = "return torch.stack([each.abs().max() for each in blocks]) / (2 ** (bits - 1) - 1)"
ROUNDED = "codes = torch.where(step > 0, values / step, 0).round()"
AWAY = """return rows[me] + sum(codec.unpack(receives[place], len(rows[me])) for place in others)"""

MUTANTS = [
    broken(
        "one step for all",
        ONE_STEP,
        "return values.abs().max().repeat(len(blocks)) / (2 ** (bits - 1) - 1)",
        {ERROR, BOUND},
        "one step for the whole tensor",
        "page 11",
    ),
    broken(
        "largest number", "each.abs().max()", "each.max().clamp(min=0)", {ERROR, BYTES, BOUND}, "the largest MAGNITUDE"
    ),
    broken("cut off", ROUNDED, ROUNDED.replace("round", "trunc"), {ERROR}, "cut off, not rounded"),
    broken("rounded down", ROUNDED, ROUNDED.replace("round", "floor"), {ERROR}, "rounded down"),
    broken("wide codes", "/ (2 ** (bits - 1) - 1)", "/ 2 ** (bits - 1)", {ERROR, BYTES, BOUND}, "off by"),
    broken(
        "steps in bf16",
        "return torch.cat([steps.view(torch.uint8), codes])",
        "return torch.cat([steps.bfloat16().float().view(torch.uint8), codes])",
        {ERROR},
        "off by",
    ),
    broken(
        "first step for all",
        "steps.repeat_interleave(block)[:num_elements]\n",
        "steps[0]\n",
        {ERROR, BYTES},
        "off by",
    ),
    broken("halves swapped", "codes // 16, codes % 16", "codes % 16, codes // 16", {ERROR, BYTES}, "off by"),
    broken("no offset", "(codes.float() - 2 ** (bits - 1))", "codes.float()", {ERROR, BYTES}, "off by"),
    broken(
        "kept at home",
        "steps = steps_of(values, bits, block)\n    step =",
        "global kept\n    kept = values\n    return torch.zeros(1, dtype=torch.uint8)\n    steps = step =",
        {ERROR, BYTES},
        "ends in",
    ),
    broken(
        "a byte for a code of 4 bits",
        "if bits == 4:",
        "if False:",
        {BYTES},
        "two codes of 4 bits fit into a byte",
        "page 11",
    ),
    broken(
        "a step for each number",
        "torch.cat([steps.view(torch.uint8), codes])",
        "torch.cat([steps.view(torch.uint8), step[: len(step) - len(steps)].view(torch.uint8), codes])",
        {ERROR, BYTES},
        "this has a step for each number",
    ),
    written("raw numbers", "pack", RAW, {ERROR, BYTES, BOUND}, "these are the fp32 numbers themselves"),
    written("zeros of the right length", "pack", ZEROS, {ERROR, BYTES, BOUND}, "off by"),
    broken("a whole step", "[: len(values)] / 2", "[: len(values)]", {BOUND}, "this is a whole step"),
    broken("a bound for each block", ".repeat_interleave(block)[: len(values)] / 2", " / 2", {BOUND}, "one number for"),
    written("the library's codes", "pack", LIBRARYS_PACK, {ERROR, BYTES, BOUND}, "the library's own quantized."),
    written("a ring", "sums", RING + IN_TWO, {SUM, TRAFFIC}, "a ring rounds the partial sums at every hop", "page 11"),
    broken("no part of its own", "return rows[me] + sum", "return sum", {SUM, TWO}, "the rank's own part is missing"),
    broken(
        "the mean",
        "return exchanged(values.chunk(world_size), rank, range(world_size), codec)",
        "return exchanged(values.chunk(world_size), rank, range(world_size), codec) / world_size",
        {SUM},
        "this is the mean",
    ),
    broken(
        "another's chunk",
        "return exchanged(values.chunk(world_size), rank, range(world_size), codec)",
        "chunks = values.chunk(world_size)\n"
        "    return exchanged(chunks[1:] + chunks[:1], rank, range(world_size), codec)",
        {SUM},
        "'s chunk; rank 0 keeps chunk 0",
    ),
    broken(
        "rounds the sum, too",
        "return exchanged(values.chunk(world_size), rank, range(world_size), codec)",
        "whole = exchanged(values.chunk(world_size), rank, range(world_size), codec)\n"
        "    return codec.unpack(codec.pack(whole), len(whole))",
        {SUM},
        "the result is rounded once more",
    ),
    broken(
        "all to all",
        "sends = [codec.pack(row) for row in rows]",
        "sends = [codec.pack(row) for row in rows]\n"
        "    for there in [each for each in range(len(peers)) if each != me]:\n"
        "        both = (dist.isend, sends[there]), (dist.irecv, sends[there].clone())\n"
        "        [work.wait() for work in dist.batch_isend_irecv([dist.P2POp(*each, peers[there]) for each in both])]",
        {TRAFFIC, TWO},
        ": once is enough",
    ),
    broken(
        "sums in one hop",
        "return exchanged(of_node.chunk(nodes)",
        "return reduce_scatter(rank, world_size, values, codec) if nodes else (of_node.chunk(nodes)",
        {TWO},
        ": it should send only to rank",
    ),
    broken(
        "chunks of neighbours",
        "by_place = [chunks[:, each].flatten()",
        "by_place = [chunks.flatten(0, 1)[each * nodes : (each + 1) * nodes].flatten()",
        {TWO},
        "these are the sums of rank ",
    ),
    broken(
        "no node's sum",
        "of_node = exchanged(by_place, place, neighbours, codec)",
        "of_node = by_place[place]",
        {TWO},
        "the first hop is missing",
    ),
    written("the library's sums", "sums", LIBRARYS, {SUM, TRAFFIC, TWO}, "the library's own quantized.reduce_scatter"),
    broken(
        "forgets the residual",
        "carried = gradient + residual",
        "carried = gradient",
        {FEEDBACK},
        "what an earlier step left is missing",
    ),
    broken(
        "keeps nothing",
        "carried - codec.unpack(message, len(carried))",
        "torch.zeros_like(carried)",
        {FEEDBACK},
        "nothing is carried over",
    ),
    broken(
        "wrong sign",
        "carried - codec.unpack(message, len(carried))",
        "codec.unpack(message, len(carried)) - carried",
        {FEEDBACK},
        "the wrong sign",
    ),
    broken(
        "only this step's rest",
        "message, carried - codec",
        "message, gradient - codec",
        {FEEDBACK},
        "what an earlier step left is missing",
    ),
    broken(
        "subtracts",
        "carried = gradient + residual",
        "carried = gradient - residual",
        {FEEDBACK},
        "the residual is what was not sent yet",
    ),
    broken("adds in bf16", "dtype=torch.float32)", "dtype=torch.bfloat16)", {TOTAL}, "this adds in bf16", "page 11"),
    broken(
        "mean of gradients", "summed.bfloat16()", "(summed / len(gradients)).bfloat16()", {TOTAL}, "this is the mean"
    ),
    broken("stays in fp32", "summed.bfloat16()", "summed", {TOTAL}, "return torch.bfloat16"),
    broken("all of it crosses", "(nodes - 1) / nodes * num_bytes", "num_bytes", {SECONDS}, "already has its own part"),
    broken(
        "no steps",
        "weights * bits / 8 + 4 * math.ceil(weights / 2048)",
        "weights * bits / 8",
        {SECONDS},
        "add four bytes for the step of each block",
        "page 11",
    ),
    broken("elements", "across(2 * weights if", "across(weights if", {SECONDS}, "communicates for"),
    broken("a card alone", '/ machine["far"]', '/ (machine["far"] / gpus)', {SECONDS}, "don't divide it by the GPUs"),
    broken("gathered once", "return gather, again + reduced", "return gather, reduced", {SECONDS}, "communicates for"),
    broken(
        "secondary shard in 8 bits",
        "again = inside(2 * weights)",
        "again = inside(weights)",
        {SECONDS},
        "zero++ is in bf16",
        "page 11",
    ),
    broken(
        "one hop",
        "inside(packed(4)) + across(packed(4))",
        "across(packed(4))",
        {SECONDS},
        "begins with the hop within the node",
    ),
    broken(
        "no first hop",
        "across(packed(4))\n",
        "gpus * across(packed(4))\n",
        {SECONDS},
        "sends each packed number once",
        "page 11",
    ),
    broken(
        "communication alone",
        "max(forward, seconds[way][0]) + max(2 * forward, seconds[way][1])",
        "sum(seconds[way])",
        {FASTEST},
        "what computing hides costs nothing",
        "page 11",
    ),
    broken("equal passes", "max(2 * forward,", "max(forward,", {FASTEST}, "twice as long as the forward pass"),
    broken(
        "one pass",
        "max(forward, seconds[way][0]) + max(2 * forward, seconds[way][1])",
        "max(3 * forward, sum(seconds[way]))",
        {FASTEST},
        "each pass hides behind its own",
        "page 11",
    ),
    broken(
        "rounds most", "min(WAYS, key=step)", "min(reversed(WAYS), key=step)", {FASTEST}, "the one that rounds least"
    ),
    broken("always zero++", "return min(WAYS, key=step)", 'return "zero++"', {FASTEST}, "you always take zero++"),
    broken(
        "never zero++",
        "return min(WAYS, key=step)",
        "return min(WAYS[:3], key=step)",
        {FASTEST},
        "you never take zero++",
    ),
    broken("a number", "return min(WAYS, key=step)", "return step(WAYS[0])", {FASTEST}, "return one of 'bf16'"),
]


@pytest.mark.ranks
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.slip)
def test_a_wrong_answer_is_refused_and_the_slip_is_named(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), briefly=True, looks=False)


@pytest.mark.ranks
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name], looks=False)


@pytest.mark.ranks
@pytest.mark.parametrize("code", [RAW, ZEROS], ids=["raw numbers", "zeros"])
def test_neither_the_length_alone_nor_the_error_alone_is_worth_a_point(code):
    said = verdicts(EXERCISE, {"pack": code}, [ERROR, BYTES])
    assert all(said.values()), said


# What must be on the wire: ranks that return right sums, and messages of the right length with other numbers


def watched(monkeypatch):
    """Let the function that a check is given play all ranks: it returns their sums, and {(src, dst): messages}."""

    def run(_, world_size, function, rows, more, bits, block, kind):
        sums, sent = function(torch.tensor(np.stack(rows)), *more, ch11.Codec(bits, block))
        everyone = Seen()
        for rank, total in enumerate(sums):
            of_rank = {dst: messages for (src, dst), messages in sent.items() if src == rank}
            bytes_to = {dst: sum(each.nbytes for each in messages) for dst, messages in of_rank.items()}
            everyone.append(ch11.Summed(total.numpy(), bytes_to, sum(map(len, of_rank.values())), []))
        everyone.messages = [
            gloo.Message(*pair, "send", each.numpy().tobytes()) for pair, messages in sent.items() for each in messages
        ]
        return everyone

    monkeypatch.setattr(ch11, "run_on_ranks", run)


def hop(rows, codec):
    """Each peer's sum of what all have for it, and the messages. `rows` [peer, peer, n]: what each has for each."""
    messages = {pair: codec.pack(rows[pair]) for pair in permutations(range(len(rows)), 2)}
    sums = [row[place].clone() for place, row in enumerate(rows)]
    for (_, to), message in messages.items():
        sums[to] += codec.unpack(message, len(sums[to]))
    return sums, {pair: [message] for pair, message in messages.items()}


def in_one(values, codec):
    return hop(values.unflatten(1, (len(values), -1)), codec)


def sending(form):
    """A sum in one hop, of which `form(part, codec)` are the messages."""

    def direct(values, codec):
        parts = values.unflatten(1, (len(values), -1))
        sums, sent = in_one(values, codec)
        return sums, {pair: form(parts[pair], codec) for pair in sent}

    return direct


def in_two(values, per_node, codec, first=True):
    """A sum in two hops. `first`: whether the node's sums go across, or a rank's own parts, which is wrong."""
    nodes, place_by_place, sent = len(values) // per_node, [[] for _ in range(per_node)], {}
    for node, own in enumerate(values.unflatten(1, (nodes, per_node, -1)).split(per_node)):
        rows = own.transpose(1, 2).flatten(2)
        sums, messages = hop(rows, codec)
        sent |= {(node * per_node + src, node * per_node + dst): each for (src, dst), each in messages.items()}
        for place, total in enumerate(sums):
            place_by_place[place].append((total, rows[place, place]))
    sums = [None] * len(values)
    for place, pairs in enumerate(place_by_place):
        of_nodes, of_ranks = (torch.stack(each).unflatten(1, (nodes, -1)) for each in zip(*pairs, strict=True))
        sums[place::per_node], messages = hop(of_nodes, codec)
        if not first:
            _, messages = hop(of_ranks, codec)
        sent |= {(src * per_node + place, dst * per_node + place): each for (src, dst), each in messages.items()}
    return sums, sent


def exact(values, per_node, codec):
    _, sent = in_two(values, per_node, codec)
    return values.double().sum(0).float().chunk(len(values)), sent


def of_wrong_chunks(values, codec):
    return in_one(torch.cat(values.chunk(len(values), dim=1)[::-1], dim=1), codec)


def filled(function, fill):
    """The same sums, and messages of the same length, filled by `fill`."""

    def dummy(*args):
        sums, sent = function(*args)
        return sums, {pair: [fill(each) for each in messages] for pair, messages in sent.items()}

    return dummy


def of_others(each):
    return ch11.Codec().pack(torch.randn(ELEMENTS))[: len(each)]


ELEMENTS = 60_000
EMPTY = {"zeros": torch.zeros_like, "noise": lambda each: torch.randint_like(each, 256), "other numbers": of_others}


@pytest.mark.parametrize(
    "form",
    [
        lambda part, codec: [codec.pack(part)],
        lambda part, codec: [codec.pack(part)] * 2,
        lambda part, codec: [*codec.pack(part).split(7_001)],
        lambda part, codec: [codec.pack(each) for each in part.split(640)],
        lambda part, codec: [part],
        lambda part, codec: [part.double()],
        lambda part, codec: [codec.unpack(codec.pack(part), len(part))],
        lambda part, codec: [codec.unpack(codec.pack(part), len(part)).double()],
    ],
    ids=["packed", "twice", "in pieces", "packed in pieces", "fp32", "fp64", "rounded", "rounded fp64"],
)
def test_a_sum_may_send_its_parts_in_any_form(form, monkeypatch):
    watched(monkeypatch)
    ch11.check_sum(sending(form), world_size=4, size=30_000, seed=1)


@pytest.mark.parametrize("world_size, bits, block", [(3, 8, 32), (4, 4, 64), (2, 4, 16)])
def test_each_peer_gets_its_part_in_one_message_and_a_wrong_sum_is_no_fault_here(world_size, bits, block, monkeypatch):
    watched(monkeypatch)
    case = {"world_size": world_size, "size": 60_000, "bits": bits, "block": block}
    ch11.check_traffic(in_one, **case)
    ch11.check_traffic(sending(lambda part, codec: [codec.pack(part / 3)]), **case)
    ch11.check_traffic(of_wrong_chunks, **case)


@pytest.mark.parametrize("nodes, per_node, bits", [(2, 2, 4), (2, 2, 8), (3, 2, 4), (2, 4, 4), (1, 3, 4), (4, 1, 8)])
def test_two_hops_may_be_those_of_any_nodes(nodes, per_node, bits, monkeypatch):
    watched(monkeypatch)
    ch11.check_two_hops(in_two, nodes, per_node, 30_000, bits=bits)


@pytest.mark.parametrize("nodes, per_node", [(2, 2), (4, 4), (1, 8), (8, 1), (8, 2)])
@pytest.mark.parametrize("bits, block", [(4, 64), (8, 16)])
def test_no_honest_sum_in_two_hops_is_taken_for_an_exact_one(nodes, per_node, bits, block, monkeypatch):
    watched(monkeypatch)
    ch11.check_two_hops(in_two, nodes, per_node, 40, bits=bits, block=block)


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_the_chunks_for_a_place_may_have_any_order(order):
    codec, chunks = ch11.Codec(), torch.tensor(ch11.gradients(3, 1_000, seed=5)).unflatten(1, (3, -1))[0]
    due = ch11.Due(0, 3_000, "", chunks.double().numpy())
    assert ch11._holds(codec.pack(chunks[[*order]].flatten()).numpy().tobytes(), due, codec)
    assert not ch11._holds(codec.pack(torch.randn(3_000)).numpy().tobytes(), due, codec)


@pytest.mark.parametrize("fill", EMPTY)
def test_right_sums_beside_messages_that_hold_nothing_are_refused(fill, monkeypatch):
    watched(monkeypatch)
    with pytest.raises(NotYet, match="24 of 24 numbers that were looked for on the wire are not among what the ranks"):
        ch11.check_sum(filled(in_one, EMPTY[fill]), world_size=4, size=30_000)
    with pytest.raises(NotYet, match=r"but it holds other numbers: pack 40000 numbers, that rank's chunk, and add up"):
        ch11.check_traffic(filled(in_one, EMPTY[fill]), world_size=3, size=40_000)
    with pytest.raises(NotYet, match="the message from rank 0 to rank 1 has the right length, but it holds other"):
        ch11.check_two_hops(filled(in_two, EMPTY[fill]), 2, 2, 30_000)


def test_a_second_hop_without_the_first_ones_sums_is_refused(monkeypatch):
    watched(monkeypatch)
    with pytest.raises(NotYet, match="pack 30000 numbers, that rank's chunk of the node's sum, and add up what"):
        ch11.check_two_hops(lambda *args: in_two(*args, first=False), 2, 2, 30_000)


@pytest.mark.parametrize("bits", [4, 8])
def test_sums_in_two_hops_that_nothing_rounds_did_not_travel(bits, monkeypatch):
    watched(monkeypatch)
    with pytest.raises(NotYet, match=f"the sums are exact, with 2 nodes of 2, but numbers that travel in {bits} bits"):
        ch11.check_two_hops(exact, 2, 2, 96, bits=bits)


# What the checks compare with


@pytest.mark.parametrize("case", ch11.messages(seed=4)[::5], ids=lambda case: f"{case.words} {case.bits}/{case.block}")
def test_half_a_step_is_the_librarys_bound(case):
    bound = quantized.bound(torch.tensor(case.values), case.bits, case.block).numpy()
    np.testing.assert_allclose(ch11.half_steps(case.values.astype(float), case.bits, case.block), bound, rtol=1e-3)


@pytest.mark.parametrize("seed", range(10))
def test_every_way_and_every_mistake_matters_in_every_draw_of_cases(seed):
    answered = [ch11._answered(case) for case in ch11.random_cases(seed)]
    right = [way for way, *_ in answered]
    assert min(map(right.count, ch11.WAYS)) >= 5
    for mistake in ch11.CHOICE_SLIPS.values():
        assert sum(mistake(*case, times) != way for way, case, times in answered) >= 2


def test_rounding_a_layer_up_to_whole_bytes_changes_no_time():
    for seed in range(20):
        assert all(weights % 2 == 0 for weights, _ in ch11.few_machines(seed))


TABLED = {"nodes": (2, 4, 8, 64), "gpus": (2, 4, 8), "near": (200, 450, 900), "far": (12, 25, 100, 400)}


def tabled_seconds(way, weights, machine):
    """By a table, made elsewhere, of what a way takes a weight on the machines that every draw once had."""
    unit = {"nodes": 1, "gpus": 1, "near": 10**9, "far": 10**9}
    {name: dict.fromkeys(TABLED[name])[machine[name] // unit[name]] for name in TABLED}
    return ch11.seconds(way, weights, machine)


@pytest.mark.parametrize("seed", range(5))
def test_a_table_of_a_few_machines_is_no_answer(seed, monkeypatch):
    monkeypatch.setattr(ch11, "without_the_library", contextlib.nullcontext)
    with pytest.raises(NotYet, match="KeyError"):
        ch11.check_seconds(tabled_seconds, ch11.few_machines(seed))
