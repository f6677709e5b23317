"""OpenAI's routes of the engine: first the rules that need no engine, then the real engine with the `openai` client."""

import asyncio
import json
import subprocess
import sys
import time

import httpx
import psutil
import pytest
from support import ROOT, belongs_here, needs_api

from cobalt.engine.openai_routes import check_text, completions_of, until
from cobalt.errors import UserError

GREETING = [{"role": "user", "content": "Print the square of a number."}]


@pytest.mark.parametrize(
    ("prompt", "samples", "expected"),
    [
        (None, None, 1),
        (None, 3, 3),
        ("text", 2, 2),
        ([1, 2, 3], 2, 2),
        (["a", "b"], 2, 4),
        ([[1], [2, 3]], 1, 2),
        ([], 5, 5),
    ],
)
def test_a_requests_completions_are_its_samples_of_every_prompt(prompt, samples, expected):
    assert completions_of(prompt, samples) == expected


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "http://x"}}, {"image_url": "http://x"}, "text"]
)
def test_a_message_with_anything_but_text_is_refused_before_it_is_fetched(part):
    check_text({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, *GREETING]})
    with pytest.raises(UserError, match=r"messages\.1"):
        check_text({"messages": [*GREETING, {"role": "user", "content": [part]}]})


@pytest.mark.parametrize("payload", [{}, {"messages": None}, {"messages": [3, None, {"content": 5}]}])
def test_malformed_messages_are_left_to_their_own_check(payload):
    check_text(payload)


class Stream:
    """A stream of events that remembers whether it was ended; after its events it hangs."""

    def __init__(self, events, hang):
        self.ended = False
        self._events, self._hang = events, hang

    async def run(self):
        try:
            for event in self._events:
                yield event
            if self._hang:
                await asyncio.Event().wait()
        finally:
            self.ended = True


async def test_a_stream_is_passed_on_as_it_is():
    stream = Stream(["a", "b"], hang=False)
    later = asyncio.get_running_loop().time() + 60
    assert [event async for event in until(later, stream.run(), {})] == ["a", "b"]
    assert stream.ended


async def test_a_stream_that_takes_too_long_ends_with_an_error_in_the_events_form():
    stream = Stream(["data: 1\n\n"], hang=True)
    soon = asyncio.get_running_loop().time() + 0.1
    failure = {"error": {"message": "late", "code": 503}}
    first, error, end = [event async for event in until(soon, stream.run(), failure)]
    assert first == "data: 1\n\n" and end == "data: [DONE]\n\n"
    assert error.startswith("data: ") and error.endswith("\n\n") and json.loads(error[6:]) == failure
    assert stream.ended


async def test_a_stream_whose_reader_goes_away_is_ended():
    stream = Stream(["a", "b"], hang=True)
    reader = until(asyncio.get_running_loop().time() + 60, stream.run(), {})
    assert await anext(reader) == "a"
    await reader.aclose()
    assert stream.ended
