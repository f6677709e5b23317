"""Turn judged programs into groups for offline training: flags in, one call of `cobalt.datasets.offline.judged`."""

from rich.console import Console

from cobalt.cli import run_script
from cobalt.datasets.offline.settings import JudgedSettings


def main(settings: JudgedSettings) -> int:
    """Run, and return the exit code."""
    from cobalt.datasets.offline.judged import convert_judged
    from cobalt.report.summary import summary_table

    summary = convert_judged(settings)
    Console().print(summary_table(summary, title=f"Judged programs: {settings.output_dir}"))
    return 0


if __name__ == "__main__":
    run_script(JudgedSettings, main)
