"""What each command does: one module for each script of the paper, with the same name, and the commands of `cobalt`.

A module has the dataclass `Arguments` (its flags) and `main` (the work; returns the exit code). `registry` lists the
commands of `cobalt`, and `main` runs them. The library below does not import this package.
"""
