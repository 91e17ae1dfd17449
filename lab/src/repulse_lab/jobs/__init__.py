"""Pieces of work that are done once and kept, by one process or by many."""
