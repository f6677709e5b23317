"""The setting `paper_guard`: remove from programs the names that the authors' judge removes; loaded only with it.

The authors' judge writes a guard before each program, so that some correct programs fail: those that call `exit()`,
import `resource` or begin with `from __future__`. This module removes the same names (`verl/remote_reward_server.py` in
the authors' repository) in a test's own process, so that the program's lines keep their numbers. A program can undo
either guard. This one gives the paper's verdicts and is not a part of the isolation.
"""

from __future__ import annotations

import builtins
import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

_BUILTINS = ("exit", "quit")
_OS = (
    "kill", "system", "putenv", "remove", "removedirs", "rmdir", "fchdir", "setuid", "fork", "forkpty", "killpg",
    "rename", "renames", "truncate", "replace", "unlink", "fchmod", "fchown", "chmod", "chown", "chroot", "lchflags",
    "lchmod", "lchown", "getcwd", "chdir",
)  # fmt: skip
_SHUTIL = ("rmtree", "move", "chown")
_MODULES = ("ipdb", "joblib", "resource", "psutil", "tkinter")

_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without loading `ast`
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# The program's folder in this judge. In the authors' judge the folder is another one, and /tmp is read-only.
_FOLDER = "/tmp"


def compile_after_guard(text: str, file_name: str) -> types.CodeType:
    """Compile a program as if it stood after a guard in one file.

    An import from `__future__` comes too late, a docstring is a plain string, and a byte-order mark is not a part of a
    program.
    """
    code = compile(text, file_name, "exec", dont_inherit=True)
    if "__future__" not in text and "__doc__" not in text:
        return code
    tree: Any = compile(text, file_name, "exec", _ONLY_AST, dont_inherit=True)
    for statement in tree.body:
        if type(statement).__name__ == "ImportFrom" and statement.module == "__future__" and not statement.level:
            line = text.splitlines()[statement.lineno - 1]
            position = (file_name, statement.lineno, statement.col_offset + 1, line)
            raise SyntaxError("from __future__ imports must occur at the beginning of the file", position)
    first: Any = tree.body[0] if tree.body else None
    if type(first).__name__ == "Expr" and isinstance(getattr(first.value, "value", None), str):
        del tree.body[0]
    return compile(tree, file_name, "exec", dont_inherit=True)


def apply() -> None:
    """Remove the names in this process, for good."""
    for name in _BUILTINS:
        setattr(builtins, name, None)
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in _OS:
        setattr(os, name, None)
    import shutil
    import subprocess

    for name in _SHUTIL:
        setattr(shutil, name, None)
    subprocess.Popen = None  # type: ignore[assignment,misc]
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    sys.addaudithook(_refuse_writing)


def _refuse_writing(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to write to absolute paths below /tmp; paths relative to the program's folder are allowed."""
    if (event == "open" and arguments[2] & _WRITING) or event == "os.mkdir":
        path = arguments[0]
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str) and path.startswith("/"):
            path = os.path.normpath(path)
            if path == _FOLDER or path.startswith(_FOLDER + "/"):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), arguments[0])


def hide_itself(trace: Any) -> None:
    """Remove this file's frame from a traceback, so that the error shows the program's frames only."""
    while trace is not None:
        if trace.tb_next is not None and trace.tb_next.tb_frame.f_code is _refuse_writing.__code__:
            trace.tb_next = trace.tb_next.tb_next
        trace = trace.tb_next
