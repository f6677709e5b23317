"""Agent loops: how the samples of a prompt are generated, in one turn or several.

Each is a subclass of veRL's `AgentLoopBase` with an entry in `cobalt_verl/config/agent_loops.yaml`;
`cobalt_verl/config/rollout` chooses one.
"""
