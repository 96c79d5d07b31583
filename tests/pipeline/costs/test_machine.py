"""The machine's arithmetic, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ignite_ipu.pipeline import BOW, MK2, Machine, PlanError

PLAIN = Machine(link_efficiency=1.0, hop_latency=0.0)


def test_defaults_are_the_published_figures():
    """1472 tiles of 624 KiB are sold as 900 MB; 47.5 TB/s, 250 TFLOPS and 320 GB/s both ways are on the data sheets."""
    assert MK2.memory == 900 * 10**6
    assert MK2.memory == pytest.approx(1472 * 624 * 1024, rel=0.05)
    assert (MK2.float16_flops, MK2.memory_bandwidth, 2 * MK2.ipu_link_bandwidth) == (250e12, 47.5e12, 320e9)
    assert BOW.memory == MK2.memory and BOW.float16_flops == 350e12


def test_ring_all_reduce_within_a_link_domain():
    """Every IPU sends 2 (r - 1) / r of its bytes."""
    assert PLAIN.all_reduce_seconds(160e9, 4, 4) == pytest.approx(2 * 3 / 4)
    assert PLAIN.all_reduce_seconds(160e9, 4, 1) == 0
    late = replace(PLAIN, hop_latency=1.0)
    assert late.all_reduce_seconds(160e9, 4, 4) == pytest.approx(2 * 3 / 4 + 2 * 3)


def test_all_reduce_between_link_domains_crosses_the_gateways():
    """256 IPUs, 4 to a replica: 16 replicas in each of 4 domains; a 16th of the bytes crosses, by a quarter gateway."""
    inside = 2 * 15 / 16 * 160e9 / 160e9
    across = 2 * 3 / 4 * (160e9 / 16) / (25e9 / 4)
    assert PLAIN.all_reduce_seconds(160e9, 4, 64) == pytest.approx(inside + across)


def test_replicas_share_host_links():
    """Four one-IPU replicas share a unit's link; eight have two units."""
    one = PLAIN.host_seconds(12.5e9, 1, 1)
    assert one == pytest.approx(1.0)
    assert PLAIN.host_seconds(12.5e9, 1, 4) == pytest.approx(4.0)
    assert PLAIN.host_seconds(12.5e9, 1, 8) == pytest.approx(4.0)
    assert PLAIN.host_seconds(12.5e9, 8, 1) == pytest.approx(0.5)


def test_nonsense_is_refused():
    with pytest.raises(PlanError, match=r"usable_fraction is 1\.5"):
        Machine(usable_fraction=1.5)
    with pytest.raises(PlanError, match="memory is 0"):
        Machine(memory=0)
