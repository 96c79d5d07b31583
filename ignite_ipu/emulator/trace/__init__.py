"""One observed forward: what it calls, and whether that compiles."""
