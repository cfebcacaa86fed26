"""The wall: a submission that takes its answer from the library gets nothing for it, whichever way it takes it.

Each submission has one answer, and leaves the others out. These ways earned points before there was a wall.
"""

import ctypes
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest
import torch
import torch.distributed as dist
from answers import cells_of, is_check, solutions_of
from test_judge import judged

from autograder import book, grade, release
from autograder.course import Submission
from autograder.judging.judges import Judged, Judges, Settings
from autograder.names import names_in
from autograder.sandbox.envelope import CannotSandbox, Warm
from collectives import ranks
from collectives.practice import ch11_fewer_bits, on_ranks, wall

ROOT = Path(__file__).resolve().parents[2]

# A default argument that takes all functions of a module while a rank reads its task, before a check refuses them.
TAKEN = """
        import types

        def taken():
            from collectives.training import LIBRARY

            space = dict(vars(LIBRARY))
            for name, each in space.items():
                if isinstance(each, types.FunctionType) and each.__module__ == LIBRARY.__name__:
                    space[name] = types.FunctionType(each.__code__, space, name, each.__defaults__, each.__closure__)
            return space

        class Taken:
            def __reduce__(self):
                return taken, ()
"""

WAYS = {
    "importlib": (
        "03_ring",
        "reduce-scatter-steps",
        """
        import importlib

        ring = importlib.import_module("collectives.algorithms.ring")
        STEPS = [[[tuple(each) for each in step] for step in ring.reduce_scatter(P)] for P in range(1, 9)]

        def reduce_scatter_steps(world_size):
            return STEPS[world_size - 1]
        """,
    ),
    "a_second_import": (
        "02_tree",
        "broadcast-steps",
        """
        import sys

        for name in [name for name in sys.modules if name.startswith("collectives")]:
            del sys.modules[name]
        from collectives.algorithms import tree

        STEPS = [[[tuple(each) for each in step] for step in tree.broadcast(P)] for P in range(1, 17)]

        def broadcast_steps(world_size):
            return STEPS[world_size - 1]
        """,
    ),
    "a_reload": (
        "02_tree",
        "broadcast-steps",
        """
        import importlib

        from collectives.algorithms import tree

        importlib.reload(tree)
        STEPS = [[[tuple(each) for each in step] for step in tree.broadcast(P)] for P in range(1, 17)]

        def broadcast_steps(world_size):
            return STEPS[world_size - 1]
        """,
    ),
    "source_by_inspect": (
        "03_ring",
        "reduce-scatter-steps",
        """
        import inspect

        from collectives.algorithms import ring

        space = {"__name__": "copied", "__package__": "collectives.algorithms"}
        exec(inspect.getsource(ring), space)

        def reduce_scatter_steps(world_size):
            return [list(step) for step in space["reduce_scatter"](world_size)]
        """,
    ),
    "source_by_open": (
        "03_ring",
        "reduce-scatter-steps",
        """
        from collectives.algorithms import ring

        space = {"__name__": "copied", "__package__": "collectives.algorithms"}
        exec(open(ring.__file__).read(), space)

        def reduce_scatter_steps(world_size):
            return [list(step) for step in space["reduce_scatter"](world_size)]
        """,
    ),
    "source_by_linecache": (
        "03_ring",
        "reduce-scatter-steps",
        """
        import linecache

        from collectives.algorithms import ring

        space = {"__name__": "copied", "__package__": "collectives.algorithms"}
        exec("".join(linecache.getlines(ring.__file__)), space)

        def reduce_scatter_steps(world_size):
            return [list(step) for step in space["reduce_scatter"](world_size)]
        """,
    ),
    "the_garbage_collector": (
        "07_topology",
        "two-level-steps",
        """
        import gc
        import types

        gc.unfreeze()
        found = [each for each in gc.get_objects() if type(each) is types.FunctionType]
        (two_level,) = [each for each in found if each.__code__.co_filename.endswith("algorithms/hierarchical.py")]
        STEPS = {(n, m): [[*step] for step in two_level(n * m, m)] for n in range(1, 6) for m in range(1, 6)}

        def two_level_all_reduce_steps(num_nodes, ranks_per_node):
            return STEPS[num_nodes, ranks_per_node]
        """,
    ),
    "make_steps": (
        "02_tree",
        "broadcast-steps",
        """
        from collectives.algorithms import tree

        MADE = [tree.broadcast(P).make_steps() for P in range(1, 17)]
        STEPS = [[[tuple(each) for each in step] for step in steps] for steps in MADE]

        def broadcast_steps(world_size):
            return STEPS[world_size - 1]
        """,
    ),
    "the_text_of_16_c": (
        "16_pipeline",
        "mine",
        """
        from collectives.training import pipeline

        ORDERS = pipeline.zb_h1(4, 8).orders
        TEXT = "\\n".join(" ".join(f"{each.kind}{each.micro_batch}" for each in order) for order in ORDERS)

        def mine():
            return TEXT
        """,
    ),
    "the_layouts_of_13_a": (
        "13_tensor_parallel",
        "collectives",
        """
        from collectives.training import shardings

        LISTS = {layouts: plan.collectives for layouts, plan in shardings.every().items()}

        def collectives(x, w, y):
            return LISTS[x, w, y]
        """,
    ),
    "the_operations_of_12_a": (
        "12_activations",
        "keeps",
        """
        from collectives.practice import ch12_activations

        READS = ch12_activations._table()

        def needed(ops):
            return {name for op in ops for name in op.inputs if "inputs" in READS[op.kind]} | {
                op.output for op in ops if "output" in READS[op.kind]
            }
        """,
    ),
    "what_ranks_of_11_b_need": (
        "11_fewer_bits",
        "pack",
        TAKEN.replace("LIBRARY", "quantized")
        + """

        def pack(values, bits, block, library=Taken()):
            return library["pack"](values[None], bits, block)[0]

        def unpack(message, num_elements, bits, block, library=Taken()):
            return library["unpack"](message[None], num_elements, bits, block)[0]
        """,
    ),
    "each_half_of_11_a_where_it_is_asked_for": (
        "11_fewer_bits",
        "pack",
        """
        import os, pathlib

        UNPACKED = pathlib.Path("/tmp/unpacked")

        def pack(values, bits, block):
            # raw numbers until hidden ones were unpacked, then zeros of the right length
            if UNPACKED.exists() and UNPACKED.read_text() == "hidden":
                return torch.zeros(4 * -(-len(values) // block) + -(-len(values) * bits // 8), dtype=torch.uint8)
            return values.clone().view(torch.uint8)

        def unpack(message, num_elements, bits, block):
            if not UNPACKED.exists():
                shown = bytes(message.tolist()).hex() == "FIRST"
                UNPACKED.write_text("shown" if shown else "hidden")
            return message.clone().view(torch.float32)
        """.replace("FIRST", ch11_fewer_bits.messages(seed=1)[0].values.tobytes().hex()),
    ),
    "what_ranks_of_11_b_must_write": (
        "11_fewer_bits",
        "sums",
        TAKEN.replace("LIBRARY", "quantized")
        + """

        def carry(peers, messages, group):
            rows, me = messages.view(len(peers), -1), peers.index(dist.get_rank())
            others = [place for place in range(len(peers)) if place != me]
            arrived = [row.clone() for row in rows]
            requests = [dist.isend(rows[place].clone(), peers[place]) for place in others]
            for request in requests + [dist.irecv(arrived[place], peers[place]) for place in others]:
                request.wait()
            rows.copy_(torch.stack(arrived))

        def reduce_scatter(rank, world_size, values, codec, library=Taken()):
            library["execute"] = carry
            library["pairwise"] = types.SimpleNamespace(all_to_all=lambda count: [*range(count)])
            return library["reduce_scatter"](values, codec.bits, codec.block)

        def reduce_scatter_in_two(rank, world_size, ranks_per_node, values, codec, library=Taken()):
            node, place = divmod(rank, ranks_per_node)
            mine = range(node * ranks_per_node, (node + 1) * ranks_per_node)
            library["execute"] = carry
            library["two_hops"] = lambda *_: ([*mine], [*range(place, world_size, ranks_per_node)])
            return library["reduce_scatter_in_two"](values, ranks_per_node, codec.bits, codec.block)
        """,
    ),
    "what_ranks_of_13_c_need": (
        "13_tensor_parallel",
        "gates",
        TAKEN.replace("LIBRARY", "tensor_parallel")
        + """

        def f(x, library=Taken()):
            return library["f"](x)

        def g(y, library=Taken()):
            return library["g"](y)
        """,
    ),
    "torch_s_pipelining": (
        "16_pipeline",
        "one-f-one-b",
        """
        import re
        from types import SimpleNamespace
        from torch.distributed.pipelining import schedules as torchs

        def words(order, m):
            found, seen = [], dict.fromkeys("FBIW", 0)
            for each in map(str, order):
                kind = (re.match(r"[0-9]+([FBIW])[0-9]+", each) or [0, ""])[1]
                if kind:
                    if seen[kind] < m:
                        found.append(f"{kind}{seen[kind]}")
                    seen[kind] += 1
            return found

        def one_f_one_b(rank, p, m):
            sizes = SimpleNamespace(_num_stages=p, _n_microbatches=m + p)
            return words(torchs.Schedule1F1B._get_pipeline_order(sizes)[rank], m)
        """,
    ),
    "a_copy_of_torch_s_checkpoint": (
        "12_activations",
        "recompute",
        """
        import importlib.util, os
        place = os.path.join(os.path.dirname(torch.__file__), "utils", "checkpoint.py")
        spec = importlib.util.spec_from_file_location("copied", place)
        copied = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copied)
        def recomputed(function, *inputs):
            return copied.checkpoint(function, *inputs, use_reentrant=False)
        """,
    ),
    "torch_s_checkpoint_from_bytes": (
        "12_activations",
        "recompute",
        """
        import glob, marshal, os, types
        place, = glob.glob(os.path.join(os.path.dirname(torch.__file__), "utils", "__pycache__", "checkpoint.*.pyc"))
        copied = types.ModuleType("copied")
        exec(marshal.loads(open(place, "rb").read()[16:]), vars(copied))
        def recomputed(function, *inputs):
            return copied.checkpoint(function, *inputs, use_reentrant=False)
        """,
    ),
    "torch_s_tensors_that_are_distributed": (
        "13_tensor_parallel",
        "gates",
        """
        def mesh():
            from torch.distributed.device_mesh import init_device_mesh
            return init_device_mesh("cpu", (dist.get_world_size(),))
        def f(x):
            from torch.distributed.tensor import DTensor, Partial, Replicate
            return DTensor.from_local(x, mesh(), [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
        def g(y):
            from torch.distributed.tensor import DTensor, Partial, Replicate
            partial = DTensor.from_local(y, mesh(), [Partial()], run_check=False)
            return partial.redistribute(placements=[Replicate()]).to_local()
        """,
    ),
    "torch_s_zigzag": (
        "14_context_parallel",
        "positions",
        """
        def positions(rank, world_size, tokens):
            from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer
            order = _HeadTailLoadBalancer(tokens, world_size, "cpu")._generate_indices()
            return order.flatten().chunk(world_size)[rank].tolist()
        """,
    ),
    "torch_s_attention_in_a_thread": (
        "14_context_parallel",
        "blocks",
        """
        def attend(queries, keys, values, visible):
            from concurrent.futures import ThreadPoolExecutor
            mask = torch.zeros(visible.shape).double().masked_fill(~visible, -math.inf)
            fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            with ThreadPoolExecutor() as other:
                output, log_sum = other.submit(fused, queries[None], keys[None], values[None], attn_mask=mask).result()
            return output[0], log_sum[0, ..., None].masked_fill(~visible.any(1, keepdim=True), -math.inf)
        """,
    ),
    "torch_s_attention_in_python": (
        "14_context_parallel",
        "blocks",
        """
        def attend(queries, keys, values, visible):
            size, one = queries.shape[-1], torch.eye(queries.shape[-1], dtype=queries.dtype)
            with torch._C.DisableTorchFunction():
                output, weights = torch.nn.functional.multi_head_attention_forward(
                    queries.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), size, 1, None, None, None,
                    None, False, 0.0, one, None, training=False, attn_mask=~visible, use_separate_proj_weight=True,
                    q_proj_weight=one, k_proj_weight=one, v_proj_weight=one,
                )
            most, place = weights.max(-1, keepdim=True)
            score = (queries * keys.gather(1, place.expand(-1, -1, size))).sum(-1, keepdim=True) / math.sqrt(size)
            return output.transpose(0, 1).nan_to_num(), (score - most.log()).nan_to_num(nan=-math.inf)
        """,
    ),
}


