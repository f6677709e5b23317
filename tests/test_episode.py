"""The episode: the paper's rules of a repair conversation, stepped with and without a judge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FakeJudge, result_of, square_problem

from cobalt.episode import ALL_PUBLIC_PASSED, first_messages, history_text, load_prompts
from cobalt.episode.episode import Episode, judge_response
from cobalt.episode.trajectory import Turn
from cobalt.judge import ExecResult
from cobalt.problems.problem import Problem
from cobalt.stage.errors import InfrastructureError

PROBLEM = Problem.parse(square_problem(0))
PROMPTS = load_prompts("pocket")
OPENING = first_messages(PROBLEM, PROMPTS)
RESPONSE = "<think>why</think>\n```python\nprint(1)\n```"
OUTCOMES = st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=6)


def episode_of(turns, *, enable_thinking=True):
    return Episode(OPENING, PROBLEM.public_tests, PROMPTS, turns=turns, enable_thinking=enable_thinking)


@given(OUTCOMES, st.booleans())
def test_an_episode_takes_all_its_turns_and_shows_the_first_failing_test_alone(outcomes, enable_thinking):
    before, episode = list(OPENING), episode_of(len(outcomes), enable_thinking=enable_thinking)
    for number, passing in enumerate(outcomes, 1):
        assert not episode.done
        turn = episode.observe(Turn(RESPONSE, "stop", cost=0.5), result_of(*passing))
        shown = PROMPTS.feedback(ALL_PUBLIC_PASSED if all(passing) else f"test {passing.index(False)} fails")
        result = result_of(*passing)
        judged = {"public_pass_rate": sum(passing) / 2, "public_result": result, "feedback": shown}
        assert turn == Turn(RESPONSE, "stop", cost=0.5, **judged)
        assert episode.done == (number == len(outcomes))
        assert sum(f"test {place} fails" in shown for place in (0, 1)) == (not all(passing))
        answer = {"role": "assistant", "content": history_text(RESPONSE, enable_thinking)}
        assert episode.messages[-2:] == [answer, {"role": "user", "content": shown}]
        assert len(episode.messages) == len(OPENING) + 2 * number
    assert episode.messages[: len(OPENING)] == OPENING == before


def test_an_episode_that_is_done_takes_no_further_response():
    episode = episode_of(1)
    episode.observe(Turn(RESPONSE), result_of(True, True))
    with pytest.raises(ValueError):
        episode.observe(Turn(RESPONSE), result_of(True, True))


async def test_a_step_judges_the_program_on_the_tests_of_the_episode():
    judge = FakeJudge([True, False])
    turn = await episode_of(1).step(Turn(RESPONSE), judge)
    assert judge.asked == [("print(1)", PROBLEM.public_tests)]
    assert turn.public_result == result_of(True, False)


async def test_a_response_without_a_program_fails_every_test_and_is_not_judged():
    turn = await episode_of(1).step(Turn("I do not know."), FakeJudge(None))
    assert (turn.program, turn.public_result, turn.public_pass_rate) == (None, ExecResult.no_code(2), 0.0)
    assert await judge_response(FakeJudge(None), "none", PROBLEM.hidden_tests) == ExecResult.no_code(2)


async def test_a_failure_of_the_judge_leaves_the_episode_as_it_was():
    answers = iter([InfrastructureError("the sandbox died"), True])
    judge = FakeJudge(lambda *_: next(answers))
    episode = episode_of(1)
    with pytest.raises(InfrastructureError):
        await episode.step(Turn(RESPONSE), judge)
    assert (episode.messages, episode.done) == (OPENING, False)
    await episode.step(Turn(RESPONSE), judge)
    assert episode.done
