"""The ways of other libraries: a leaf module for each, with an extra of its own, imported by those who use it."""