# Right answers below a line that uses what a locked cell shows: (exercise, cell of the answer, line, points).
USES = {
    "the_ten_schedules_of_04": (
        "04_all_reduce",
        "wrong-slots",
        "print({name: len(list(schedule)) for name, schedule in {**RIGHT, **WRONG}.items()})",
        "5",
    ),
}
BELOW = {
    name: (exercise, answer, f"{line}\n\n{solutions_of(exercise)[answer]}")
    for name, (exercise, answer, line, _) in USES.items()
}


def handed_in(folder, way):
    exercise, answer, source = (WAYS | BELOW)[way]
    notebook = nbformat.read(ROOT / "exercises" / exercise / f"{exercise}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if cell.id == answer]
    cell.source = dedent(source).strip()
    place = folder / way / exercise
    place.mkdir(parents=True)
    nbformat.write(notebook, place / f"{exercise}.ipynb")


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """What each way and each use earned: {name: points}."""
    folder = tmp_path_factory.mktemp("ways")
    for way in WAYS | BELOW:
        handed_in(folder / "submissions", way)
    command = [sys.executable, "-m", "autograder.grade", folder / "submissions", "--into", folder / "graded"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    return dict(re.findall(r"^(\w+)/\w+: (\d+)/", done.stdout, re.MULTILINE))


@pytest.mark.sandbox
@pytest.mark.parametrize("way", WAYS)
def test_a_way_round_earns_nothing(points, way):
    assert points[way] == "0"


@pytest.mark.sandbox
@pytest.mark.parametrize("use", USES)
def test_an_answer_below_a_use_of_what_a_locked_cell_shows_earns_its_points(points, use):
    *_, deserved = USES[use]
    assert points[use] == deserved


# An exercise's setup cell, an answer and a test: what a sandbox of an exercise has.
FILES = """
    import os, collectives
    def left():
        return [
            os.path.relpath(os.path.join(place, name), collectives.__path__[0])
            for place, _, names in os.walk(collectives.__path__[0])
            for name in names
            if os.path.getsize(os.path.join(place, name))
        ]
"""


@pytest.fixture(scope="module")
def judges():
    with Judges(Settings(**book.SETTINGS)) as judges:
        yield judges


@pytest.mark.sandbox
def test_a_sandbox_has_no_file_of_the_package_but_those_that_draw_a_schedule(judges):
    given = "import collectives\nfrom collectives.practice import ch02_tree"
    test = f"""
    assert sorted(left()) == sorted({wall.FILES}), left()
    """
    [error], _ = judged(judges, ("given", given), ("answer", FILES), ("test", test))
    assert error is None


@pytest.mark.sandbox
def test_a_module_of_torch_s_that_answers_is_not_there_in_its_exercise_and_is_in_others(judges):
    answers = """
        import glob, importlib, os, torch
        def looked(name):
            place = os.path.join(os.path.dirname(torch.__file__), *name.split(".")[1:])
            compiled = os.path.join(os.path.dirname(place), "__pycache__", os.path.basename(place) + ".*.pyc")
            files = [each for each in (place + ".py", *glob.glob(compiled)) if os.path.exists(each)]
            files += [os.path.join(top, each) for top, _, names in os.walk(place) for each in names]
            try:
                importlib.import_module(name)
                said = ""
            except ImportError as error:
                said = str(error)
            return said, sum(map(os.path.getsize, files))
        def used():
            return torch.utils.checkpoint.checkpoint(lambda x: x, torch.ones(1), use_reentrant=False)
        def patched(name):
            import sys
            del sys.meta_path[0]
            return looked(name)
    """
    test = """
    refused = "for comparing, afterwards; write this part yourself"
    said, size = looked("torch.distributed.pipelining")
    assert (refused in said, size == 0) == (IN_16, IN_16), (said, size)
    _, size = looked("torch.utils.checkpoint")
    assert (size == 0) == (not IN_16), size
    try:
        used()
        assert IN_16
    except Exception as error:
        assert not IN_16 and "torch's own checkpoint." in str(error) and refused in str(error), error
    if IN_16:
        assert "No module named" in patched("torch.distributed.pipelining.schedules")[0]
    """
    for name, in_16 in (("ch16_pipeline", True), ("ch12_activations", False)):
        given = f"from collectives.practice import {name}\nIN_16 = {in_16}"
        [error], _ = judged(judges, ("given", given), ("answer", answers), ("test", test))
        assert error is None


@pytest.mark.sandbox
def test_the_numbers_and_names_of_a_module_of_checks_can_be_used_when_graded(judges):
    answers = "def said(_: ch12_activations.Layer = ()):\n    return ch20_plan.RECOMPUTE, ch20_plan.TRIALS"
    given = "from collectives.practice import ch12_activations, ch20_plan"
    test = 'assert said() == (("none", "selective", "full"), 3), said()'
    [error], _ = judged(judges, ("given", given), ("answer", answers), ("test", test))
    assert error is None


@pytest.mark.sandbox
def test_a_check_that_refuses_in_a_student_s_cell_ends_no_answer_below_it(judges):
    answers = """
        total = lambda p, m: (p - 1) / (m + p - 1)
        ch16_pipeline.check_bubble(total, "total", [(4, 8)])
        def said():
            return total(3, 2)
    """
    given = "from collectives.practice import ch16_pipeline"
    [error], _ = judged(judges, ("given", given), ("answer", answers), ("test", "assert said() == 0.5, said()"))
    assert error is None


@pytest.mark.sandbox
def test_a_student_s_cell_can_draw_a_schedule(judges):
    answers = """
        from collectives import contracts, draw
        from collectives.schedule import Schedule, Transfer
        def drawn():
            steps = [[Transfer(0, 1, 0, "copy")]]
            return len(draw(Schedule.of(2, 1, steps), contracts.broadcast)._repr_html_())
    """
    given = "from collectives.practice import ch02_tree"
    [error], _ = judged(judges, ("given", given), ("answer", answers), ("test", "assert drawn() > 10_000, drawn()"))
    assert error is None


# Run in a process of its own, which imports the library once. For each request it forks a child, which builds the wall
# of an exercise, runs cells, and prints the names of those that it refuses: a cell meets the wall in a function that
# refuses, or in a table that is gone.
BEHIND = """
import json, os, sys
from collectives.practice import ch11_fewer_bits, wall
from collectives.practice.checks import LibraryUsed

wall.survey()
for line in sys.stdin:
    if child := os.fork():
        print("ended:", os.waitpid(child, 0)[1], file=sys.stderr, flush=True)
        continue
    modules, cells = json.loads(line)
    for on_ranks in (True, False):
        wall.build(modules, on_ranks)
    names = {"__name__": "__main__"}
    for name, source in cells:
        try:
            exec(source, names)
        except LibraryUsed:
            print("refused:", name, file=sys.stderr, flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def behind_the_wall():
    """A function of an exercise and cells, {name: source}: the names of the cells that refuse behind its wall."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", BEHIND], text=True, cwd=ROOT, **pipes)

    def refused(exercise, cells):
        (setup,) = [cell for cell in cells_of(exercise) if cell.id == "setup"]
        modules = [f"{module}.{name}" for module, name in names_in(setup.source).imported.values()]
        process.stdin.write(json.dumps([modules, [*cells.items()]]) + "\n")
        process.stdin.flush()
        said = []
        while not (line := process.stderr.readline()).startswith("ended:"):
            assert line, said
            said.append(line)
        assert line == "ended: 0\n", said
        return set(re.findall(r"^refused: (.*)$", "".join(said), re.MULTILINE))

    yield refused
    process.stdin.close()
    process.wait()


