"""Edits of source text that leave the rest byte for byte."""
