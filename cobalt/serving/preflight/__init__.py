"""A check of every node of a Ray cluster before a run: `python -m cobalt.preflight`.

`probe` says what one node is like and runs on that node. `survey` asks all nodes. `rules` decides what would stop a
run, and `table` shows one row for each node. Nothing here starts a cluster or a service.
"""
