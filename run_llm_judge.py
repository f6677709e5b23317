"""Classify hacking events: `cobalt.commands.run_llm_judge`."""

from cobalt.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.run_llm_judge")
