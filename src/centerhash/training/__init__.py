"""Training: from a data set and a configuration to a model, in one process or many, resumable."""
