"""Work of `cobalt`'s commands and the paper's scripts besides their stage: services, tables, one run of all steps.

`registry` lists the commands of `cobalt`, and `main` runs them. The library below does not import this package.
"""
