"""Needs of a resumed run: accumulations, the position in the data, deterministic engines."""