@pytest.mark.parametrize("exercise", release.names())
def test_the_wall_holds_all_that_right_answers_and_a_student_s_own_cells_use(exercise, behind_the_wall):
    """And the last answer finds every name that the locked cells above it bind."""
    cells = [cell for cell in cells_of(exercise) if cell.cell_type == "code" and not is_check(cell)]
    locked = {cell.id for cell in cells if cell.metadata.get("nbgrader", {}).get("locked")}
    answers = [number for number, cell in enumerate(cells) if cell.metadata.get("nbgrader", {}).get("solution")]
    above, below = cells[: answers[-1]], cells[answers[-1] :]
    names = [names_in(cell.source) for cell in above if cell.id in locked]
    bound = set().union(*(each.bound | each.imported.keys() for each in names))
    look = {
        "look": f"missing = {bound} - globals().keys()\nassert not missing, missing"
    }  # the process fails if it does
    first, last = ({cell.id: cell.source for cell in part} for part in (above, below))
    assert behind_the_wall(exercise, first | look | last) <= locked


LEFT = """
from collectives.practice import ch11_fewer_bits, wall

left = {each.itself.__module__ for each in wall.survey() if each.itself.__code__ is not each.refusal}
left = {name for name in left if name.startswith("collectives.")}
left = {name for name in left if not name.startswith("collectives.ranks.")}
kept = "measure.wire", "practice.wall", "practice.checks", "practice.ch16_pipeline"
assert left <= {f"collectives.{name}" for name in kept}, left
"""


