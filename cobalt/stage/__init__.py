"""Base of every stage: errors, files, rows, records, manifests, settings, progress, and the command line.

The lowest package: it imports no other package of this project, and no torch, Ray or vLLM.
"""
