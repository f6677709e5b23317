"""What the commands of `cobalt` and the paper's scripts do besides their stage: services, tables, one run of all steps.

`registry` lists the commands of `cobalt`, and `main` runs them. The library below does not import this package.
"""
