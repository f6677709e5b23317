"""The agent loop of one turn, by its configuration: seeds of samples, and which engine has those of a prompt."""

from types import SimpleNamespace

import pytest
from support import composed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(("scale", "seeds"), [("pocket", 5), ("paper", 0)])
async def test_samples_have_seeds_of_their_own_at_the_pocket_scale_and_those_of_a_prompt_go_to_one_engine(
    policy, scale, seeds
):
    from hydra.utils import get_class
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    asked = []

    async def generate(request_id, prompt_ids, sampling_params, **_):
        asked.append((request_id, list(prompt_ids), sampling_params.get("seed")))
        return TokenOutput(token_ids=[7], log_probs=[-0.5], extra_fields={})

    config = composed(policy, policy, policy, scale=scale)
    agent, tokenizer = config.actor_rollout_ref.rollout.agent, AutoTokenizer.from_pretrained(policy)
    [entry] = [e for e in OmegaConf.load(agent.agent_loop_config_path) if e.name == agent.default_agent_loop]
    for number, prompt in enumerate(["one", "two", "one", "two", "one"]):
        loop = get_class(entry._target_)(
            DictConfigWrap(config), SimpleNamespace(generate=generate), tokenizer, None, None,
            DictConfigWrap(config.data), seeded=entry.seeded,
        )  # fmt: skip
        messages = [{"role": "user", "content": prompt}]
        fields = {"raw_prompt": messages, "global_steps": 1, "index": 0, "session_id": number}
        output = await loop.run({"temperature": 1.0}, **fields)
        rendered = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert output.prompt_ids == asked[-1][1] == rendered
    requests = [request for request, _, _ in asked]
    assert [requests.index(request) for request in requests] == [0, 1, 0, 1, 0]
    assert len({seed for _, _, seed in asked} - {None}) == seeds
