"""Results of a reproduction for people: figures, and one self-contained page."""