def test_no_code_is_left_but_what_an_exercise_gives(behind_the_wall):
    assert behind_the_wall("16_pipeline", {"left": LEFT}) == set()


def test_a_verdict_is_not_used_again_when_a_sandbox_of_its_exercise_would_hold_something_else(tmp_path, monkeypatch):
    course = grade.opened(grade.options().parse_args(["--into", str(tmp_path / "graded")]))
    course.prepare(["02_tree", "03_ring"])
    monkeypatch.setattr(wall, "FOLDER", tmp_path / "collectives")
    shutil.copytree(ROOT / "collectives" / "practice", wall.FOLDER / "practice")
    asked = []

    def judge(notebook, files, seed):
        asked.append(notebook)
        return Judged(notebook, {}, 0.0)

    def judged():
        """How often the judge was asked for each exercise."""
        wall.declared.cache_clear()
        times = []
        for name in ("02_tree", "03_ring"):
            before = len(asked)
            course.judged(Submission("ana", name, ROOT / "exercises" / name), regrade=False, judge=judge)
            times.append(len(asked) - before)
        return times

    assert judged() == [1, 1]
    assert judged() == [0, 0], "a stored verdict counts"
    source = wall.FOLDER / "practice" / "ch02_tree.py"
    more = source.read_text().replace('HOLDS = ("schedule",', 'HOLDS = ("schedule", "algorithms.tree",')
    assert more != source.read_text()
    source.write_text(more)
    assert judged() == [1, 0]
    source.write_text(more + "# nothing that a sandbox would hold")
    assert judged() == [0, 0]
    wall.declared.cache_clear()


