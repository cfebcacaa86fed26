"""Logs of six versions of NCCL, real ones, are read for what they say; and what they do not say is said."""

from pathlib import Path

import pytest

from collectives.measure import nccl_log
from collectives.measure.nccl_log import Call, Connection, Cost, Tuning

LOGS = Path(__file__).parent / "nccl_logs"
TUNING = "which algorithm and protocol were picked"


def read(name):
    return nccl_log.parse((LOGS / f"{name}.txt").read_text())


def test_2_5_a_rank_alone_tells_its_place_in_each_tree():
    """Of the two directions that trees had in 2.5 the first is read, which is that of the reduction."""
    log = read("nccl-2.5.6-issue-302")
    assert log.parents[0] == {155: 153, 154: 155}
    assert log.parents[3] == {155: 154, 153: 155, 146: 155, 162: 155}
    assert Connection(0, 155, 157, "P2P", "P2P/IPC") in log.connections
    assert log.version is None and log.world_size is None and not log.rings


def test_2_16_two_nodes_with_one_gpu_each():
    log = read("nccl-2.16.2-two-nodes")
    assert (log.version, log.world_size, log.nodes, log.channels) == ("2.16.2", 2, None, 2)
    assert log.rings == {0: (0, 1), 1: (0, 1)}
    assert log.parents == {0: {0: None, 1: 0}, 1: {0: 1, 1: None}}, "the second tree stands on its head"
    assert log.transports == {"NET/IB": 4}, "each connection is told by both of its ends, and counted once"
    assert any(TUNING in words for words in log.missing)


def test_2_22_tells_what_it_picked_by_number_and_how_long_it_expects():
    log = read("nccl-2.22.3-issue-1453")
    assert (log.world_size, log.channels) == (24, 16)
    assert {choice[1:4]: times for choice, times in log.choices.items()} == {
        (65536, "Tree", "LL"): 2,
        (131072, "Tree", "LL128"): 2,
        (262144, "Tree", "LL128"): 1,
        (2**33, "Ring", "Simple"): 1,
    }
    expected = {choice.num_bytes: choice.seconds for choice in log.choices}
    assert expected[2**33] == pytest.approx(86069.96875e-6) and expected[65536] == pytest.approx(37.798233e-6)
    assert all(choice.collective is choice.channels is None for choice in log.choices)
    assert log.transports == {"NET/IBext_v8": 3}
    assert "NET/IBext_v8 with GPUDirect RDMA: 3 connections" in nccl_log.summary(log)


def test_graph_tells_each_ranks_own_steps_and_rings_are_whole_only_with_all_of_them():
    log = read("nccl-graph-issue-1189")
    assert (log.world_size, log.nodes) == (4, 2)
    assert log.successors[6] == {0: 1, 1: 3, 2: 0}
    assert not log.rings and any("whole rings" in words for words in log.missing)
    assert log.parents[1] == {0: 1, 1: None, 2: 3, 3: 1}, "from three ranks' lines, in both of their forms"
    assert "ring 6, in part: 0 → 1, 1 → 3, 2 → 0" in nccl_log.summary(log)
    whole = nccl_log.parse((LOGS / "nccl-graph-issue-1189.txt").read_text() + "x NCCL INFO Ring 06 : 3 -> 2 -> 0\n")
    assert whole.rings == {6: (0, 1, 3, 2)}


def test_coll_tells_the_calls_and_tuning_the_bytes_of_the_same_call():
    log = read("nccl-coll-slinky")
    (call, times), (choice, _) = *log.calls.items(), *log.choices.items()
    assert (call, times) == (Call("AllGather", 2359808, "float32", 4), 4)
    assert choice.num_bytes == call.count * 4 * call.world_size, "S of an all-gather: what all ranks have together"
    assert (choice.collective, choice.algorithm, choice.protocol) == ("AllGather", "Ring", "Simple")
    assert log.world_size == 4


def test_2_27_on_one_machine_without_tuning():
    log = read("nccl-2.27.5-shared-memory")
    assert (log.version, log.world_size, log.nodes, log.channels) == ("2.27.5", 2, 1, 2)
    assert log.rings == {0: (0, 1), 1: (0, 1)}
    assert log.parents == {0: {0: None, 1: 0}, 1: {0: None, 1: 0}}
    assert log.transports == {"SHM": 4}
    assert len(log.missing) == 1 and TUNING in log.missing[0]


