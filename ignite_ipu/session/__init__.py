"""One model, its optimizer, its compiled programs, and who holds the newest weights."""
