"""Experiments: one table or figure a file; the claims of the paper, and the numbers it prints."""
