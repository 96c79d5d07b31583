"""Models larger than one IPU: measured on the host, planned, drawn, and placed without an edit."""

from __future__ import annotations

from ignite_ipu.pipeline.applied import AppliedPlacement
from ignite_ipu.pipeline.comparison import Comparison, compare
from ignite_ipu.pipeline.configure import configure
from ignite_ipu.pipeline.drawing import draw_memory, draw_plan, draw_scaling, draw_schedule
from ignite_ipu.pipeline.errors import PlanError
from ignite_ipu.pipeline.layers import select_layers
from ignite_ipu.pipeline.machine import BOW, MK2, Machine
from ignite_ipu.pipeline.measure import measure
from ignite_ipu.pipeline.memory import StageMemory, Strategy
from ignite_ipu.pipeline.optimizer_state import OptimizerState, optimizer_state
from ignite_ipu.pipeline.partition import Partition, partition_chain
from ignite_ipu.pipeline.placement import Placement, Start, layers_per_ipu
from ignite_ipu.pipeline.plan import Plan, StagePlan
from ignite_ipu.pipeline.plan_file import load_plan, save_plan
from ignite_ipu.pipeline.planner import plan, plan_placement
from ignite_ipu.pipeline.pod import Scaling, scale
from ignite_ipu.pipeline.profile import Crossing, Layer, Profile, SavedTensor, SharedWeight, TensorSize
from ignite_ipu.pipeline.request import Pipeline, PipelineRequest
from ignite_ipu.pipeline.schedule import Schedule, StageTime, in_flight, simulate
from ignite_ipu.pipeline.slots import Slot
from ignite_ipu.pipeline.trace import trace_events, write_trace

__all__ = [
    "BOW",
    "MK2",
    "AppliedPlacement",
    "Comparison",
    "Crossing",
    "Layer",
    "Machine",
    "OptimizerState",
    "Partition",
    "Pipeline",
    "PipelineRequest",
    "Placement",
    "Plan",
    "PlanError",
    "Profile",
    "SavedTensor",
    "Scaling",
    "Schedule",
    "SharedWeight",
    "Slot",
    "StageMemory",
    "StagePlan",
    "StageTime",
    "Start",
    "Strategy",
    "TensorSize",
    "compare",
    "configure",
    "draw_memory",
    "draw_plan",
    "draw_scaling",
    "draw_schedule",
    "in_flight",
    "layers_per_ipu",
    "load_plan",
    "measure",
    "optimizer_state",
    "partition_chain",
    "plan",
    "plan_placement",
    "save_plan",
    "scale",
    "select_layers",
    "simulate",
    "trace_events",
    "write_trace",
]
