"""Names, calls and models of a source file."""
