"""Training steps as they are read from source."""
