"""Models larger than one IPU: measured on the host, planned, drawn, and placed without an edit."""

from __future__ import annotations

from .applied import AppliedPlacement
from .comparison import Comparison, compare
from .configure import configure
from .drawing import draw_memory, draw_plan, draw_scaling, draw_schedule
from .errors import PlanError
from .layers import select_layers
from .machine import BOW, MK2, Machine
from .measure import measure
from .memory import StageMemory, Strategy
from .optimizer_state import OptimizerState, optimizer_state
from .partition import Partition, partition_chain
from .placement import Placement, Start, layers_per_ipu
from .plan import Plan, StagePlan
from .plan_file import load_plan, save_plan
from .planner import plan, plan_placement
from .pod import Scaling, scale
from .profile import Crossing, Layer, Profile, SavedTensor, SharedWeight, TensorSize
from .request import Pipeline, PipelineRequest
from .schedule import Schedule, StageTime, in_flight, simulate
from .slots import Slot
from .trace import trace_events, write_trace

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
