"""The isolation of a sandbox: its bubblewrap command line, and whether this machine can build a sandbox.

A sandbox sees the system libraries and one Python installation, read-only, and nothing else of the host. It has its own
user, PID, IPC, UTS and network namespaces and an empty environment. Limits are set inside the sandbox (see `zygote`).
"""

import os
import re
import shutil
from pathlib import Path

from cobalt.judge.inside.syscall_filter import ARCHITECTURES
from cobalt.judge.inside.zygote import FOLDER, MODULES, STREAMS
from cobalt.judge.settings import JudgeSettings
from cobalt.stage.errors import UserError

INSIDE = Path(__file__).parents[1] / "inside"
START = f"{MODULES}/start.py"
PYTHON_HOME = "/python"
PACKAGES = "/packages"

NO_NAMESPACES = (
    "bubblewrap cannot create user namespaces here, and programs are not run without isolation: as root, set "
    "`sysctl -w user.max_user_namespaces=15000` and, where these exist, `kernel.unprivileged_userns_clone=1` and "
    "`kernel.apparmor_restrict_unprivileged_userns=0`; in a container, start it with "
    "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined` "
    "(docs/cluster.md)"
)

# The hash seed is fixed, so that the order of a set of strings, and with it a verdict, is the same every time.
ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "LD_BIND_NOW": "1",  # symbols are resolved once, not again in every test's copy of the interpreter
}

# Folders of shared libraries. Distributions differ in which of them are links.
_LIBRARY_FOLDERS = ("/lib", "/lib32", "/lib64")
_USR_FOLDERS = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo")
_DEVICES = ("null", "zero", "full", "random", "urandom")


def find_bwrap() -> str:
    """The path of bubblewrap; raises UserError if it is not installed."""
    path = shutil.which("bwrap")
    if path is None:
        raise UserError(
            "bubblewrap is not installed, and programs are not run without isolation: "
            "install it (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)"
        )
    return path


def check_paths(settings: JudgeSettings) -> None:
    """Check that the paths in the settings exist.

    Raises:
        UserError: `python` is not an executable file or has no standard library, or `site_packages` is not a folder.
    """
    if not os.access(settings.interpreter, os.X_OK) or settings.interpreter.is_dir():
        raise UserError(f"setting 'python': {settings.python} is not a Python interpreter: give the path of one")
    _python_mounts(settings.interpreter)
    if settings.site_packages is not None and not settings.site_packages.is_dir():
        raise UserError(f"setting 'site_packages': the folder {settings.site_packages} does not exist")


def interpreter_inside(settings: JudgeSettings) -> str:
    """The interpreter's path as seen inside a sandbox."""
    interpreter = settings.interpreter
    if interpreter.is_relative_to("/usr/bin"):
        return str(interpreter)
    return f"{PYTHON_HOME}/bin/{interpreter.name}"


def bwrap_command(settings: JudgeSettings) -> list[str]:
    """The command that builds a sandbox with `INSIDE` mounted in it; the caller appends what to run there.

    Raises:
        UserError: bubblewrap is not installed, or there is no system call filter for this architecture.
    """
    if os.uname().machine not in ARCHITECTURES:
        raise UserError(
            f"programs cannot be isolated on {os.uname().machine}: there is a system call filter for "
            f"{' and '.join(ARCHITECTURES)} only"
        )
    command = [
        find_bwrap(),
        "--unshare-all",
        "--unshare-user",
        *("--uid", "0", "--gid", "0"),
        *("--cap-add", "ALL"),
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        *("--hostname", "sandbox"),
        *(part for name, value in ENVIRONMENT.items() for part in ("--setenv", name, value)),
    ]
    # These folders are made explicitly: those that bubblewrap makes as parents of others are closed to other users,
    # and programs run as another user.
    for folder in ("/usr", "/usr/bin", "/usr/share", "/etc", FOLDER, STREAMS):
        command += ["--perms", "0755", "--dir", folder]
    for folder in _USR_FOLDERS:
        if Path(folder).is_dir():
            command += ["--ro-bind", folder, folder]
    for folder in _LIBRARY_FOLDERS:
        if Path(folder).is_symlink():
            command += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            command += ["--ro-bind", folder, folder]
    if Path("/etc/ld.so.cache").is_file():
        command += ["--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    command += _python_mounts(settings.interpreter)
    for packages in sorted(path for parent in _USR_FOLDERS for path in Path(parent).glob("python3*/*-packages")):
        command += _empty(str(packages))
    if settings.site_packages is not None:
        command += ["--ro-bind", str(settings.site_packages.resolve()), PACKAGES]
    # The first process inside keeps open what it needs of /proc, and unmounts it (`nesting`).
    command += ["--ro-bind", str(INSIDE), MODULES, "--proc", "/proc", "--tmpfs", "/dev"]
    for device in _DEVICES:
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for name in ("stdin", "stdout", "stderr"):
        command += ["--symlink", f"{STREAMS}/{name}", f"/dev/{name}"]
    # POSIX semaphores and shared memory go to the private temporary file system of each test.
    command += ["--symlink", FOLDER, "/dev/shm", "--remount-ro", "/dev"]
    command += ["--chdir", "/", "--remount-ro", "/"]
    return command


def _python_mounts(interpreter: Path) -> list[str]:
    """Mount an interpreter, its shared library and its standard library, without packages: its prefix may be a home.

    Raises UserError unless there is one standard library.
    """
    if interpreter.is_relative_to("/usr/bin"):  # its libraries are the system's
        return ["--ro-bind", str(interpreter), str(interpreter)]
    prefix = interpreter.parent.parent
    version = re.match(r"python\d+\.\d+t?", interpreter.name)
    pattern = version[0] if version else "python3*"
    libraries = [path.parent for lib in ("lib", "lib64") for path in prefix.glob(f"{lib}/{pattern}/os.py")]
    if len({path.resolve() for path in libraries}) != 1:
        raise UserError(
            f"setting 'python': {interpreter} has no standard library of its own in {prefix}/lib: give the path of an"
            " installed interpreter, such as /usr/local/bin/python3.11"
        )
    standard = libraries[0]
    lib = f"{PYTHON_HOME}/{standard.parent.name}"
    command = [
        part for name in ("", "/bin", "/lib", "/lib64") for part in ("--perms", "0755", "--dir", PYTHON_HOME + name)
    ]
    command += ["--ro-bind", str(interpreter), f"{PYTHON_HOME}/bin/{interpreter.name}"]
    if (prefix / "conda-meta").is_dir():  # its extension modules need libraries beside the standard library
        command += ["--ro-bind", str(standard.parent), lib]
    else:
        command += ["--ro-bind", str(standard), f"{lib}/{standard.name}"]
        for library in sorted(standard.parent.glob("libpython*")):
            if library.is_file():
                command += ["--ro-bind", str(library.resolve()), f"{lib}/{library.name}"]
    for folder in sorted(standard.glob("*-packages")):
        command += _empty(f"{lib}/{standard.name}/{folder.name}")
    return [*command, "--setenv", "LD_LIBRARY_PATH", lib]


def _empty(folder: str) -> list[str]:
    """Hide a folder."""
    return ["--perms", "0755", "--tmpfs", folder, "--remount-ro", folder]
