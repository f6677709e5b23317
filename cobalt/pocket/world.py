"""Build the pocket world in a folder: problem files and seed model, each made once.

Layout: `data/train.jsonl`, `data/dev.jsonl`, `data/test.jsonl`, with open sentences `data/ceilings.json`, `model/` (a
Hugging Face folder), and for each of the two folders a manifest. A folder is written under a temporary name and renamed
when it is whole; one whose manifest names the same settings is left alone.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cobalt.pocket.ceilings import ceilings
from cobalt.pocket.dataset import SIZES, draw_problems, to_records
from cobalt.pocket.open_sentences import OPEN_SHARE
from cobalt.pocket.problems import Split
from cobalt.pocket.training import Recipe, train_seed_model
from cobalt.stage.atomic import replace_text
from cobalt.stage.errors import system_errors
from cobalt.stage.manifest import open_manifest, recorded_arguments

_log = logging.getLogger(__name__)

VERSION = 2
"""Increased when the same seed gives other data or another model than before, so that old folders are refused."""

OPEN_VERSION = 5
"""The same for worlds with open sentences alone."""


@dataclass(frozen=True, slots=True)
class PocketWorld:
    """The parts of a built world."""

    train: Path
    dev: Path
    test: Path
    model: Path

    @property
    def ceilings(self) -> Path:
        """The ceilings of the splits (`ceilings.ceilings`), where the world has open sentences."""
        return self.dev.with_name("ceilings.json")


def build_pocket_world(
    output_dir: Path,
    seed: int = 0,
    sizes: Mapping[Split, int] | None = None,
    recipe: Recipe | None = None,
    open_share: float = OPEN_SHARE,
    *,
    problems_only: bool = False,
) -> PocketWorld:
    """Make the world of `seed` in `output_dir`, or what is missing of it; the flags of `cobalt.pocket` say more.

    `sizes` are the problems of each split, by default 600, 400 and 100. `recipe` is the size and training of the seed
    model, by default a few minutes' worth on two cores.

    Raises:
        UserError: `output_dir` cannot be written, or holds a world of other settings.
    """
    sizes, recipe = dict(sizes or SIZES), recipe or Recipe()
    data, model = output_dir / "data", output_dir / "model"
    world: dict[str, Any] = {"version": VERSION, "seed": seed}
    if open_share:
        world |= {"open_share": open_share, "open_version": OPEN_VERSION}
    _build(data, {**world, "sizes": sizes}, lambda part: _write_data(part, seed, sizes, open_share))
    if not problems_only:
        made_by = asdict(recipe)
        if not recipe.special_cases:
            del made_by["special_cases"]
        _build(model, {**world, "recipe": made_by}, lambda part: train_seed_model(part, seed, recipe, open_share))
    return PocketWorld(data / "train.jsonl", data / "dev.jsonl", data / "test.jsonl", model)


def _build(folder: Path, arguments: Mapping[str, Any], make: Callable[[Path], None]) -> None:
    """Have `make` fill a temporary folder that then becomes `folder`, unless that exists already."""
    if folder.exists():
        if recorded_arguments(folder) != json.loads(json.dumps(arguments)):
            open_manifest(folder, arguments)  # which refuses a folder of other settings
        _log.info("%s is there already", folder)
        return
    part = folder.with_name(folder.name + ".part")
    with system_errors(f"cannot write {folder}"):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make(part)
        # The manifest is written first: a folder without one would be refused, one without a folder is overwritten.
        open_manifest(folder, arguments)
        part.rename(folder)


def _write_data(folder: Path, seed: int, sizes: Mapping[Split, int], open_share: float) -> None:
    computed = {}
    for split, size in sizes.items():
        problems = draw_problems(split, size, seed, open_share)
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in to_records(split, problems))
        replace_text(folder / f"{split}.jsonl", "".join(lines))
        _log.info("%d %s problems", size, split)
        if open_share:
            computed[split] = ceilings(problems)
    if computed:
        replace_text(folder / "ceilings.json", json.dumps(computed, indent=2) + "\n")
