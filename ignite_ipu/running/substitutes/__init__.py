"""Substitutes for CUDA, engines and loops of a running script: one module for each thing."""
