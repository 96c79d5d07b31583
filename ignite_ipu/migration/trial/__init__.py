"""Findings that only a trace shows: the given model is compiled on the emulator, and watched while that happens."""
