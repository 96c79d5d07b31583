"""A model measured on the host: its layers, what they compute and what crosses between them."""
