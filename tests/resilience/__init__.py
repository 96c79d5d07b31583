"""Breaking things on purpose: `python -m tests.resilience` does it in full, the test suite does a sample."""
