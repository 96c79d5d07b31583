"""Layers put on IPUs by hooks, and the requests to an engine."""
