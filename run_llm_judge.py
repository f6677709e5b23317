"""Classify hacking events: `cobalt.hacking.classifier:classify_events`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.hacking.classifier:classify_events")
