"""Training on veRL: configuration, checks without a GPU, run folder, and the launch (Cobalt, training).

What is added to veRL itself lies in `verl/` at the root. Importing this package imports neither veRL, Ray nor torch.
"""
