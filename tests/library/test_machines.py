"""Ratings are links that can be priced, and each says where its figure comes from."""

import pytest

from collectives import machines, price, topology
from collectives.algorithms import ring


def test_every_rating_has_a_rate_a_medium_that_nccl_knows_and_a_source():
    for name, rating in machines.RATINGS.items():
        assert 1e9 < rating.rate < 1e13, name
        assert rating.medium in machines.NCCL_RING_LATENCY
        assert len(rating.source) > 20


def test_generations_follow_each_other():
    rates = [rating.rate for rating in machines.RATINGS.values()]
    nvlink, pcie, infiniband = rates[:3], rates[3:5], rates[5:7]
    for generations in (nvlink, pcie, infiniband):
        assert generations == sorted(generations)
    assert machines.RATINGS["InfiniBand NDR"].rate == machines.RATINGS["400 GbE"].rate


def test_a_link_has_the_rate_as_beta_and_nccls_latency_as_alpha():
    link = machines.link("NVLink 4 (H100)")
    assert link == topology.Link(3.4e-6, 1 / 450e9)
    assert machines.link("InfiniBand HDR", "LL") == topology.Link(2.7e-6, 1 / 25e9)
    machine = topology.two_level(2, 2, link, machines.link("100 GbE"))
    assert price(ring.all_reduce(4), 4096, machine).seconds > 0


def test_an_unknown_link_or_protocol_is_told_what_there_is():
    with pytest.raises(ValueError, match="there is no rating for 'NVLink 9'; use one of NVLink 3"):
        machines.link("NVLink 9")
    with pytest.raises(ValueError, match="no protocol 'LL64'; use one of LL, LL128, Simple"):
        machines.link("PCIe 4.0 x16", "LL64")


def test_the_more_bytes_a_protocol_is_for_the_longer_its_step():
    for latency in machines.NCCL_RING_LATENCY.values():
        assert latency["LL"] < latency["LL128"] < latency["Simple"]


def test_a_ring_serves_every_collective():
    assert all("Ring" in algorithms for algorithms in machines.NCCL_ALGORITHMS.values())


def test_the_table_has_a_row_for_every_link():
    rows = machines.markdown().splitlines()
    assert len(rows) == len(machines.RATINGS) + 2
    assert all(row.count("|") == 5 for row in rows)


def test_a_gpu_is_known_by_the_drivers_name_and_its_memory():
    gib = 2**30
    names = {
        ("NVIDIA H100 80GB HBM3", 79.1 * gib): "H100",
        ("NVIDIA H100 96GB HBM2e", 95 * gib): "H100-96GB",
        ("NVIDIA A100-SXM4-40GB", 39.4 * gib): "A100-40GB",
        ("NVIDIA A100-SXM4-80GB", 79.2 * gib): "A100",
        ("NVIDIA H200", 140 * gib): "H200",
        ("NVIDIA B200", 179 * gib): "B200",
        ("NVIDIA GB200", 184 * gib): "GB200",
        ("NVIDIA H20", 95 * gib): "H20",
    }
    assert {key: machines.named(*key).name for key in names} == names
    for other in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090", "NVIDIA GH200 480GB", "Tesla T4"):
        assert machines.named(other, 80 * gib) is None
