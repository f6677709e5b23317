"""Turn judged programs into groups for offline training: the flags and the work of `preproc/preproc_judged.py`."""

from cobalt.datasets.offline.settings import JudgedSettings as Arguments


def main(settings: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_groups
    from cobalt.datasets.offline.judged import convert_judged

    say_groups(convert_judged(settings), "Judged programs", settings.output_dir)
    return 0
