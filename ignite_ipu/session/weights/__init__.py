"""The places of a model's weights: access, copies, sharing."""
