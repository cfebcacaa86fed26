"""Ranks on emulated nodes: the same results, lines that carry what the price says, and nothing left behind."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from collectives import execute, price, ranks, simulate, topology
from collectives.algorithms import hierarchical, ring
from collectives.ranks import emulate

pytestmark = pytest.mark.ranks

MIB = 2**20
OBSTACLE = emulate.obstacle()
needs_network = pytest.mark.skipif(OBSTACLE is not None, reason=f"blocked: {OBSTACLE}")


def carry_out(rank, world_size, schedule, before):
    buffer = torch.from_numpy(before[rank].copy())
    execute(schedule, buffer)
    return buffer.numpy()


@needs_network
def test_what_comes_out_is_what_simulation_says_bit_for_bit():
    schedule = ring.all_reduce(4)
    before = np.random.default_rng(0).normal(size=(4, 1001)).astype(np.float32)
    after = emulate.run(carry_out, 4, schedule, before, ranks_per_node=2)
    np.testing.assert_array_equal(np.stack(after), simulate(schedule, before))


def namespace(rank, world_size):
    return os.readlink("/proc/self/ns/net")


@needs_network
def test_ranks_of_one_node_share_its_namespace_and_no_other():
    first, second, third, fourth = emulate.run(namespace, 4, ranks_per_node=2)
    assert first == second != third == fourth
    assert namespace(0, 1) not in (first, third)


def all_reduce(rank, world_size, schedule, num_bytes):
    execute(schedule, torch.ones(num_bytes // 4))


@needs_network
def test_a_line_carries_the_bytes_of_the_price_and_one_or_two_percent_of_headers():
    schedule = ring.all_reduce(4)
    cost = price(schedule, 4 * MIB, topology.uniform(4, alpha=0, beta=0))
    with emulate.EmulatedNetwork(nodes=4, rate=200e6) as network:
        network.run(all_reduce, 4, schedule, 4 * MIB)
    for counted, priced in ((network.bytes_sent, cost.bytes_sent), (network.bytes_received, cost.bytes_received)):
        assert np.all(np.abs(counted / priced - 1.0125) < 0.0075)


@needs_network
def test_what_stays_in_a_node_is_on_no_line():
    """Hierarchical all-reduce sends one buffer out of each of two nodes, however many ranks they have."""
    with emulate.EmulatedNetwork(nodes=2, rate=200e6) as network:
        network.run(all_reduce, 6, hierarchical.all_reduce(6, ranks_per_node=3), 3 * MIB)
    assert np.all(np.abs(network.bytes_sent / (3 * MIB) - 1.01) < 0.01)


def seconds_to_send(rank, world_size, num_bytes):
    message = torch.zeros(num_bytes, dtype=torch.uint8)
    dist.barrier()
    start = time.perf_counter()
    dist.recv(message, 0) if rank else dist.send(message, 1)
    return time.perf_counter() - start


@needs_network
def test_a_message_takes_its_bytes_over_the_lines_rate_and_no_time_without_one():
    _, slow = emulate.run(seconds_to_send, 2, 10**6, rate=20e6)  # 8e6 bits
    _, fast = emulate.run(seconds_to_send, 2, 10**6, rate=None)
    assert slow > 0.95 * 8e6 / 20e6
    assert fast < slow / 2


def seconds_there_and_back(rank, world_size):
    message = torch.zeros(1)
    dist.barrier()
    start = time.perf_counter()
    for first in (0, 1):
        dist.recv(message, first) if rank != first else dist.send(message, 1 - rank)
    return time.perf_counter() - start


@needs_network
def test_a_delay_is_added_to_every_message_and_garbles_none():
    schedule = ring.all_reduce(3)
    before = np.random.default_rng(1).normal(size=(3, 200_001)).astype(np.float32)
    with emulate.EmulatedNetwork(nodes=3, delay=0.05) as network:
        after = network.run(carry_out, 3, schedule, before)
    np.testing.assert_array_equal(np.stack(after), simulate(schedule, before))
    assert max(emulate.run(seconds_there_and_back, 2, delay=0.05)) > 2 * 0.05


def come_to_an_end(rank, world_size, end):
    print(namespace(rank, world_size))
    dist.barrier()
    if rank == 1:
        end()
        dist.recv(torch.zeros(1), 0)


def namespaces_in_use():
    """The network namespaces of all processes."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:  # a process that has ended meanwhile
            continue
    return found


def gone(namespaces):
    """Whether these namespaces vanish within two seconds."""
    for _ in range(100):
        if not namespaces & namespaces_in_use():
            return True
        time.sleep(0.02)
    return False


@needs_network
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: 1 / 0, "rank 1 failed"),
        (lambda: os._exit(3), "rank 1 died with exit code 3"),
        (lambda: None, "rank 1 waits to receive from rank 0"),
    ],
    ids=["raises", "dies", "hangs"],
)
def test_a_failing_run_is_told_as_without_a_network_and_leaves_nothing(end, words, capsys):
    interfaces = os.listdir("/sys/class/net")
    with pytest.raises(ranks.RanksError, match=words):
        emulate.run(come_to_an_end, 2, end, timeout=2)
    used = {line.split(": ")[1] for line in capsys.readouterr().out.splitlines()}
    assert len(used) == 2
    assert gone(used)
    assert os.listdir("/sys/class/net") == interfaces


@needs_network
def test_a_network_ends_with_the_program_that_made_it(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import os, time
        from collectives.ranks import emulate
        def report(rank, world_size):
            with open(f"{os.path.dirname(__file__)}/{rank}.part", "w") as file:
                file.write(os.readlink("/proc/self/ns/net"))
            os.rename(file.name, file.name.replace("part", "namespace"))
            time.sleep(1000)
        emulate.run(report, 2, timeout=1000)
        """)
    )
    parent = subprocess.Popen([sys.executable, script])
    while len(reports := list(tmp_path.glob("*.namespace"))) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert gone({report.read_text() for report in reports})


@needs_network
def test_a_network_serves_one_run_after_another_and_counts_each():
    with emulate.EmulatedNetwork(nodes=2) as network:
        network.run(all_reduce, 2, ring.all_reduce(2), MIB)
        first = network.bytes_sent
        network.run(all_reduce, 2, ring.all_reduce(2), MIB // 4)
    assert np.all(network.bytes_sent < first / 3)


def test_a_missing_program_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert emulate.obstacle() == "can't emulate a network: `ip` is missing, install iproute2"


@needs_network
def test_a_machine_that_forbids_namespaces_is_told_how_to_allow_them():
    ask = "from collectives.ranks import emulate; print(emulate.obstacle())"
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$0" -c "$1"'
    answer = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, sys.executable, ask],
        capture_output=True,
        text=True,
    )
    assert answer.stdout.startswith("can't emulate a network (unshare: "), answer.stderr
    assert "run as root, or let all users create namespaces: `sysctl -w " in answer.stdout


def test_a_network_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="at least 1 node"):
        emulate.EmulatedNetwork(nodes=0)
    with pytest.raises(ValueError, match="bits per second"):
        emulate.EmulatedNetwork(nodes=2, rate=100)
    with pytest.raises(ValueError, match="from 0 to 1, not 50"):
        emulate.EmulatedNetwork(nodes=2, delay=50)
    with pytest.raises(ValueError, match="5 ranks do not fill nodes of 2"):
        emulate.run(namespace, 5, ranks_per_node=2)
