"""Extract hacking events: `cobalt.hacking.extraction:extract_events`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.hacking.extraction:extract_events")
