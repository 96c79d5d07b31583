"""A model measured on the host: its layers, their work and the tensors between them."""
