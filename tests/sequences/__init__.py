"""Random sequences of the events of a training loop, played eagerly and captured, and compared."""
