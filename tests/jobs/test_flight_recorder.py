"""What chapter 19 says of `torchfrtrace`: it finds a skipped call, unless a file is missing or a buffer overflowed."""

import pickle
import re
from pathlib import Path

import pytest
from torch.distributed.flight_recorder import fr_trace

PAGE = (Path(__file__).resolve().parents[2] / "book" / "19_failures.md").read_text()
GROUPS = {"0": ("default_pg", [0, 1, 2]), "1": ("pair", [0, 1])}
TENSORS = {"sizes": [[1000]], "dtypes": ["Float"]}
JOINED = "0", "completed"


@pytest.fixture
def report(tmp_path, caplog):
    """Write the recordings of ranks as NCCL's watchdog does; return the calls that are blamed, and all that it says.

    A rank's calls are pairs of a group and a state.
    """

    def of(calls_of, buffer=2000):
        for rank, calls in calls_of.items():
            entries = [
                {
                    "record_id": number,
                    "time_created_ns": number,
                    "process_group": (group, GROUPS[group][0]),
                    "collective_seq_id": [each for each, _ in calls[: number + 1]].count(group),
                    "p2p_seq_id": 0,
                    "is_p2p": False,
                    "profiling_name": "nccl:all_reduce",
                    **{f"{way}_{what}": value for way in ("input", "output") for what, value in TENSORS.items()},
                    "state": state,
                    "frames": [{"name": "step", "filename": "train.py", "line": number}],
                }
                for number, (group, state) in enumerate(calls)
            ]
            config = {
                name: {"name": name, "desc": desc, "ranks": str(ranks)}
                for name, (desc, ranks) in GROUPS.items()
                if rank in ranks
            }
            dump = {"version": "2.10", "pg_config": config, "entries": entries[-buffer:]}
            (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump))
        fr_trace.main([str(tmp_path), "--prefix", "trace_"])
        text = "\n".join(caplog.messages)
        blamed = re.findall(r"sequence number: (\d+)\n(?:.*\n)*?collective state: (\w+)", text)
        return [(int(call), state) for call, state in blamed], text

    return of


def skipped(call, pairs):
    """The calls of three ranks; rank 2 doesn't join `call` of all ranks, and the others also call their pair's."""
    others = [*([("1", "completed")] * pairs), JOINED] * call
    others[-1] = "0", "started"
    return {0: others, 1: others, 2: [JOINED] * (call - 1)}


def test_the_missing_ranks_of_a_skipped_call_are_named_with_the_line(report):
    blamed, text = report(skipped(7, pairs=1))
    assert blamed == [(7, "started")]
    assert "missing ranks: {2}" in text and "train.py:13" in text


def test_a_buffer_may_overflow_if_all_ranks_record_the_same_calls(report):
    assert report(skipped(27, pairs=0), buffer=10)[0] == [(27, "started")]


def test_after_an_overflow_calls_that_all_ranks_joined_are_blamed_first_if_some_record_more(report):
    blamed, _ = report(skipped(7, pairs=1), buffer=10)
    assert blamed[-1] == (7, "started") and {state for _, state in blamed[:-1]} == {"completed"}
    assert "it first reports calls that all ranks `completed`" in PAGE


def test_it_may_give_up_before_the_call_that_was_skipped(report):
    blamed, text = report(skipped(51, pairs=1), buffer=40)
    assert {state for _, state in blamed} == {"completed"} and "Too many mismatches" in text
    assert "may stop before the one that hangs" in PAGE


def test_a_file_of_each_rank_is_needed(report):
    calls = skipped(7, pairs=1)
    del calls[2]
    with pytest.raises(AssertionError, match=r"Missing dump files from ranks \{2\}"):
        report(calls)
    assert "It needs a file from every rank" in PAGE
