"""Particles: heads that are fitted together and repel each other.

Read in this order: heads, tasks, kernels, rules, forces, scaling, fit, loop. `fast/` has the same formulas by hand.
"""
