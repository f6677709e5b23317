"""Cobalt: contextual-bandit learning with offline trajectories for multi-turn code generation.

The library behind the scripts in the repository's root. Importing this package does nothing; import the
module you need. No package imports from a layer above its own (see `docs/architecture.md`).
"""
