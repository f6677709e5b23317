"""From recorded trajectories to contextual prompts: reading, selection, segmentation, perturbed augmentation."""
