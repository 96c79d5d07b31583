"""Source files and notebooks: found, read, written."""
