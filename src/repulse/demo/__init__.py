"""The whole job on scikit-learn's digits: train a small network, retrofit it, see what it does not know."""
