"""Tables, plots and a trajectory viewer, made from evaluated records."""
