"""From a trace to a graph with its placement."""
