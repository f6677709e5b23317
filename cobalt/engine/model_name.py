"""The name of a model in requests, logs and reports: that of its folder or Hub entry, and a short digest.

Every exported policy lies in a folder called `model`, and a run can be repeated into the same folder. The name of the
run's folder and the digest tell such policies apart. Neither Ray nor vLLM is imported.
"""

import hashlib
import os
from pathlib import Path

from cobalt.engine.model_check import cached_config, model_path

_PIECE = 8 * 2**20


def model_name(model: str) -> str:
    """A name such as `smollm2-6ad22c84` for a model folder or a hub name.

    A folder called `model` has the name of the folder around it. The digest of a folder is the start of its
    `fingerprint`. That of a hub name is the start of the commit that this machine's cache has; without one, the name
    has no digest.
    """
    path = model_path(model)
    if path is None:
        config = cached_config(model)
        return with_digest(model.rpartition("/")[2], "" if config is None else config.parent.name)
    folder = Path(os.path.abspath(path))  # noqa: PTH100 (links are not followed: the user chose the link's name)
    named = folder.parent if folder.name == "model" and folder.parent.name else folder
    return with_digest(named.name, fingerprint(folder))


def with_digest(name: str, digest: str) -> str:
    """A name with the first eight digits of a digest at its end, unless it has them or the digest is ""."""
    short = digest[:8]
    return name if name.endswith(short) else f"{name}-{short}"


def fingerprint(folder: Path) -> str:
    """A digest of configuration and weights; only both ends of each file are read, because weights are large."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors", ".jinja") and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as handle:
                digest.update(handle.read(_PIECE))
                handle.seek(max(0, size - _PIECE))
                digest.update(handle.read(_PIECE))
    return digest.hexdigest()[:16]
