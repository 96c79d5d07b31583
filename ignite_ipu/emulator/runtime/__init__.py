"""A compiled program on its device."""
