"""Experiments: one problem, table or figure a file."""