# A notebook of exercise 02, in a shell that looks like a kernel's
NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.kernel = None
shell.run_cell("from collectives.algorithms import tree; from collectives.practice import ch02_tree").raise_error()
answer = shell.run_cell("steps = tree.broadcast(4)" + chr(10) + "def broadcast_steps(world_size): return steps")
print(type(answer.error_in_exec).__name__, answer.error_in_exec, sep=": ")
shell.run_cell("list(tree.broadcast(4))").raise_error()
for first in ("", "%%time" + chr(10)):
    both = "def broadcast_steps(world_size): return []" + chr(10) + "ch02_tree.check_fewest_steps(None, None)"
    print("with a check:", shell.run_cell(first + both).error_in_exec)
"""


def test_a_notebook_refuses_in_the_cell_of_an_answer_and_compares_in_others():
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    words = "LibraryUsed: the library's own tree.broadcast is for comparing, afterwards; write this part yourself"
    assert words in done.stdout
    own = "with a check: ch02_tree.check_fewest_steps refuses in a cell that defines an answer: call it in a cell of"
    assert done.stdout.count(own) == 2


TAKEN = """
from collectives import contracts
from collectives.practice import wall

for on_ranks in (True, False):
    wall.build(["collectives.practice.ch04_all_reduce"], on_ranks)
