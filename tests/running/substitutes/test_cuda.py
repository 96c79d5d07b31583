"""What a script is told of CUDA, and what libraries are told meanwhile."""

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
    "call",
    [
        "memory_allocated()",
        "current_stream()",
        "get_device_properties(0)",
        "get_rng_state()",
        "utilization()",
        "Stream()",
        "Event(enable_timing=True)",
        "CUDAGraph()",
    ],
)
def test_questions_without_an_answer_are_refused(run, call):
    with pytest.raises(RunError, match=r"script\.py:1: torch\.cuda\.") as refused:
        run(f"import torch; torch.cuda.{call}")
    assert refused.value.line is not None and refused.value.line[1] == 1
