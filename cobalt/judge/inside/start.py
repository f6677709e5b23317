"""The script that a sandbox's first Python runs: the zygote, and in its forked children the program.

Programs are executed here, in a script's outermost frame, so that they have the depth of recursion that they
have when Python runs them.
"""

# pathlib would be loaded into every program's process.
# ruff: noqa: PTH100, PTH120

import os
import sys

if __name__ == "__main__":
    # Not the folder itself: its modules must not become importable to programs under their bare names.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from sys import setprofile, settrace

    from inside import program, zygote  # type: ignore[import-not-found]

    del sys.path[0]

    codes, namespace = zygote.serve(sys.argv)
    uncaught = None
    try:
        for code in codes:
            exec(code, namespace)
    except BaseException as error:  # noqa: BLE001 - this is the interpreter's outermost frame
        uncaught = error
    finally:  # what follows is not the program
        settrace(None)
        setprofile(None)
    status = 0 if uncaught is None else program.report(uncaught)
    del namespace, uncaught  # the last holds on the program's objects but `__main__`
    program.leave(status)
