"""Grading, for real: sample submissions go through nbgrader's own pipeline, and each gets the points it deserves."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder import grade as grader
from autograder import release

ROOT = Path(__file__).resolve().parents[2]
GRADE = ("-m", "autograder.grade")

ANSWERS = ROOT / "tests" / "submissions"
WHOLE = os.environ.get("SAMPLES") == "all"  # `make samples`
ALWAYS = ("full", "partial", "sends_too_early", "deadlock")  # in `make test`

# What every submission deserves: (student, exercise): (its points, words in its feedback that name the fault).
DESERVED = {
    ("full", "02_tree"): ("20/20", []),
    ("empty", "02_tree"): ("0/20", ["broadcast_steps is not written yet", "tree_reduce is not written yet"]),
    ("partial", "02_tree"): (
        "10/20",
        [
            "takes 3 steps; 4 ranks need 2",
            "the finished chunk 0 is on rank 0",
            "only after 3 messages, one after the other; 2 are enough",
        ],
    ),
    ("left_out", "02_tree"): ("7/20", ["no step ever writes it", "rank 0 waits to receive from rank 2 (line"]),
    ("sends_too_early", "02_tree"): (
        "4/20",
        ["in step 0 rank 2 sends chunk 0 before it has it", "a sum without rank 3"],
    ),
    ("full", "03_ring"): ("20/20", []),
    ("full", "04_all_reduce"): ("16/20, 4 to grade", []),
    ("partial", "03_ring"): ("6/20", ["right-hand neighbour is rank", "rounds the length of every chunk down"]),
    ("partial", "04_all_reduce"): ("4/20", ["leaves out the factor (P-1)/P", "root_link_bytes is not written yet"]),
    ("empty", "03_ring"): ("0/20", ["reduce_scatter_steps is not written yet", "ring_reduce_scatter is not written"]),
    ("empty", "04_all_reduce"): ("0/20", ["reduce_scatter_bytes is not written yet"]),
    ("off_by_one", "03_ring"): ("4/20", ["chunk 0 on rank 0 lacks", "rank 0 returns chunk 0 without"]),
    ("off_by_one", "04_all_reduce"): (
        "1/20",
        ["leaves out the factor (P-1)/P", "one step too many in each phase", "never has to send all of its P chunks"],
    ),
    ("reversed", "03_ring"): ("11/20", ["right-hand neighbour is rank 1", "its right-hand neighbour is 1"]),
    ("copy_for_reduce", "03_ring"): ("0/20", ["instead of adding", "without rank"]),
    ("elements_for_bytes", "03_ring"): ("6/20", ["this counts transfers, not the elements in them"]),
    ("elements_for_bytes", "04_all_reduce"): ("6/20, 4 to grade", ["these are elements, not bytes"]),
    ("one_half", "04_all_reduce"): (
        "4/20",
        ["this is one half of it", "this is one phase", "leaves out one of the collectives", "this is upside down"],
    ),
    ("deadlock", "03_ring"): ("10/20", ["waits to send to rank", "each waits for the next: rank 0 → rank 1 → rank 0"]),
    ("full", "05_crossover"): ("20/20", []),
    ("empty", "05_crossover"): ("0/20", ["ring_seconds is not written yet", "fit is not written yet"]),
    ("partial", "05_crossover"): (
        "8/20",
        ["round the logarithm up", "each pays an alpha: those are missing", "alpha drowns in their noise"],
    ),
    ("one_half", "05_crossover"): (
        "5/20",
        ["this is half of it: an all-reduce goes there and back", "this is upside down", "this is a bandwidth"],
    ),
    ("no_folding", "05_crossover"): ("5/20", ["the other ranks are folded in first", "crossing is not written yet"]),
    ("full", "06_all_to_all"): ("20/20", []),
    ("partial", "06_all_to_all"): (
        "6/20",
        [
            "Step 0 overwrites chunk 0 on rank 1, which step 1 has yet to send",
            "in round 0 there are 2 without a partner",
            "each waits for the next: rank 0 → rank 1 → rank 0",
        ],
    ),
    ("empty", "06_all_to_all"): ("0/20", ["peers is not written yet", "exchange is not written yet"]),
    ("peer_is_k", "06_all_to_all"): (
        "0/20",
        ["rank 0 waits for rank 1, whose partner is nobody", "rank 0 waits to send to rank 1"],
    ),
    ("shift_pairs", "06_all_to_all"): (
        "6/20",
        ["whose partner is rank 2. Each waits for the next: rank 0 → rank 1 → rank 2 → rank 0"],
    ),
    ("full", "07_topology"): ("20/20", []),
    ("partial", "07_topology"): (
        "11/20",
        [
            "Of the links that leave a node, 0→4 (ranks) carries the most, 12 MiB",
            "this is what leaves one rank",
            "a node does not send to itself",
        ],
    ),
    ("empty", "07_topology"): (
        "0/20",
        ["two_level_all_reduce_steps is not written yet", "leaving_ring is not written yet"],
    ),
    ("one_half", "07_topology"): ("0/20", ["chunk 2 on rank 0 lacks ranks 1, 2 and 3", "this is one half of it"]),
    ("rings", "07_topology"): ("17/20", ["22% more than the 160 microseconds", "It pays for 12 messages in a row"]),
    ("full", "08_data_parallel"): ("20/20", []),
    ("empty", "08_data_parallel"): (
        "0/20",
        ["fill is not written yet", "ready_times is not written yet", "arrived is not written yet"],
    ),
    ("partial", "08_data_parallel"): (
        "12/20",
        [
            "outgrown the bound already",
            "lets all-reduces run side by side",
            "where 0.1% is allowed",
            "rank 0 launches its buckets in the order [0, 1], rank 1 in the order [1, 0]",
        ],
    ),
    ("forward", "08_data_parallel"): (
        "0/20",
        [
            "it begins with parameter 0",
            "the backward pass begins with the last parameter",
            "this is the sum over the ranks",
            "but it is not launched then",
        ],
    ),
    ("no_overlap", "08_data_parallel"): (
        "5/20",
        [
            "parameter 2 with its 8 still fits exactly",
            "a bucket need not wait for it",
            "as soon as it is full",
            "A single bucket begins when the backward pass has ended",
            "waits for an all-reduce while the backward pass is still running",
        ],
    ),
    ("full", "09_zero"): ("20/20", []),
    ("empty", "09_zero"): (
        "0/20",
        ["shard_bounds is not written yet", "update is not written yet", "arrived is not written yet"],
    ),
    ("partial", "09_zero"): (
        "10/20",
        [
            "gives shards of 2, so 2 elements belong to no rank: round the length of a shard up, and pad",
            "it was rounded to bf16; update the fp32 master, and round only what you return",
            "The bf16 parameters are updated instead of the fp32 masters",
            "rank 0 sends 1.5 times what DDP sends",
        ],
    ),
    ("zero_1", "09_zero"): (
        "15/20",
        [
            "rank 0 holds 37,824 bytes of gradients after the backward pass; its shard is 18,912: is the full buffer",
            "this is the sum up to rounding, but not to the bit",
        ],
    ),
    ("not_gathered", "09_zero"): (
        "8/20",
        ["its master has 6 numbers, but keeps 48 bytes alive, not 24", "in shard 1: were they gathered?"],
    ),
    ("no_mean", "09_zero"): (
        "12/20",
        [
            "the sum was not divided by the number of ranks",
            "its shard is 18,912",
            "do the shards of all passes add up?",
        ],
    ),
    ("full", "10_fsdp"): ("16/20, 4 to grade", []),
    ("empty", "10_fsdp"): ("0/20", ["parameter_bytes is not written yet", "choose is not written yet"]),
    ("partial", "10_fsdp"): (
        "6/20",
        [
            "the block that is whole for a while is missing",
            "leaves out the factor (P-1)/P",
            "stage 3 does not fit: it needs 168 GB of 164 GB, optimizer state 93 GB; nor does any other",
            "you leave out the block that is whole for a while",
            "of equals take the stage that shards least",
        ],
    ),
    ("shards_fully", "10_fsdp"): (
        "5/20, 4 to grade",
        [
            "this divides from stage 2 on; which stage shards the parameters?",
            "stage 3 does not move what stage 0 moves",
            "you shard fully wherever that fits; is there need to?",
            "stage 0 fits already: it needs 24 GB of 80 GB",
            "stage 3 pays 1.5 times the bytes for nothing",
        ],
    ),
    ("all_reduce_kept", "10_fsdp"): (
        "4/20, 4 to grade",
        [
            "this divides by P - 1",
            "activation_gb is in GB, 1e9 bytes; this takes GiB, 2**30",
            "stage 1 does not all-reduce",
            "of equals take the stage that shards least",
        ],
    ),
    ("optimizer_is_16", "10_fsdp"): (
        "3/20, 4 to grade",
        [
            "a number in bfloat16 has 2",
            "16 bytes are what a parameter costs in all",
            "you say 'none', but stage 3 fits: it needs 72 GB of 80 GB",
        ],
    ),
    ("full", "11_tensor_parallel"): ("20/20", []),
    ("empty", "11_tensor_parallel"): (
        "0/20",
        ["collectives is not written yet", "F.forward is not written yet", "attention is not written yet"],
    ),
    ("partial", "11_tensor_parallel"): (
        "6/20",
        [
            "then Y lies by its columns, but it is wanted whole on every rank",
            "the output is right, but the gradient of X is only this rank's share: what does f do backward?",
            "4 heads do not divide among 3 ranks, though the width of 12 does",
            "does X pass through f, for queries, keys and values?",
        ],
    ),
    ("cut_as_one_piece", "11_tensor_parallel"): (
        "11/20",
        [
            "slice r of the one does not meet slice r of the other",
            "the backward of f changes the gradient that it is given on rank 0, in place",
            "It was cut as one piece: take queries, keys and values apart first",
            "ends in AssertionError; raise a ValueError",
            "attention sends on rank 0 backward 3 times what an all-reduce sends",
        ],
    ),
    ("conjugates_exchanged", "11_tensor_parallel"): (
        "5/20",
        [
            "that does it, but nothing need be sent",
            "f returns 2 times X",
            "A column of it meets one number of what a head has attended",
            "X is added up over the ranks, and Y is not: are f and g exchanged?",
        ],
    ),
    ("bias_on_every_rank", "11_tensor_parallel"): (
        "3/20",
        [
            "every number that a rank computes is finished",
            "the gradient that g passes back is 2 times too large",
            "A row of it makes one number of a query, key or value",
            "the bias of the second matrix is in it 2 times",
        ],
    ),
    ("full", "12_experts"): ("20/20", []),
    ("empty", "12_experts"): ("0/20", ["send_order is not written yet", "layer is not written yet"]),
    ("partial", "12_experts"): (
        "7/20",
        [
            "an expert that nobody has chosen counts too",
            "applies the order a second time",
            "an empty place of one expert is of no use to another",
            "layer is not written yet",
        ],
    ),
    ("no_way_home", "12_experts"): (
        "10/20",
        ["leaves the rows in the order of sending", "token 0 of rank 0 came back with token"],
    ),
    ("counts_unknown", "12_experts"): (
        "8/20",
        [
            "keeps one too many of each expert",
            "rank 0 returns in row 1 those of rank 0",
            "do not have the same table of blocks",
        ],
    ),
    ("first_choice", "12_experts"): (
        "10/20",
        [
            "each choice is one, also a token's second",
            "first the dropped, then the padded",
            "rank 1 asks expert 0, but it lives on rank 0",
            "of the table it sends",
        ],
    ),
    ("full", "13_pipeline"): ("20/20", []),
    ("empty", "13_pipeline"): ("0/20", ["one_f_one_b is not written yet", "mine is not written yet"]),
    ("partial", "13_pipeline"): (
        "9/20",
        [
            "a bubble over ideal time. Over total time that many are m + p - 1",
            "rank 0's operation 3 is F2; micro-batches are 0 to 1",
            "rank 0 stalls for 6 units of time, and at most 5 are asked for",
            "rank 0 stalls for 3 units of time, and at most 0 are asked for",
        ],
    ),
    ("all_forwards_first", "13_pipeline"): (
        "2/20",
        [
            "this is what GPipe keeps",
            "It does all forwards first: that is GPipe",
            "keeps the activations of 8 micro-batches at once, and may keep 4",
        ],
    ),
    ("left_out", "13_pipeline"): (
        "2/20",
        ["rank 0 never does B5", "rank 0 never does W0: add it to its list", "rank 3 never does W5"],
    ),
    ("off_by_one", "13_pipeline"): (
        "2/20",
        [
            "m + p - 1 turns, not m + p",
            "It does 3 forwards before its first backward; how many ranks are there from this one on?",
            "With F4, its operation 7, they become 5",
            "waits for I0, which comes later in its own list",
        ],
    ),
    ("reversed", "13_pipeline"): (
        "5/20",
        ["rank 3 stands at B7, its operation 2, and waits for F7, which comes later in its own list"],
    ),
    ("malformed", "03_ring"): (
        "0/20",
        ["has dst 2, but the ranks are 0 to 1", "returns None; is its `return` missing?", "a value of type list"],
    ),
    ("malformed", "04_all_reduce"): (
        "0/20",
        ["which is not a number", "returns None", "'undefined' is not defined", "root_link_bytes", "`//` has rounded"],
    ),
    ("full", "14_mesh"): ("20/20", []),
    ("empty", "14_mesh"): ("0/20", ["coordinates is not written yet", "best is not written yet"]),
    ("partial", "14_mesh"): (
        "5/20",
        [
            "its group is [0, 4]",
            "for groups that they are not in, too",
            "it is to be the mean over [0, 1, 2], along 'dp'",
            "FSDP has cut first here, and TP what was left",
            "what does the backward pass need?",
            "this gathers whole weights, but TP has cut them",
        ],
    ),
    ("first_axis_fastest", "14_mesh"): (
        "0/20",
        ["the first axis moves fastest; it is to be the last one", "this takes the last axis for the outermost one"],
    ),
    ("size_for_place", "14_mesh"): (
        "1/20",
        [
            "this is how a row-parallel layer lies; torch's weight is [outputs, inputs]",
            "nobody to talk to",
            "a group may be small and its ranks far apart",
            "In yours 'dp' leaves its nodes",
        ],
    ),
    ("full", "15_gpus"): ("20/20", ["d2, on which no point depends:"]),
    ("empty", "15_gpus"): ("0/20", ["basics is not written yet", "average is not written yet"]),
    ("partial", "15_gpus"): (
        "4/20",
        [
            "there are several communicators; this is a smaller one",
            "which network?",
            "only an all-reduce goes round twice",
            "wherever `device` is",
        ],
    ),
    ("names_for_nodes", "15_gpus"): (
        "0/20",
        [
            "these are names: two pods of one node have different ones",
            "the table has microseconds",
            "this is in GB/s; bytes a second",
            "Small rows always have a low bandwidth",
        ],
    ),
    ("gpu_zero", "15_gpus"): (
        "2/20",
        ["all ranks of the node would share GPU 0", "on the CPU .to() copies nothing"],
    ),
    ("full", "16_plan"): ("26/30, 4 to grade", []),
    ("empty", "16_plan"): (
        "0/30",
        ["layer_params is not written yet", "state_bytes is not written yet", "choose is not written yet"],
    ),
    ("partial", "16_plan"): (
        "6/30",
        [
            "the logits are missing: the last rank may be the fullest",
            "from stage 2 on a layer's gradients are whole for a while",
            "kernels reach only a fraction of the peak",
            "data_seconds is not written yet",
        ],
    ),
    ("compute_alone", "16_plan"): (
        "11.7/30, 4 to grade",
        [
            "this computes the scores that the mask hides, too",
            "layer_flops comes along: this computes the scores that the mask hides, too",
            "this is half of it: a layer has two all-reduces in each pass, and an all-reduce goes round twice",
            "2.32 of 9 points. All of your layouts have pp 1, micro_batch 1; not all of the best ones do",
            "3.7 of 9 points. All of your layouts",
            "4.44 s against 4.44 s, as good as the best",
            "29.1 s: 60 s more exposed data-parallel communication: stage 3 sends for each of 2 micro-batches",
        ],
    ),
    ("does_not_fit", "16_plan"): (
        "13.7/30",
        [
            "stage 1 does not shard the gradients; stage 2 does",
            "the first has more micro-batches under way, and may be the fullest",
            "what the layer in work makes again is missing",
            "2.7 of 9 points. All of your layouts have recompute none; not all of the best ones do",
            "needs 109.5 GB of 80 GB; most of it activations, 52.1 GB",
        ],
    ),
    ("one_recipe", "16_plan"): (
        "14.8/30",
        [
            "the embedding and the head are two matrices; this counts one",
            "All of your layouts have pp 1, stage 3, micro_batch 1, recompute none; not all of the best ones do",
            "for each of 32 micro-batches",
        ],
    ),
}


TRIED = [one for one in DESERVED if WHOLE or one[0] in ALWAYS]


def answers(student, exercise):
    """A sample submission as {grade_id: answer}. Its file is a .txt if it is no Python."""
    (path,) = (ANSWERS / student).glob(f"{exercise}.*")
    _, *parts = re.split(r"^# %% (\S+)\n", path.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))


def fill(exercise, given):
    """The released notebook of an exercise with these answers written into its solution cells."""
    notebook = nbformat.read(ROOT / "exercises" / exercise / f"{exercise}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.id in given:
            answer = given[cell.id]
            cell.source = answer if cell.cell_type == "code" else re.sub(r"^# ?", "", answer, flags=re.MULTILINE)
    assert set(given) <= {cell.id for cell in notebook.cells}
    return notebook


def hand_in(folder, student, exercise, notebook):
    place = folder / student / exercise
    place.mkdir(parents=True)
    nbformat.write(notebook, place / f"{exercise}.ipynb")
    return place


def grade(*arguments):
    """Run autograder/grade.py as its user does."""
    return subprocess.run([sys.executable, *GRADE, *map(str, arguments)], capture_output=True, text=True)


AT_A_TIME = 4  # a submission on real ranks mostly waits


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """The sample submissions graded, and some that are broken: what was printed, and where it went."""
    handed_in = tmp_path_factory.mktemp("handed_in")
    for student, exercise in TRIED:
        hand_in(handed_in, student, exercise, fill(exercise, answers(student, exercise)))
    hand_in(handed_in, "other_notebook", "03_ring", nbformat.v4.new_notebook())
    without_a_check = fill("04_all_reduce", answers("full", "04_all_reduce"))
    without_a_check.cells = [cell for cell in without_a_check.cells if cell.id != "c1-data-parallel"]
    place = hand_in(handed_in, "check_deleted", "04_all_reduce", without_a_check)
    (place / "random.py").write_text("raise SystemExit('a file beside the notebook was imported')")
    (handed_in / "full" / "99_nothing").mkdir()
    into = tmp_path_factory.mktemp("graded")
    return grade(handed_in, "--into", into, "--jobs", AT_A_TIME), into


def line_of(graded, submission):
    (line,) = [line for line in graded[0].stdout.splitlines() if line.startswith(f"{submission}:")]
    return line.removeprefix(f"{submission}: ")


def test_the_table_covers_every_sample_submission():
    assert {(path.parent.name, path.stem) for path in ANSWERS.glob("*/*")} == set(DESERVED)


@pytest.mark.parametrize("student, exercise", TRIED)
def test_a_submission_gets_the_points_it_deserves(graded, student, exercise):
    points, _ = DESERVED[student, exercise]
    assert re.match(rf"{re.escape(points)} \([\d.]+ s\) \[", line_of(graded, f"{student}/{exercise}"))


@pytest.mark.parametrize("student, exercise", TRIED)
def test_the_feedback_page_names_the_fault(graded, student, exercise):
    page = (graded[1] / "feedback" / student / exercise / f"{exercise}.html").read_text()
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())
    for fault in DESERVED[student, exercise][1]:
        assert fault in words


def test_a_notebook_without_the_exercises_cells_gets_no_points_and_is_told_why(graded):
    expected = "0/20 (unreadable: the notebook has none of the exercise's cells in it"
    assert line_of(graded, "other_notebook/03_ring").startswith(expected)


def test_a_deleted_check_is_put_back_and_a_file_beside_the_notebook_does_nothing(graded):
    expected = "16/20, 4 to grade (`c1-data-parallel` missing: put back and graded.)"
    assert line_of(graded, "check_deleted/04_all_reduce").startswith(expected)


def test_a_folder_that_is_no_exercise_is_told_of(graded):
    assert "full/99_nothing: skipped, no exercise is called 99_nothing" in graded[0].stdout


def test_the_summary_has_a_row_for_each_student_and_says_where_everything_is(graded):
    printed, into = graded[0].stdout, graded[1]
    columns = sorted({exercise for _, exercise in TRIED})
    assert re.search(rf"^student +{' +'.join(columns)}$", printed, re.MULTILINE)
    for student, only, result in [("sends_too_early", "02_tree", "4/20"), ("other_notebook", "03_ring", "0/20")]:
        row = [result if column == only else "-" for column in columns]
        assert re.search(rf"^{student} +{' +'.join(row)}$", printed, re.MULTILINE)
    assert f"{into}/feedback/" in printed
    assert (into / "gradebook.db").exists()


def test_a_gradebook_refuses_an_exercise_whose_checks_have_changed(graded, monkeypatch):
    """Points that were given for other checks are not mixed with new ones, and the reason is said."""
    source = release.source

    def renamed(name):
        notebook = source(name)
        known = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
        known[-1].metadata.nbgrader.grade_id = "a-new-name"
        return notebook

    monkeypatch.setattr(release, "source", renamed)
    course = grader.opened(grader.options().parse_args(["--into", str(graded[1])]))
    with pytest.raises(grader.NothingGraded, match="Cannot add or remove cells for notebook '03_ring'"):
        course.prepare(["03_ring"])


def test_nothing_but_plain_lines_is_printed(graded):
    """No traceback, and no warning of nbgrader's or of a kernel's."""
    assert graded[0].returncode == 0
    assert "Traceback" not in graded[0].stdout
    assert graded[0].stderr == ""


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["nowhere"], "nowhere is not a folder"),
        (["."], "holds no submission"),
        ([".", "--exercise", "03_rings"], "no exercise is called 03_rings; there are 02_tree, 03_ring"),
    ],
)
def test_a_wrong_command_is_answered_in_one_line(tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    answer = grade(*arguments, "--into", tmp_path / "into")
    assert answer.returncode == 2
    assert reason in answer.stderr
    assert answer.stderr.count("\n") == 1
