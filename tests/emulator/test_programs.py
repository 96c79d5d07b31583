"""PopTorch programs as other people write them, run unmodified: the guide's subjects, and the tutorials.

The programs import PopTorch by its name, know nothing of the emulator, and assert what they claim by plain PyTorch.
They follow PopTorch's user guide, chapter by chapter, and two of Graphcore's tutorials.
"""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
import tokenize
from pathlib import Path
from typing import Any, Iterator, Set

import pytest
import torch

import ignite_ipu.emulator as emulator
from tests.half_precision import needs_half_precision
from tests.processes import Processes

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
IN_HALF_PRECISION = {"autocast", "inference_model"}

# Names in the user guide's chapter on features: functions, classes, options, attributes, environment variables.
GUIDE = """
Options loadFromFile useIpuModel Jit Distributed TensorLocations TensorLocationSettings Precision Training
trainingModel inferenceModel PoplarExecutor isRunningOnIpu eval train Error RecoverableError UnrecoverableError
recovery_action IPU_RESET PARTITION_RESET FULL_RESET message type location PipelinedExecution ShardedExecution
SerialPhasedExecution ParallelPhasedExecution setExecutionStrategy autoRoundNumIPUs BeginBlock Block BlockFunction
ipu_id user_id Stage AutoStage SameAsIpu AutoIncrement Phase Liveness deviceIterations gradientAccumulation
replicationFactor SGD Adam AdamW RMSprop LAMB loss_scaling velocity_scaling setOptimizer setAutomaticLossScaling
accum_type first_order_momentum_accum_type second_order_momentum_accum_type markAsConstant markAsVariable
variable_attrs state_dict load_state_dict ctc_beam_search_decoder ipu_print_tensor identity_loss MultiConv
MultiConvPlanType nop serializedMatMul set_available_memory ipuHardwareIsAvailable ipuHardwareVersion setLogLevel half
halfFloatCasting HalfFloatCastingBehavior HalfUpcastToFloat autocast autocastEnabled autocastPolicy Policy fp16 fp32
promote demote register_buffer copyWeightsToHost copyWeightsToDevice broadcastBuffers custom_op example_outputs
attributes enableExecutableCaching useOfflineIpuTarget compileAndExport export_model load edit_opts_fn loadExecutable
POPTORCH_LOG_LEVEL DEBUG OFF POPLAR_ENGINE_OPTIONS PVTI_OPTIONS Channel POPTORCH_IPU_MODEL POPTORCH_WAIT_FOR_IPU
POPTORCH_CACHE_DIR
"""


@pytest.fixture(autouse=True)
def _place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each program a directory, and IPUs that no other test holds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture(autouse=True)
def _custom_operators() -> Iterator[None]:
    """Register the operators of a compiled library."""
    registered = {"Cube": cube, "LeakyRelu": leaky_relu, "Attributes": count_attributes}
    for name, function in registered.items():
        emulator.register_custom_op(name, "custom.ops")(function)
    yield
    for name in registered:
        emulator.unregister_custom_op(name, "custom.ops")


def cube(x: torch.Tensor, bias: torch.Tensor) -> Any:
    return x**3, x**3 + bias


def leaky_relu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.nn.functional.leaky_relu(x, alpha)


def count_attributes(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    return torch.full_like(x, float(len(attributes)))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.stem, marks=needs_half_precision if program.stem in IN_HALF_PRECISION else ())
        for program in PROGRAMS
    ],
)
def test_a_program_runs_and_finds_what_it_claims(
    program: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that one of them starts are forked, so that they need not import torch."""
    monkeypatch.setattr(subprocess, "run", processes.run_command)
    emulator.run_script(str(program))


def test_the_command_runs_programs_too(processes: Processes) -> None:
    program = Path(__file__).parent / "programs" / "buffers.py"
    processes.run(["-m", "ignite_ipu", "run", program], check=True)


def test_programs_know_nothing_of_the_emulator() -> None:
    assert PROGRAMS
    assert [program.name for program in PROGRAMS if "ignite_ipu" in program.read_text(encoding="utf-8")] == []


def test_all_that_the_guide_speaks_of_is_used() -> None:
    used: Set[str] = set()
    for program in PROGRAMS:
        text = program.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                used.add(token.string)
            elif token.type == tokenize.STRING:
                used.update(re.findall(r"\w+", token.string))
    assert [name for name in GUIDE.split() if name not in used] == []
