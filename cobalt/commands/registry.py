"""The commands of `cobalt`: name, module, sentence and example. Standard library only, so that help is quick."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    sentence: str
    module: str
    """See `cobalt.stage.entry.run_command`."""
    example: str
    """A command line, without `cobalt NAME`."""
    api_module: str = ""
    """Module and function that run if a provider's model is named by `--model` or `--model_name`."""


GROUPS: dict[str, dict[str, Command]] = {
    "Start here": {
        "try": Command(
            "Run everything on your own problems: sample, repair, evaluate, table and viewer.",
            "cobalt.commands.try_problems",
            "problems.jsonl --model Qwen/Qwen3-0.6B -o runs/try",
        ),
    },
    "Services": {
        "serve": Command(
            "Run the judge and an engine until Ctrl-C.",
            "cobalt.commands.serve",
            "--model Qwen/Qwen3-0.6B",
        ),
        "judge": Command(
            "Check the judge (doctor), or judge recorded programs again (check-recorded).",
            "cobalt.commands.judge",
            "doctor",
        ),
    },
    "Inference and evaluation": {
        "split": Command(
            "Divide the tests of your own problems into public and hidden ones.",
            "cobalt.datasets.split_tests:split",
            "-i problems.jsonl -o split.jsonl",
        ),
        "sample": Command(
            "Draw n programs for each problem and judge them.",
            "cobalt.rollout.single_turn:sample",
            "-i problems.jsonl -o runs/mine/single_turn.jsonl -n 16",
            api_module="cobalt.rollout.api:sample_by_api",
        ),
        "repair": Command(
            "Let the model repair its programs with feedback from public tests, turn after turn.",
            "cobalt.rollout.multi_turn:repair",
            "-i runs/mine/single_turn.jsonl -o runs/mine/multi_turn.jsonl --turns 8",
            api_module="cobalt.rollout.api:repair_by_api",
        ),
        "evaluate": Command(
            "Measure a result on the hidden tests: Pass@1 by turn, or pass@k of a single-turn result.",
            "cobalt.commands.evaluate:evaluate",
            "-i runs/mine/multi_turn.jsonl -o runs/mine/evaluation.jsonl",
        ),
    },
    "Training": {
        "select": Command(
            "Select evaluated trajectories and cut them into contextual prompts.",
            "cobalt.selection.processing:select_prompts",
            "-i runs/mine/evaluation.jsonl -o runs/mine/prompts.jsonl --model Qwen/Qwen3-0.6B",
        ),
        "perturb": Command(
            "Make two public tests of each problem impossible, to study reward hacking.",
            "cobalt.hacking.perturbation:perturb",
            "-i runs/mine/single_turn.jsonl -o runs/mine/perturbed.jsonl",
        ),
        "train": Command(
            "Train a policy by GRPO on veRL with the judge's rewards.",
            "cobalt.training.__main__",
            "--data partial_trajectories --data_dir runs/rows --model runs/ft/model -o runs/cobalt",
        ),
        "train offline_rl": Command(
            "Train a policy on judged responses, without sampling or judging any.",
            "cobalt.training.offline",
            "--data_dir data/codenet --model Qwen/Qwen2.5-Coder-0.5B-Instruct --profile paper-0.5b -o runs/offline",
        ),
        "watch": Command(
            "Show curves and rollouts of a training run in a browser, also while it runs.",
            "cobalt.report.watch",
            "runs/cobalt",
        ),
    },
    "Results": {
        "report": Command(
            "Compare evaluated runs: tables (markdown, CSV) and plots.",
            "cobalt.report.__main__",
            "runs/base runs/trained -o report",
        ),
        "view": Command(
            "Write one HTML page with every trajectory of a run.",
            "cobalt.report.viewer.__main__",
            "runs/mine -o view.html",
        ),
    },
}
"""The commands by group, in the order of `cobalt --help`."""

COMMANDS: dict[str, Command] = {name: command for group in GROUPS.values() for name, command in group.items()}
"""The commands by name: a word, or the word of another command and one more."""


def overview() -> str:
    """Text that `cobalt --help` prints."""
    width = max(map(len, COMMANDS))
    lines = ["usage: cobalt COMMAND [flags]", "", "Multi-turn code generation: run, judge, evaluate and train models."]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:{width}}  {command.sentence}" for name, command in commands.items())]
    lines += ["", "Example:", f"  cobalt try {COMMANDS['try'].example}", ""]
    lines += ["`cobalt COMMAND --help` lists the flags of a command and has an example."]
    return "\n".join(lines) + "\n"
