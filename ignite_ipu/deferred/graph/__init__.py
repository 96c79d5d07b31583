"""Recorded operations, signatures of calls, and the step's graph."""
