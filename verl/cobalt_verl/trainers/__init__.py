"""Trainers: veRL's synchronous trainer as this project runs it, and the replay buffer that feeds it.

Advantages that need more than rewards, masks and groups override `_compute_advantage` in a subclass here.
"""
