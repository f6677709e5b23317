"""Turn LiveCodeBench into problems: `cobalt.datasets.livecodebench:livecodebench`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.datasets.livecodebench:livecodebench")
