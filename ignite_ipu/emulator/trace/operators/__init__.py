"""The table of operators that compile."""
