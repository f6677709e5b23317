"""Judge programs of groups on the samples of their problems: the flags and the work of `preproc/check_groups.py`."""

from cobalt.datasets.offline.check import CheckSettings as Arguments


def main(settings: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_summary
    from cobalt.commands.local_judge import with_local_judge
    from cobalt.datasets.offline.check import check_groups
    from cobalt.judge import JudgeSettings

    judge_settings = JudgeSettings.from_environment()
    at_a_time = judge_settings.sandboxes + 2
    summary = with_local_judge(lambda judge: check_groups(settings, judge, at_a_time), judge_settings)
    say_summary(summary, f"Agreement by status: {settings.output_file}", str(settings.output_file))
    return 0
