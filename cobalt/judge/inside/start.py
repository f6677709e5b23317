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
    from inside import program, zygote  # type: ignore[import-not-found]

    codes, main = zygote.serve(sys.argv)
    status = 0
    try:
        for code in codes:
            exec(code, main.__dict__)
    except SystemExit as error:
        status = program.exit_status(error)
    except BaseException as error:  # noqa: BLE001 - this is the interpreter's outermost frame
        status = 1
        program.report(error)
    program.leave(main, status)
