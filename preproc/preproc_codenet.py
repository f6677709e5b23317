"""Turn Project CodeNet into groups for offline training: flags in, one call of `cobalt.datasets.codenet`."""

from rich.console import Console

from cobalt.cli import run_script
from cobalt.datasets.offline.settings import CodeNetSettings


def main(settings: CodeNetSettings) -> int:
    """Run, and return the exit code."""
    from cobalt.datasets.codenet import preprocess_codenet
    from cobalt.report.summary import summary_table

    summary = preprocess_codenet(settings)
    Console().print(summary_table(summary, title=f"CodeNet: {settings.output_dir}"))
    return 0


if __name__ == "__main__":
    run_script(CodeNetSettings, main)
