"""Turn Project CodeNet into groups for offline training: the flags and the work of `preproc/preproc_codenet.py`."""

from rich.console import Console

from cobalt.datasets.offline.settings import CodeNetSettings as Arguments


def main(settings: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import quoted, say
    from cobalt.datasets.codenet import preprocess_codenet
    from cobalt.report.summary import summary_table

    summary = preprocess_codenet(settings)
    Console().print(summary_table(summary, title=f"CodeNet: {settings.output_dir}"))
    say(
        str(settings.output_dir),
        f"scripts/train_offline_rl.sh --data_dir {quoted(settings.output_dir)} --model MODEL -o RUN",
    )
    return 0
