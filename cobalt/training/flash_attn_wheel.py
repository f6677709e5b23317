"""Check a wheel of flash-attn before set-up downloads everything else: `python -m cobalt.training.flash_attn_wheel`.

    python -m cobalt.training.flash_attn_wheel SOURCE LOCK FOLDER     (SOURCE: a file or an address, and #sha256=DIGEST)

It prints the path of the checked wheel: the file itself, or what it has downloaded into FOLDER. If SOURCE is a list
(`requirements/flash-attn.txt`), its one line is taken, which must have a digest. `scripts/setup.sh` calls this before
there is an environment, so that it needs Python alone. Whether the wheel's kernels load is seen only when they are
imported.
"""

import hashlib
import os
import platform
import re
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from cobalt.stage.errors import UserError

_PYTHON = "cp311"
_ANSWER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Needs:
    """What a wheel must be built for.

    Attributes:
        torch: The first two parts of the version of torch.
        cuda: The first part of the version of CUDA.
    """

    torch: str
    cuda: str


def needs_of(lock: Path) -> Needs:
    """The versions that a lock has.

    Raises:
        UserError: it lacks torch or CUDA.
    """
    found = dict(re.findall(r"^(torch|cuda-toolkit)==(\d+\.\d+)", lock.read_text(encoding="utf-8"), re.MULTILINE))
    if len(found) != 2:
        raise UserError(f"{lock} has no torch or no cuda-toolkit: flash-attn is for the profile gpu")
    return Needs(found["torch"], found["cuda-toolkit"].partition(".")[0])


def listed(path: Path) -> str:
    """The wheel that a list names.

    Raises:
        UserError: it names none or several, or no digest.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    named = [line for line in lines if line and not line.startswith("#")]
    if len(named) != 1 or "#sha256=" not in named[0]:
        raise UserError(f"{path} names no wheel with a digest (#sha256=)")
    return named[0]


def check_name(name: str, needs: Needs) -> None:
    """Check what the name of a wheel says about Python, torch, CUDA and the machine.

    Raises:
        UserError: it is another package's, or does not fit.
    """
    parts = name.removesuffix(".whl").split("-")
    if not name.endswith(".whl") or len(parts) not in (5, 6) or parts[0].lower() != "flash_attn":
        raise UserError(f"{name} is not a wheel of flash-attn (flash_attn-VERSION-...whl)")
    version, (python, abi, systems) = parts[1], parts[-3:]
    if not version.startswith("2."):
        raise UserError(f"{name} is flash-attn {version}: veRL takes version 2")
    if _PYTHON not in python.split(".") or _PYTHON not in abi.split("."):
        raise UserError(f"{name} is for {python}-{abi}, and this project needs {_PYTHON}-{_PYTHON}")
    if not any(_runs_here(system) for system in systems.split(".")):
        raise UserError(f"{name} is for {systems}, and this machine is {platform.machine()} with {_libc()}")
    built = re.search(r"cu(\d\d)\d*torch(\d+\.\d+)", version)
    if built is not None and built.groups() != (needs.cuda, needs.torch):
        raise UserError(
            f"{name} is for CUDA {built[1]} and torch {built[2]}, and the lock has CUDA {needs.cuda} and torch"
            f" {needs.torch}"
        )
    if "cxx11abiFALSE" in version:
        raise UserError(f"{name} is for builds of torch with the old C++ interface: take one with cxx11abiTRUE")


def _runs_here(system: str) -> bool:
    found = re.fullmatch(r"(?:linux|manylinux_(\d+)_(\d+)|manylinux(?:1|2010|2014))_(\w+)", system)
    if found is None or found[3] != platform.machine():
        return False
    here = re.search(r"(\d+)\.(\d+)", _libc())
    return found[1] is None or here is None or tuple(map(int, here.groups())) >= (int(found[1]), int(found[2]))


def _libc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION") or "another C library than glibc"


def fetch(source: str, folder: Path) -> Path:
    """The wheel as a file: itself, or downloaded into the folder under its own name.

    Raises:
        UserError: it cannot be read.
    """
    if "://" not in source:
        path = Path(source)
        if not path.is_file():
            raise UserError(f"{source} is not a file")
        return path
    path = folder / _name(source)
    try:
        with urllib.request.urlopen(source, timeout=_ANSWER_SECONDS) as answer, path.open("wb") as handle:
            shutil.copyfileobj(answer, handle)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise UserError(f"{source} cannot be downloaded ({reason})") from None
    return path


def _name(source: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(source).path).rpartition("/")[2] if "://" in source else source


def check_content(path: Path, digest: str | None) -> None:
    """Check that a file is the wheel that was meant.

    Args:
        path: The file.
        digest: Its SHA-256 in hexadecimal; None: not known.

    Raises:
        UserError: the digest differs, or it is no wheel of flash-attn.
    """
    try:
        with path.open("rb") as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    if digest is not None and found != digest.lower():
        raise UserError(f"{path.name} has the SHA-256 {found}, not {digest}: it is another file than the one meant")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            heads = [name for name in archive.namelist() if re.fullmatch(r"flash_attn-[^/]*\.dist-info/METADATA", name)]
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path.name} is not a whole wheel ({error})") from None
    if broken is not None or not heads:
        raise UserError(f"{path.name} is not a whole wheel of flash-attn")


def checked(source: str, lock: Path, folder: Path) -> Path:
    """The wheel as a file, once everything about it is checked that needs no import.

    Args:
        source: A file or an address, with `#sha256=DIGEST` where it is known; or a list that names one.
        lock: The lock of the profile gpu.
        folder: Where a download goes.

    Raises:
        UserError: it cannot be read, or is not a wheel that fits.
    """
    if source.endswith(".txt"):
        source = listed(Path(source))
    source, _, digest = source.partition("#sha256=")
    check_name(_name(source).rpartition("/")[2], needs_of(lock))
    path = fetch(source, folder)
    check_content(path, digest or None)
    return path


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{checked(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))}\n")
    except UserError as fault:
        sys.stderr.write(f"{fault}\n")
        sys.exit(2)
