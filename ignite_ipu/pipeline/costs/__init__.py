"""Costs of a stage on a machine: memory, time and the schedule of its pipeline. Pure arithmetic."""
