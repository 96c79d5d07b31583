"""What names, calls and models of a source file are."""
