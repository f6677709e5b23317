"""Check that kernels for GPUs can be compiled: `python -m cobalt.training.gpu_compiler` says what lacks.

Triton, which vLLM and torch use on GPUs, compiles a small C extension of Python for each kernel, when the kernel is
first called and on the machine that calls it. It takes the compiler that CC names, else gcc, else clang. A CUDA toolkit
is not needed.
"""

import os
import shutil
import subprocess
import sys
import sysconfig


def missing() -> str:
    """What this machine lacks, as one sentence that names the packages to install; "": nothing."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "gcc"
    headers = sysconfig.get_path("include")
    command = [compiler, "-fsyntax-only", "-I", headers, "-x", "c", "-"]
    source = "#include <Python.h>\n"
    try:
        tried = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        if tried.returncode == 0:
            return ""
        reason = next((line.strip() for line in tried.stderr.splitlines() if "error" in line), "no reason given")
    return (
        f"{compiler} cannot compile with Python.h in {headers}, which kernels for GPUs need at run time: install a C"
        " compiler and Python's headers (Debian: apt-get install gcc libc6-dev python3.11-dev; Red Hat: dnf install gcc"
        f" python3.11-devel) ({reason})"
    )


if __name__ == "__main__":
    sentence = missing()
    if sentence:
        sys.stderr.write(f"{sentence}\n")
        sys.exit(2)
