"""Turn Project CodeNet into groups for offline training: the flags and the work of `preproc/preproc_codenet.py`."""

from cobalt.datasets.offline.settings import CodeNetSettings as Arguments


def main(settings: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_groups
    from cobalt.datasets.codenet import preprocess_codenet

    say_groups(preprocess_codenet(settings), "CodeNet", settings.output_dir)
    return 0
