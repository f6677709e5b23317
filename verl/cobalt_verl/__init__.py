"""What this project adds to veRL, one folder for each kind: `estimators`, `losses`, `agent_loops`, `trainers`, `cpu`.

Installed with the project. Every process of veRL imports `cobalt_verl.plugin`. `cobalt` never imports this package, and
importing the package by itself imports nothing: vLLM looks here (`cpu.vllm_weights`) for inference, too.
"""
