"""Turn judged programs into groups for offline training: the flags and the work of `preproc/preproc_judged.py`."""

from rich.console import Console

from cobalt.datasets.offline.settings import JudgedSettings as Arguments


def main(settings: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import quoted, say
    from cobalt.datasets.offline.judged import convert_judged
    from cobalt.report.summary import summary_table

    summary = convert_judged(settings)
    Console().print(summary_table(summary, title=f"Judged programs: {settings.output_dir}"))
    say(
        str(settings.output_dir),
        f"scripts/train_offline_rl.sh --data_dir {quoted(settings.output_dir)} --model MODEL -o RUN",
    )
    return 0