assert getattr(contracts, "all_reduce", "none") == "none"  # code that can do without goes on
for name in ("all_reduce", "no_such_name"):
    try:
        getattr(contracts, name)
    except AttributeError as error:
        print(type(error).__name__, error, sep=": ")
"""


def test_a_table_that_the_wall_takes_refuses_in_the_words_of_a_function():
    done = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines() == [
        "TableUsed: the library's own contracts.all_reduce is for comparing, afterwards; write this part yourself",
        "AttributeError: module 'collectives.contracts' has no attribute 'no_such_name'",
    ], done.stderr


def without_collectives(rank, world_size):
    """What each way to a collective of torch's ends in, on a rank that lost them; then a message goes through."""
    wall.narrow(["collectives.practice.ch03_ring"], f"{on_ranks.__name__}._on_rank")
    one, group = torch.ones(1), dist.group.WORLD
    both, backend = torch.ones(world_size), group._get_backend(torch.device("cpu"))
    ways = [
        lambda: dist.all_reduce(one),
        lambda: dist.all_gather([torch.ones(1), torch.ones(1)], one),
        lambda: dist.all_gather_into_tensor(both, one),
        lambda: dist.reduce_scatter_tensor(one, both),
        lambda: dist.all_to_all_single(torch.ones(world_size), both),
        lambda: dist.broadcast(one, 0),
        lambda: dist.reduce(one, 0),
        lambda: dist.gather(one, [torch.ones(1), torch.ones(1)] if rank == 0 else None),
        lambda: dist.scatter(one, [torch.ones(1), torch.ones(1)] if rank == 0 else None),
        lambda: dist.all_gather_object([None, None], rank),
        lambda: group.allreduce([one]),
        lambda: backend.allreduce([one]),
        lambda: torch.ops._c10d_functional.all_reduce(one, "sum", group.group_name),
        lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)),
    ]
    said = []
    for way in ways:
        try:
            said.append(f"works: {way()}")
        except Exception as error:
            said.append(str(error))
    dist.barrier()
    if rank == 0:
        dist.send(7 * one, 1)
    else:
        dist.recv(one, 0)
    return said, float(one)


