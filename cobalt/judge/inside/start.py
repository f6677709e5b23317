"""The script that a sandbox's first Python process runs: the zygote and, in its forked children, the program.

Programs are executed here, in a script's outermost frame, so that they have the same recursion depth as when
Python runs them directly.
"""

# pathlib would be loaded into every program's process.
# ruff: noqa: PTH100, PTH120

import os
import sys

if __name__ == "__main__":
    # Not the folder itself: its modules must not become importable to programs under their bare names.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from inside import nesting  # type: ignore[import-not-found]

    if nesting.FIRST_TIME in sys.argv:
        nesting.start_again(sys.argv)

    from sys import setprofile, settrace

    from inside import program, zygote

    del sys.path[0]

    codes, namespace = zygote.serve(sys.argv)
    uncaught = None
    try:
        for code in codes:
            exec(code, namespace)
    except BaseException as error:  # noqa: BLE001 - this is the interpreter's outermost frame
        uncaught = error
    finally:  # the program's code ends here
        settrace(None)
        setprofile(None)
    status = 0 if uncaught is None else program.report(uncaught)
    del namespace, uncaught  # the last references to the program's objects except `__main__`
    program.leave(status)
