"""Additions of the project to veRL, one folder for each kind: `estimators`, `losses`, `agent_loops`, `trainers`, `cpu`.

It is installed with the project. Every process of veRL imports `cobalt_verl.plugin`. `cobalt` never imports this
package. Importing the package by itself imports nothing, because vLLM imports it for inference, too
(`cpu.vllm_weights`).
"""
