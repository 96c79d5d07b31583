"""Stages and settings chosen for a measured model, compared, drawn and kept in files."""

from __future__ import annotations
