"""The pocket world: a generated family of small problems and a seed model trained from scratch on the spot.

`build_pocket_world` makes both. Importing this package imports neither torch nor transformers.
"""

from cobalt.pocket.world import PocketWorld, build_pocket_world

__all__ = ["PocketWorld", "build_pocket_world"]
