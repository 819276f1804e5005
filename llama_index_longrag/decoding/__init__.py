"""Answers that quote the corpus while they are written (RICHES)."""
