"""What a resumed run needs: accumulations, the position in the data, deterministic engines."""
