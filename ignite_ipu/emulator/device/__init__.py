"""Emulated IPUs: counters, faults, who holds them."""
