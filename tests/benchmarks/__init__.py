"""Benchmarks: ratios measured side by side in one run. `python -m tests.benchmarks` prints them all."""
