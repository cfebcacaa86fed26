"""What checks say of an answer that fails on a rank, or never ends: the learner's own line, and no frame of ours."""

import threading
import time

import pytest
from answers import graded, solutions_of

from collectives.practice import checks

# Of exercises on real ranks: a cell, a line of its solution, the function that it is in, and a check that runs it.
ON_RANKS = {
    "03_ring": ("ring-reduce-scatter", "    bounds = chunk_bounds", "ring_reduce_scatter", "c1-ranks-small"),
    "08_data_parallel": ("overlapped", "    step.arrived.add(number)", "arrived", "d1-mean"),
    "09_zero": ("zero-2", "    for unit in units:\n        begin", "step", "c1-losses"),
    "13_tensor_parallel": ("attention", "    projected =", "attention", "c3-forward"),
    "15_experts": ("layer", "    k, share = experts.shape", "layer", "c2-one-choice"),
    "19_failures": ("survive", "    shard = ", "save", "c1-survives"),
}


def said_of(exercise, code):
    """What the check says of the solution with one more line."""
    cell, line, _, check = ON_RANKS[exercise]
    answer = solutions_of(exercise)[cell]
    assert line in answer
    ((_, words),) = graded(exercise, {cell: answer.replace(line, f"    {code}\n{line}", 1)}, [check], False).values()
    return words


@pytest.mark.slow
@pytest.mark.parametrize("exercise", ON_RANKS)
def test_an_error_on_a_rank_is_shown_with_the_learners_line_and_no_frame_of_ours(exercise):
    words = said_of(exercise, "undefined_name")
    _, _, function, _ = ON_RANKS[exercise]
    assert f"in {function}" in words or f"of {function}" in words
    assert "NameError: name 'undefined_name' is not defined" in words
    assert ".py" not in words


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [each for each in ON_RANKS if each in ("03_ring", "09_zero", "15_experts")])
def test_a_rank_that_is_not_there_is_named_before_torch_sees_it(exercise):
    words = said_of(exercise, "dist.send(torch.zeros(1), world_size)")
    assert "sends to, or receives from, rank 2: the ranks are 0 to 1" in words


# Of exercises in numbers: a cell, a line of its solution, a check that runs it, and the call that never ends.
IN_NUMBERS = {
    "02_tree": ("broadcast-steps", "    steps, have = [], 1", "a1-powers-of-two", "broadcast_steps(2)"),
    "03_ring": (
        "element-transfers",
        "    lengths =",
        "b1-even",
        "element_transfers(<steps of ring",
    ),
    "06_all_to_all": ("peers", "    partners = []", "a1-pairs-small", "peers(0, 2)"),
    "12_activations": ("choice", "    wanted, time", "c1-again", "again(ops, {a, b}, {}) for"),
    "16_pipeline": ("kept", "    return m\n", "a3-kept", "gpipe_kept("),
    "20_plan": ("of-a-model", "    hidden, head_size", "a1-parameters", "layer_params(model), for"),
}


@pytest.mark.parametrize("exercise", IN_NUMBERS)
def test_a_plain_loop_that_never_ends_is_ended_and_its_call_and_line_are_named(exercise, monkeypatch):
    monkeypatch.setattr(checks, "CALL_SECONDS", 0.3)  # a collection of garbage before the call takes less
    cell, line, check, call = IN_NUMBERS[exercise]
    answer = solutions_of(exercise)[cell]
    assert line in answer
    endless = {cell: answer.replace(line, f"    import random\n    while True:\n        random.random()\n{line}", 1)}
    ((_, words),) = graded(exercise, endless, [check], looks=False).values()
    assert words.startswith(call) and "it was still running after 0.3 s\n  line " in words


def test_what_runs_an_answer_is_looked_up_by_name_because_the_grader_replaces_it(monkeypatch):
    monkeypatch.setattr(checks, "called", lambda function, *args: "in the sandbox")
    assert checks.answer(len, [1]) == "in the sandbox"


def test_a_call_that_computes_long_but_ends_is_not_ended_by_what_other_threads_compute(monkeypatch):
    monkeypatch.setattr(checks, "CALL_SECONDS", 0.2)
    stop = threading.Event()
    busy = threading.Thread(target=lambda: any(iter(stop.is_set, True)))
    busy.start()
    try:
        assert checks.answer(lambda: time.sleep(1) or "done", call="slow()") == "done"
    finally:
        stop.set()
        busy.join()


