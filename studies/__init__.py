"""Studies: a plan of named steps, each one command of this project, that can be listed, stopped and resumed.

`plan` says what a study is and runs it, `flags` has the flags of its command, and `lines` makes steps of command lines.
Each other module states one study and is its command, such as `python -m studies.quickstart` in a checkout, or makes
tables. Nothing here computes a result that the library also
computes, and the library imports nothing of it.
"""

import cobalt  # noqa: F401  # so that these commands, too, end in one sentence at a missing package and at Ctrl-C
