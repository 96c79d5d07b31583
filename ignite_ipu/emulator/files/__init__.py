"""Executables in files: containers, cache, trust."""