def test_2_29_tells_what_it_picked_by_name_and_what_it_counts_on():
    log = read("nccl-2.29.7-tuning")
    assert log.version == "2.29.7"
    assert log.settings == {"NCCL_P2P_DISABLE": "1"}
    assert log.choices[Tuning("Broadcast", 1024, "Ring", "LL", 1)] == 4
    assert log.choices[Tuning("Broadcast", 131072, "Ring", "Simple", 4)] == 1
    assert log.costs["AllReduce", "Ring", "Simple"] == Cost(pytest.approx(36.4e-6), pytest.approx(2.4e9))
    assert log.costs["AllGather", "PAT", "Simple"].bandwidth == pytest.approx(3.6e9), "the table has a second block"
    usable = {key for key, cost in log.costs.items() if cost.bandwidth and key[0] == "ReduceScatter"}
    assert usable == {("ReduceScatter", "Ring", "LL"), ("ReduceScatter", "Ring", "Simple")} | {
        ("ReduceScatter", "PAT", "Simple")
    }, "a reduce-scatter has no tree"


def test_the_older_form_of_the_table_is_read_too():
    """As NVIDIA/nccl-tests issue 89 shows it, of 2.8.3."""
    lines = (
        "n129-118-012:1802:1851 [0] NCCL INFO Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Ring/Simple |",
        "n129-118-012:1802:1851 [0] NCCL INFO  Max NThreads |            512 |            640 |            256 |",
        "n129-118-012:1802:1851 [0] NCCL INFO     Broadcast |     0.0/   0.0 |     0.0/   0.0 |    18.0/   9.0 |",
    )
    costs = nccl_log.parse("\n".join(lines)).costs
    assert costs["Broadcast", "Ring", "Simple"] == Cost(pytest.approx(18e-6), pytest.approx(9e9))
    assert costs["Broadcast", "Tree", "LL128"].bandwidth == 0


def test_a_tree_of_2_4_names_the_parent_first():
    """As NVIDIA/nccl issue 226 shows it."""
    log = nccl_log.parse("ip-172-31-5-237:45266:45271 [0] NCCL INFO Trees [0] 22->23->-1/-1/-1")
    assert log.parents == {0: {23: 22}}


def test_a_line_cut_off_or_torn_is_read_as_far_as_it_is_whole():
    """A log of many processes is written by all of them at once."""
    text = (LOGS / "nccl-2.29.7-tuning.txt").read_text()
    for length in range(0, len(text), 7):
        if "NCCL INFO" in text[:length]:
            assert nccl_log.summary(nccl_log.parse(text[:length]))
    torn = nccl_log.parse("a NCCL INFO Trees [0] 1/-1--1->0->-1 [1] 1/2->0->1/2 [2] 1->0->-1")
    assert torn.parents == {2: {0: None, 1: 0}}
    assert not nccl_log.parse("a NCCL INFO     Broadcast |     0.0/   0.0.1 |").costs


def test_a_fall_back_to_sockets_shows_in_the_warning_and_in_the_transport():
    log = read("nccl-sockets-issue-386")
    assert log.world_size == 16 and log.transports == {"NET/Socket": 3}
    assert log.warnings[0].startswith("NET/OFI aws-ofi-nccl initialization failed")


def test_two_communicators_in_one_log_are_noticed():
    channels = "a NCCL INFO Channel 00/02 :    0   1\na NCCL INFO Channel 00/02 :    0   1   2\n"
    log = nccl_log.parse(channels)
    assert log.rings == {0: (0, 1)}
    assert any("there are several" in words for words in log.missing)


def test_warnings_are_kept_and_shown():
    log = nccl_log.parse("v100-gpu-1:14926:14926 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]")
    assert log.warnings == ["Failed to open libibverbs.so[.1]"]
    assert "NCCL warns: Failed to open libibverbs.so[.1]" in nccl_log.summary(log)


def test_a_text_without_nccl_is_refused():
    with pytest.raises(ValueError, match="this text has no line of NCCL's: run with NCCL_DEBUG=INFO"):
        nccl_log.parse("Epoch 1: loss 2.3")


@pytest.mark.parametrize("path", sorted(LOGS.glob("nccl-*.txt")), ids=lambda path: path.stem)
def test_every_log_and_table_here_says_whose_it_is(path):
    first = path.read_text().splitlines()[0]
    assert first.startswith("Published, not ours: ") and first.endswith("Excerpt.")
