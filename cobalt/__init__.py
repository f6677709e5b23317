"""Cobalt: contextual-bandit learning with offline trajectories for multi-turn code generation.

The library that the scripts in the repository's root call. Importing this package does nothing; import the
module that you need. Packages import only from lower layers (see `docs/architecture.md`).
"""
