"""From evaluated trajectories to contextual prompts: scores, selection, segmentation, perturbed copies."""
