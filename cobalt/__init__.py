"""Cobalt: contextual-bandit learning with offline trajectories for multi-turn code generation.

The library that the scripts in the repository's root call. Importing this package imports none of its modules; import
the module that you need. Packages import only from lower layers (see `docs/architecture.md`). A process that
`python -m cobalt.X` started ends in one sentence at a missing package and at Ctrl-C (`cobalt.entry`).
"""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m cobalt.X` is about to import X, which may lack the packages that it imports
    from cobalt.entry import end_in_one_sentence

    end_in_one_sentence()
