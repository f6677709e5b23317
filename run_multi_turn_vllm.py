"""Multi turn with vLLM: `cobalt.rollout.multi_turn:repair`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.rollout.multi_turn:repair")
