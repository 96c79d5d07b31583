"""PopTorch's own operators, and the marks that a model's code puts on operators: the names of `poptorch.ops`."""

from __future__ import annotations

from ignite_ipu.emulator.ops.control_flow import cond, for_loop
from ignite_ipu.emulator.ops.ctc import ctc_beam_search_decoder
from ignite_ipu.emulator.ops.custom import CPU, attributes_lists, custom_op, register_custom_op, unregister_custom_op
from ignite_ipu.emulator.ops.identity import (
    identity_loss,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from ignite_ipu.emulator.ops.multi_conv import MultiConv
from ignite_ipu.emulator.ops.neighbours import fps, nearest
from ignite_ipu.emulator.ops.printing import ipu_print_tensor
from ignite_ipu.emulator.ops.slicing import dynamic_slice, dynamic_update
from ignite_ipu.emulator.trace.annotations import (
    Attribute,
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    NameScope,
    removeBlocks,
)

__all__ = [
    "CPU",
    "Attribute",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "LegacyBeginBlockFn",
    "MultiConv",
    "NameScope",
    "attributes_lists",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "identity_loss",
    "ipu_print_tensor",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "register_custom_op",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "unregister_custom_op",
]
