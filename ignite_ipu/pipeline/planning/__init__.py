"""Stages and settings chosen for a measured model, compared, drawn and kept in files."""
