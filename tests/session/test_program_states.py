"""A program is in one state at a time, in which there is nothing that does not exist yet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ignite_ipu import SessionError, backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.program_states import Asked, SetAside, Wrapped

poptorch = backend.poptorch()
BATCH = torch.ones(2, 3), torch.zeros(2, 1)


def trainer_for(model: nn.Module) -> Any:
    return create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())


def test_a_program_is_asked_for_then_compiled_and_asked_for_again_after_a_release():
    trainer = trainer_for(nn.Linear(3, 1))
    program = trainer.ipu.training
    assert type(program.state) is Asked and program.compiled is None and program.geometry is None
    trainer.run([BATCH])
    assert type(program.state) is CompiledProgram and program.compiled is program.state and program.ready
    assert program.geometry.micro_batch_size == 2
    trainer.ipu.detach()
    assert program.compiled is program.state and not program.ready
    trainer.ipu.release()
    assert type(program.state) is Asked and program.executor is None
    assert program.geometry.micro_batch_size == 2
    trainer.ipu.close()


def test_a_refused_compilation_leaves_a_wrapped_program_which_the_next_batch_compiles(monkeypatch):
    """PopTorch does not undo a wrapping."""
    trainer, seen = trainer_for(nn.Linear(3, 1)), []
    program = trainer.ipu.training

    def refuses(executor, *args, **kwargs):
        seen.append(program.state)
        raise poptorch.UnrecoverableError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(poptorch.PoplarExecutor, "compile", refuses)
        with pytest.raises(poptorch.UnrecoverableError):
            trainer.ipu.train(*BATCH)
    assert seen == [program.state] and type(program.state) is Wrapped
    executor = program.executor
    assert executor is not None and program.compiled is None
    with pytest.raises(SessionError, match="no compiled program to export"):
        program.state.export("nowhere")
    trainer.ipu.train(*BATCH)
    assert program.compiled is program.state and program.executor is executor
    trainer.ipu.close()


def test_a_program_that_a_check_refuses_is_destroyed():
    """Nothing of it can be called by the next batch."""

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            y = y + 1 if float(self.calls) > 3 else y
            self.calls.add_(1)
            return y

    trainer = trainer_for(Reads())
    with pytest.raises(SessionError, match=r"needs the value of a tensor, .* \(of the buffer"):
        trainer.ipu.train(*BATCH)
    assert type(trainer.ipu.training.state) is Asked
    trainer.ipu.close()


def test_a_program_for_other_shapes_sets_the_one_before_aside():
    trainer = trainer_for(nn.Linear(3, 1))
    first = trainer.ipu.training
    trainer.ipu.train(*BATCH)
    compiled = first.state
    trainer.ipu.train(torch.ones(4, 3), torch.zeros(4, 1))
    assert type(first.state) is SetAside and first.compiled is compiled and not first.ready
    trainer.ipu.train(*BATCH)
    assert trainer.ipu.training is first and first.state is compiled and first.ready
    trainer.ipu.close()


def test_an_evaluation_program_has_its_state_too():
    evaluator = create_ipu_evaluator(nn.Linear(3, 1))
    evaluator.run([BATCH])
    (program,) = evaluator.ipu.evaluations
    assert type(program.state) is CompiledProgram and not program.kind.training
    evaluator.ipu.close()
