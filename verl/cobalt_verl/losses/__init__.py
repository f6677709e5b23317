"""Losses: policy losses, registered by `verl.trainer.ppo.core_algos.register_policy_loss`, and how they are averaged.

`actor_rollout_ref.actor.policy_loss.loss_mode` chooses a policy loss, `cobalt.loss_agg` the average (`loss_agg`). All
modules here are imported in every process of veRL. The clipped loss, the paper's, is veRL's own.
"""
