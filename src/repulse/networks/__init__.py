"""Networks of the paper and of the published weights that the experiments use."""
