"""Multi turn with vLLM: `cobalt.commands.run_multi_turn_vllm`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.run_multi_turn_vllm")
