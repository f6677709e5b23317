"""`vllm serve` as a foreign engine: the same texts as the engine in the process. It starts vLLM four times."""

import asyncio
import os
import shutil

import pytest
from serving import vllm_server

from cobalt.engine import Call, GenerationSettings
from cobalt.engine import foreign as foreign_servers
from cobalt.engine.url_engine import UrlEngine
from cobalt.engine.vllm_engine import VllmEngine
from cobalt.engine.vllm_settings import VllmSettings
from cobalt.stage.errors import UserError

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set"),
]

LIMIT = 256
TEXTS = ("Read n. Print n * 2.", "Print a sum.", "1 " * 300)
GREEDY = GenerationSettings(n=2, temperature=0, max_tokens=4000)
SEEDED = GenerationSettings(n=2, seed=3, max_tokens=24)
CALL = Call("p", 0)


async def answers(engine):
    """What an engine answers, in the fields that decide records."""
    made = [
        await engine.generate([{"role": "user", "content": text}], settings, CALL)
        for text in TEXTS
        for settings in (GREEDY, SEEDED)
    ]
    return [
        (one.text, one.finish_reason, one.finish_reason != "prompt_too_long" and one.prompt_tokens)
        for completions in made
        for one in completions
    ]


@pytest.mark.parametrize("opens", [False, True])
def test_vllm_serve_has_the_texts_of_the_engine_in_the_process(seed_model, tmp_path, monkeypatch, opens):
    """With a template that opens the thinking, the server has a parser that takes the thinking out."""
    model, options = tmp_path / "model", ["--reasoning-parser", "deepseek_r1"] if opens else []
    shutil.copytree(seed_model, model)
    if opens:
        template = model / "chat_template.jinja"
        template.write_text(template.read_text() + '{%- if add_generation_prompt %}{{ "<think>\\n" }}{% endif %}')

    async def local():
        settings = VllmSettings(model=str(model), max_model_len=LIMIT, dtype="float32")
        async with VllmEngine(settings, log=tmp_path / "engine.log") as engine:
            return await answers(engine)

    async def foreign(url, **named):
        async with UrlEngine([url], **named) as engine:
            description = await engine.describe()
            return description, await answers(engine)

    expected = asyncio.run(local())
    assert all(text.startswith("<think>") for text, reason, _ in expected if reason != "prompt_too_long" and opens)
    assert {reason for _, reason, _ in expected} >= {"length", "prompt_too_long"}
    with vllm_server(model, "--max-model-len", str(LIMIT), *options) as url:
        description, made = asyncio.run(foreign(url))
        assert description == {"model": str(model), "max_model_len": LIMIT, "foreign": True}
        assert made == expected

        def none_at_hand(name):
            raise UserError(f"no tokenizer of {name}")

        # Without a tokenizer the server gives what room a prompt leaves.
        monkeypatch.setattr(foreign_servers, "load_tokenizer", none_at_hand)
        if not opens:
            assert asyncio.run(foreign(url))[1] == expected
