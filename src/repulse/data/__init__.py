"""Readers of data sets in their publishers' own layouts, from a folder of the user's."""