# Answers of the wrong kind: the exercise, the cell, what its function is instead, a check, and what that says.
UNWRITTEN_HOOK = """
def before_forward(*_):
    raise NotImplementedError


HOOKS = before_forward, after_forward, before_backward, after_backward, finish
"""
LIBRARYS_GROUPS = """
from collectives.training.mesh import Mesh


def build(rank, sizes, names):
    return Mesh(**sizes).groups(names[0])
"""
OF_ANOTHER_KIND = [
    (
        "02_tree",
        "broadcast-steps",
        "def broadcast_steps(p): return [[Transfer(0, r, 0)] for r in [*range(1, p), 1]]",
        "a3-fewest-steps",
        "rank 1 receives the data in step 0 and again in step",
    ),
    (
        "06_all_to_all",
        "exchange",
        "def exchange(*_): return 3",
        "c1-ranks-small",
        "returns a value of type int; return a tensor with a row from each rank",
    ),
    ("06_all_to_all", "exchange", "def exchange(*_): return _[2][:1]", "c1-ranks-small", "it must be ["),
    (
        "09_zero",
        "ownership",
        "def shard_bounds(n, r, p): return 2 * r * n, 2 * (r + 1) * n",
        "a1-bounds",
        "are enough, padding included",
    ),
    (
        "09_zero",
        "ownership",
        "def optimizer_state(p, r, n): return State(*[p.chunk(n)[r].double()] * 3)",
        "a2-state",
        "the optimizer works in torch.float32",
    ),
    ("11_fewer_bits", "pack", "def pack(values, *_): return values", "a2-bytes", "a message is torch.uint8, of one"),
    ("11_fewer_bits", "pack", "def unpack(message, *_): return message[:0].float()", "a1-error", "; return "),
    ("11_fewer_bits", "pack", "def bound(*_): return 'half'", "a3-bound", "return a tensor of numbers"),
    (
        "11_fewer_bits",
        "feedback",
        "def feed(*_): return 3",
        "c1-feedback",
        "returns 3; return a message and the new residual",
    ),
    (
        "11_fewer_bits",
        "feedback",
        "def feed(g, r, codec): return torch.zeros(1, dtype=torch.uint8), r",
        "c1-feedback",
        "returns a message of the shape [1]; return what codec.pack returns",
    ),
    (
        "11_fewer_bits",
        "feedback",
        "def feed(g, r, codec): return codec.pack(g + r), r[:1]",
        "c1-feedback",
        "a residual of the shape [1]; it has one number for each",
    ),
    ("11_fewer_bits", "fastest", "def seconds(*_): return 3", "d1-seconds", "returns 3; return the seconds of both"),
    ("12_activations", "choice", "def again(*_): pass", "c1-again", "returns None; is its `return` missing?"),
    (
        "12_activations",
        "recompute",
        "def recomputed(function, *inputs): return function(*inputs).tolist()",
        "b1-gradients",
        "return the function's output, a tensor",
    ),
    ("14_context_parallel", "blocks", "def attend(*_): return 3", "a1-attend", "return a pair, (output, log_sum)"),
    ("14_context_parallel", "blocks", "def attend(q, *_): return q[:1], q", "a1-attend", "; return the shape ["),
    ("14_context_parallel", "positions", "def positions(*_): return 3", "c1-shares", "return the positions, a list of"),
    ("15_experts", "there-and-back", "def back_home(*_): return 3", "a3-home", "returns 3; return a tensor"),
    ("15_experts", "there-and-back", "def count(*_): return torch.zeros(1).long()", "a2-count", "1 numbers; there are"),
    ("15_experts", "layer", "def all_counts(*_): return 3", "c1-counts", "a value of type int; return a tensor"),
    (
        "15_experts",
        "layer",
        "def all_counts(r, p, mine): t = torch.zeros(p, len(mine)); t[r] = mine; dist.all_reduce(t); return t",
        "c1-counts",
        "1099511627776.0]; the counts of rank 0 belong there",
    ),
    ("15_experts", "layer", "def layer(*_): return 3", "c2-one-choice", "a value of type int; return a tensor"),
    ("15_experts", "layer", "def layer(*_): return _[2][:, :1]", "c2-one-choice", "returns a tensor of shape ["),
    (
        "16_pipeline",
        "mine",
        "def mine(): return 'rank 0: 1F0'",
        "c1-less",
        "1F0 names a stage; each rank has one stage",
    ),
    ("17_mesh", "real", "def build(*_): return 3", "a2-build", "return a process group for each name"),
    ("17_mesh", "real", "def norm(*_): pass", "a3-norm", "norm returns None; is its `return` missing?"),
    ("18_gpus", "instruments", "def said(log): return 3", "a1-said", "returns 3; return a list of (index"),
    ("18_gpus", "instruments", "def said(log): return [(1, 2)]", "a1-said", "holds (1, 2); each item is (index"),
    ("18_gpus", "instruments", "def rows(sweep): return []", "a2-rows", "has 0 rows; the table has"),
    ("18_gpus", "instruments", "def fit(rows): return 3", "a3-fit", "returns 3; return a pair, alpha and beta"),
    ("18_gpus", "instruments", "def lateness(t): return 3", "a4-lateness", "returns 3; return a dictionary, {rank:"),
    ("18_gpus", "instruments", "def lateness(t): return {}", "a4-lateness", "has the ranks []; they are [0, 1"),
    ("11_fewer_bits", "pack", "def pack(*_): return 'x'", "a1-error", "returns a value of type str; return a tensor"),
    (
        "11_fewer_bits",
        "pack",
        "def pack(v, *_): return v[None]",
        "a1-error",
        "a message is torch.uint8, of one dimension",
    ),
    (
        "11_fewer_bits",
        "pack",
        "def unpack(message, count, *_): return torch.zeros(count + 1)",
        "a1-error",
        "returns float32 [2]; return 1 numbers",
    ),
    (
        "11_fewer_bits",
        "sums",
        "def reduce_scatter(rank, world_size, values, codec): return values",
        "b1-sum",
        "rank 0 returns [384]; return 96 numbers",
    ),
    (
        "14_context_parallel",
        "ring",
        "def ring_attention(*_): raise ValueError('no')",
        "b1-output",
        " ends in ValueError: no",
    ),
    (
        "14_context_parallel",
        "ring",
        "def ring_attention(*_): raise KeyError('no')",
        "b1-output",
        " ends in KeyError: 'no'",
    ),
    (
        "08_data_parallel",
        "overlapped",
        "def arrived(*_): raise NotImplementedError",
        "d1-mean",
        "arrived is not written yet",
    ),
    ("11_fewer_bits", "pack", "def pack(*_): raise NotImplementedError", "a1-error", "pack is not written yet"),
    (
        "11_fewer_bits",
        "sums",
        "def reduce_scatter(*_): raise NotImplementedError",
        "b1-sum",
        "reduce_scatter is not written yet",
    ),
    (
        "14_context_parallel",
        "ring",
        "def ring_attention(*_): raise NotImplementedError",
        "b1-output",
        "ring_attention is not written yet",
    ),
    (
        "14_context_parallel",
        "ring",
        "def ring_attention(rank, p, queries, *_): return queries[:1]",
        "b1-output",
        "rank 0 returns the shape [",
    ),
    ("19_failures", "survive", "def save(*_): raise NotImplementedError", "c1-survives", "save is not written yet"),
    ("10_fsdp", "hooks", UNWRITTEN_HOOK, "a1-losses", "before_forward is not written yet"),
    ("17_mesh", "real", "def build(*_): raise KeyError('no')", "a2-build", " ends in KeyError: 'no'"),
    ("17_mesh", "real", "def build(*_): raise NotImplementedError", "a2-build", "build is not written yet"),
    ("17_mesh", "real", LIBRARYS_GROUPS, "a1-calls", ": the library's own mesh.groups is for comparing, afterwards"),
    ("17_mesh", "real", LIBRARYS_GROUPS, "a2-build", ": the library's own mesh.groups is for comparing"),
    ("18_gpus", "faults", "def diagnose(patient): return 3", "b1-sockets", "returns 3; return a Finding(fault, evi"),
    (
        "18_gpus",
        "faults",
        "def diagnose(patient): return Finding('sockets', ('log', 1), np.zeros(0))",
        "b1-sockets",
        "; a remedy is a text",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "cell", "instead", "check", "words"), OF_ANOTHER_KIND)
def test_an_answer_of_another_kind_is_told_what_to_return(exercise, cell, instead, check, words):
    answer = f"{solutions_of(exercise)[cell]}\n\n{instead}\n"
    ((_, said),) = graded(exercise, {cell: answer}, [check], looks=False).values()
    assert said and words in said


GIBS = "\n\nin_bytes = state_bytes\n\n\ndef state_bytes(*given):\n    return in_bytes(*given) * {}\n"


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        ("2**-30", "this is in GiB; return bytes"),
        ("(10**9 / 2**30)", ": a GB is 10**9 bytes; 2**30 bytes are a GiB"),
        ("(2**30 / 10**9)", ": a GB is 10**9 bytes, not 2**30"),
        ("(1 + 1e-8)", "returns 7.0246401 GB, but it is 7.02464 GB"),
    ],
)
def test_gb_and_gib_are_told_apart_and_so_are_numbers_that_look_the_same(factor, words):
    answer = solutions_of("20_plan")["held"] + GIBS.format(factor)
    ((_, said),) = graded("20_plan", {"held": answer}, ["b1-state"], looks=False).values()
    assert said.endswith(words)
