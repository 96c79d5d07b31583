"""One observed forward: its calls, and whether they compile."""
