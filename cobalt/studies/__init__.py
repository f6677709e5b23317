"""Studies: a plan of named steps, each one command of this project, that can be listed, stopped and resumed.

`plan` says what a study is and which of its steps are done, `run` runs it, `flags` has the flags of its command, and
`pocket` the steps that studies on the pocket world share. Each other module states one study and is its command, such
as `python -m cobalt.studies.quickstart`. Nothing here computes a result: the commands do.
"""
