"""Processes that train one model together, tried in one; tests/accelerator/test_processes.py trains in several."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn

from ignite_ipu import create_ipu_trainer
from ignite_ipu.errors import ProcessesError
from ignite_ipu.session import job
from ignite_ipu.session.job import check_same_weights
from tests.supervised import network, pair, task

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")


@pytest.fixture
def of_three(monkeypatch):
    """Pretend to be rank 1 of three connected processes of this host; the last one has ended."""

    def gather(found, own):
        found[:] = [own, own, own._replace(pid=2**22 + 1)]  # more than Linux gives out

    monkeypatch.setattr(job, "_job", None)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    return monkeypatch


def lost(*args, **kwargs):
    raise LOST


def test_copies_that_start_differently_are_refused(of_three):
    """Rank 0 sends the sums of its weights; here its first weight differs."""

    def broadcast(sums, src):
        sums[0, 0] += 1.0

    of_three.setattr(dist, "broadcast", broadcast)
    of_three.setattr(dist, "all_reduce", lambda found: None)
    with pytest.raises(ProcessesError, match=r"in rank 1, 0.weight differs"):
        check_same_weights(network())
    of_three.setattr(dist, "broadcast", lambda sums, src: None)
    check_same_weights(network())


def test_a_process_that_ends_while_weights_are_compared_is_named(of_three):
    of_three.setattr(dist, "broadcast", lost)
    with pytest.raises(ProcessesError, match=r"process 2 \(pid 4194305\) of 3 has ended\. Gradients of all processes"):
        check_same_weights(network())


def test_a_process_that_ends_before_the_first_comparison_is_reported(of_three):
    of_three.setattr(dist, "all_gather_object", lost)
    with pytest.raises(ProcessesError, match=r"another process has ended, or is not reached\. .*launch --restarts"):
        check_same_weights(network())


def test_a_process_that_ends_during_a_call_of_a_trainer_is_named(of_three):
    of_three.setattr(dist, "broadcast", lambda sums, src: None)
    of_three.setattr(dist, "all_reduce", lambda *args, **kwargs: None)
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss())
    data = task(8)
    of_three.setattr(dist, "all_reduce", lost)
    with pytest.raises(ProcessesError, match=r"process 2 \(pid 4194305\) of 3 has ended"):
        trainer.run([data.tensors])


def test_other_errors_stay_as_they_are(of_three):
    def other(*args, **kwargs):
        raise RuntimeError("out of range")

    of_three.setattr(dist, "broadcast", other)
    with pytest.raises(RuntimeError, match="out of range"):
        check_same_weights(network())
