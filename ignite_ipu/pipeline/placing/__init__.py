"""Layers put on IPUs by hooks, and what an engine is asked for."""
