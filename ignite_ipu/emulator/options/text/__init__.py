"""Options as text: configuration files and JSON."""
