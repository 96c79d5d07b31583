"""Models larger than one IPU: measured on the host, planned, drawn, and placed without an edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignite_ipu.exports import exports

if TYPE_CHECKING:
    from ignite_ipu.errors import PlanError as PlanError
    from ignite_ipu.pipeline.costs.machine import BOW as BOW
    from ignite_ipu.pipeline.costs.machine import MK2 as MK2
    from ignite_ipu.pipeline.costs.machine import Machine as Machine
    from ignite_ipu.pipeline.costs.partition import Partition as Partition
    from ignite_ipu.pipeline.costs.partition import partition_chain as partition_chain
    from ignite_ipu.pipeline.costs.schedule import Schedule as Schedule
    from ignite_ipu.pipeline.costs.schedule import Slot as Slot
    from ignite_ipu.pipeline.costs.schedule import StageTime as StageTime
    from ignite_ipu.pipeline.costs.schedule import in_flight as in_flight
    from ignite_ipu.pipeline.costs.schedule import simulate as simulate
    from ignite_ipu.pipeline.costs.stages import OptimizerState as OptimizerState
    from ignite_ipu.pipeline.costs.stages import StageMemory as StageMemory
    from ignite_ipu.pipeline.costs.stages import Strategy as Strategy
    from ignite_ipu.pipeline.costs.stages import optimizer_state as optimizer_state
    from ignite_ipu.pipeline.placing.applied import AppliedPlacement as AppliedPlacement
    from ignite_ipu.pipeline.placing.applied import Start as Start
    from ignite_ipu.pipeline.placing.placement import Placement as Placement
    from ignite_ipu.pipeline.placing.placement import configure as configure
    from ignite_ipu.pipeline.placing.placement import layers_per_ipu as layers_per_ipu
    from ignite_ipu.pipeline.placing.request import Pipeline as Pipeline
    from ignite_ipu.pipeline.placing.request import PipelineRequest as PipelineRequest
    from ignite_ipu.pipeline.planning.annotating import annotated_source as annotated_source
    from ignite_ipu.pipeline.planning.comparison import Comparison as Comparison
    from ignite_ipu.pipeline.planning.comparison import Scaling as Scaling
    from ignite_ipu.pipeline.planning.comparison import compare as compare
    from ignite_ipu.pipeline.planning.comparison import draw_scaling as draw_scaling
    from ignite_ipu.pipeline.planning.comparison import scale as scale
    from ignite_ipu.pipeline.planning.drawing import draw_schedule as draw_schedule
    from ignite_ipu.pipeline.planning.drawing import trace_events as trace_events
    from ignite_ipu.pipeline.planning.drawing import write_trace as write_trace
    from ignite_ipu.pipeline.planning.plan import Plan as Plan
    from ignite_ipu.pipeline.planning.plan import StagePlan as StagePlan
    from ignite_ipu.pipeline.planning.plan import draw_memory as draw_memory
    from ignite_ipu.pipeline.planning.plan import draw_plan as draw_plan
    from ignite_ipu.pipeline.planning.plan_file import load_plan as load_plan
    from ignite_ipu.pipeline.planning.plan_file import save_plan as save_plan
    from ignite_ipu.pipeline.planning.planner import plan as plan
    from ignite_ipu.pipeline.planning.planner import plan_placement as plan_placement
    from ignite_ipu.pipeline.profiling.layers import select_layers as select_layers
    from ignite_ipu.pipeline.profiling.measure import measure as measure
    from ignite_ipu.pipeline.profiling.profile import Crossing as Crossing
    from ignite_ipu.pipeline.profiling.profile import Layer as Layer
    from ignite_ipu.pipeline.profiling.profile import Profile as Profile
    from ignite_ipu.pipeline.profiling.profile import SavedTensor as SavedTensor
    from ignite_ipu.pipeline.profiling.profile import SharedWeight as SharedWeight
    from ignite_ipu.pipeline.profiling.profile import TensorSize as TensorSize

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        ".errors": "PlanError",
        "costs.machine": "BOW MK2 Machine",
        "costs.partition": "Partition partition_chain",
        "costs.schedule": "Schedule Slot StageTime in_flight simulate",
        "costs.stages": "OptimizerState StageMemory Strategy optimizer_state",
        "placing.applied": "AppliedPlacement Start",
        "placing.placement": "Placement configure layers_per_ipu",
        "placing.request": "Pipeline PipelineRequest",
        "planning.annotating": "annotated_source",
        "planning.comparison": "Comparison Scaling compare draw_scaling scale",
        "planning.drawing": "draw_schedule trace_events write_trace",
        "planning.plan": "Plan StagePlan draw_memory draw_plan",
        "planning.plan_file": "load_plan save_plan",
        "planning.planner": "plan plan_placement",
        "profiling.layers": "select_layers",
        "profiling.measure": "measure",
        "profiling.profile": "Crossing Layer Profile SavedTensor SharedWeight TensorSize",
    },
)
