"""Recorded operations, signatures of calls, and the step's graph.

The lowest room of captured loops: it knows their models and loops by the protocols of `owners` alone. Start reading
with `operations`, then `step_graph`.
"""
