"""Advantage estimators: each module registers one by `verl.trainer.ppo.core_algos.register_adv_est`.

`algorithm.adv_estimator` chooses one (`cobalt_verl/config/estimator`). All modules here are imported in every process
of veRL. GRPO, the paper's, is veRL's own.
"""
