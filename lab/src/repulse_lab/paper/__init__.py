"""Experiments: one table or figure per file; the claims of the paper, and the numbers it prints."""
