"""The same formulas by hand, without autograd and in place; skip on first reading."""
