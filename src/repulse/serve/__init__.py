"""A small HTTP service around an ensemble: predictions with their doubt, health, metrics, and a page to try it on."""
