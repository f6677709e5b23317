"""Single turn with vLLM: `cobalt.rollout.single_turn:sample`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.rollout.single_turn:sample")
