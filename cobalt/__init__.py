"""Cobalt: contextual-bandit learning with offline trajectories for multi-turn code generation.

The library behind the scripts in the repository's root. Importing this package does nothing; import the
module you need. Rooms import only from floors below their own (see `docs/architecture.md`).
"""
