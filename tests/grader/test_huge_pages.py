"""A warm process's memory is ready for forks: few entries to copy, and no collector that writes to what they share."""

import gc
import platform
import re
import subprocess
import sys

import pytest

KERNEL = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
PROGRAM = """
import gc, sys
from pathlib import Path
from autograder.inside import memory

memory.COLLAPSE = int(sys.argv[1])
with memory.settled():
    assert not gc.isenabled()
    imported = [[number] for number in range(500_000)]
assert gc.isenabled() and gc.get_freeze_count() > 500_000
fields = Path("/proc/self/smaps_rollup").read_text().split("AnonHugePages:")[1].split()
print(fields[0])
"""


def huge(advice):
    """The kB of huge pages of a process that has settled. `advice`: the number of madvise's that it gives."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(advice)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(KERNEL < (6, 1), reason="this kernel makes no huge pages of a process's memory when asked")
def test_what_a_warm_process_has_imported_is_in_huge_pages():
    assert huge(25) >= 20_000, "500,000 lists take some 35 MB"


def test_a_kernel_that_makes_no_huge_pages_changes_nothing_else():
    huge(9999)


def test_after_an_error_in_the_block_the_collector_runs_again():
    from autograder.inside import memory

    with pytest.raises(ImportError), memory.settled():
        raise ImportError
    assert gc.isenabled()