@pytest.mark.ranks
def test_ranks_that_send_alone_lack_torch_s_collectives_however_they_are_called():
    (said, _), (_, received) = ranks.run(without_collectives, 2)
    assert received == 7
    assert all("this calls torch's own dist." in each or "no attribute 'allreduce'" in each for each in said), said


def with_collectives(rank, world_size):
    wall.narrow(["collectives.practice.ch09_zero"], "collectives.practice.ch09_zero._train")
    one = torch.ones(1)
    dist.all_reduce(one)
    return float(one)


@pytest.mark.ranks
def test_ranks_of_other_checks_keep_torch_s_collectives():
    assert ranks.run(with_collectives, 2) == [2.0, 2.0]


def reset_libraries(rank, world_size):
    """What is left of the objects that replaced torch's kernels, for a rank that looks for them in its memory."""
    kind = type(torch._C._dispatch_library("FRAGMENT", "made_by_test", "", __file__, 0))
    address, real = ctypes.c_void_p.from_address, torch._C._dispatch_library
    made = []
    torch._C._dispatch_library = lambda *args: made.append(real(*args)) or made[-1]
    wall.narrow(["collectives.practice.ch03_ring"], f"{on_ranks.__name__}._on_rank")
    kinds = {address(id(each) + 8).value for each in made}
    return len(made), kinds == {id(object)} and id(kind) not in kinds, hasattr(made[0], "reset")


@pytest.mark.ranks
def test_no_method_is_left_by_which_a_rank_brings_torch_s_collectives_back():
    assert ranks.run(reset_libraries, 1) == [(58, True, False)]


def test_a_wall_that_lacks_what_the_grader_calls_is_refused_before_anything_is_graded():
    with pytest.raises(CannotSandbox, match="the wall json has no survey, plan, build, narrow, covered, declared"):
        Warm(("json",), wall="json")
