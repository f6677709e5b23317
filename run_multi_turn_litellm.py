"""Multi turn with a proprietary model: `cobalt.rollout.api:repair_by_api`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.rollout.api:repair_by_api")
