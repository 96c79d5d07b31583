"""Python values that a compiled program depends on."""
