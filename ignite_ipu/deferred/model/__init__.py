"""The captured model and its optimizer."""
