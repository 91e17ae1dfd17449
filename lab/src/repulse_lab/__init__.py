"""The laboratory of repulse: data sets, networks, experiments, the paper's tables, and what everything costs."""
