"""Answers of torch.cuda to a script, and to libraries meanwhile."""

from __future__ import annotations

import pytest

from ignite_ipu.errors import RunError


def test_a_script_finds_one_gpu(run):
    ran = run("import torch; print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device())")
    assert ran.output == ["True 1 0"]
    assert ran.became("torch.cuda.is_available()") == "True"


def test_libraries_get_the_true_answer(run):
    """The same function, called from a file that is not the script's."""
    ran = run(
        """
        import torch, ignite.distributed as idist
        print(torch.cuda.is_available(), idist.device(), idist.backend())
        """
    )
    assert ran.output == [f"True {'cuda' if __import__('torch').cuda.is_available() else 'cpu'} None"]


@pytest.mark.parametrize(
    "context", ["torch.cuda.device(0)", "torch.cuda.device_of(torch.ones(1))", "torch.device('cuda')"]
)
def test_contexts_of_a_gpu_are_those_of_the_host(run, context):
    assert run(f"import torch\nwith {context}:\n    print(torch.ones(2).device)").output == ["cpu"]


def test_calls_that_steer_a_gpu_are_left_out_and_logged_once(run):
    ran = run("import torch\nfor _ in range(3):\n    torch.cuda.synchronize()\n    torch.cuda.empty_cache()")
    assert ran.became("torch.cuda.synchronize()") == "left out"
    assert len(ran.substitutions) == 2


@pytest.mark.parametrize(
    "call", ["get_rng_state()", "ExternalStream(0)", "CUDAGraph()", "make_graphed_callables(1, 2)"]
)
def test_questions_without_an_answer_are_refused(run, call):
    with pytest.raises(RunError, match=r"script\.py:1: torch\.cuda\.") as refused:
        run(f"import torch; torch.cuda.{call}")
    assert refused.value.line is not None and refused.value.line[1] == 1


def test_a_script_that_insists_on_its_gpu_goes_on(run):
    ran = run(
        """
        import torch
        assert torch.cuda.is_available() and torch.cuda.device_count() >= 1
        found = torch.cuda.get_device_properties(0)
        print(found.name, found.total_memory > 2**20, torch.cuda.get_device_name(0))
        print(torch.cuda.get_device_capability() >= (8, 0))
        """
    )
    assert ran.output == ["IPU True IPU", "False"]


def test_figures_of_memory_are_0_with_one_note(run):
    ran = run(
        """
        import torch
        from torch.cuda import max_memory_allocated
        for _ in range(2):
            print(torch.cuda.memory_allocated() / 2**20, max_memory_allocated(0))
        free, total = torch.cuda.mem_get_info()
        peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
        print((total - free) / total, peak, [torch.cuda.memory_summary()])
        """
    )
    assert ran.output == ["0.0 0", "0.0 0", "0.0 0 ['']"]
    (noted,) = [each for each in ran.substitutions if "memory" in each.original]
    assert noted.original == "torch.cuda.memory_allocated()" and noted.became.startswith("0: ")


PREFETCHING = """
import torch
from torch import nn
class Prefetcher:
    def __init__(self, batches):
        self.batches, self.stream = iter(batches), torch.cuda.Stream()
        self.preload()
    def preload(self):
        self.batch = next(self.batches, None)
        if self.batch is not None:
            with torch.cuda.stream(self.stream):
                self.batch = [each.cuda(non_blocking=True) for each in self.batch]
    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.batch
        for each in batch or ():
            each.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch
torch.manual_seed(0)
model = nn.Linear(3, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
batches = Prefetcher([(torch.full((4, 3), 0.1 * i), torch.ones(4, 1)) for i in range(3)])
start.record()
batch = batches.next()
while batch is not None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
    batch = batches.next()
end.record()
end.synchronize()
print(start.elapsed_time(end) > 0, isinstance(batches.stream, torch.cuda.Stream), end.query())
print(model.bias.item() != 0)
"""


def test_streams_that_prefetch_order_nothing_and_events_measure_the_host(run):
    ran = run(PREFETCHING)
    assert ran.output == ["True True True", "True"]
    assert ran.became("torch.cuda.Stream()").startswith("does nothing")
    assert ran.became("torch.cuda.Event()") == "measures time on the host"
