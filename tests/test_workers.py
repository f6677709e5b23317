"""Work on many items: each once, a bounded number at a time, and the error that ends it is the one that is raised."""

import asyncio

import pytest

from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError
from cobalt.stage.retrying import retrying
from cobalt.stage.workers import work_on_all


async def test_every_item_is_worked_on_once_and_taken_when_a_worker_is_free():
    done, taken, most, all_work = [], 0, 0, asyncio.Barrier(4)

    def items():
        nonlocal taken
        for item in range(48):
            taken += 1
            yield item

    async def work(item):
        nonlocal most
        most = max(most, taken - len(done))
        await all_work.wait()
        done.append(item)

    await work_on_all(items(), work, 4)
    assert sorted(done) == list(range(48)) and most == 4


async def test_a_bug_is_not_hidden_by_an_error_of_the_project():
    both = asyncio.Barrier(2)

    async def work(item):
        await both.wait()
        raise ServiceDown("down") if item == 0 else KeyError("a bug")

    with pytest.raises(KeyError):
        await work_on_all(range(2), work, 2)


@pytest.mark.parametrize("error", [UserError("x"), ServiceDown("x"), KeyError("x")])
async def test_the_first_error_ends_the_others_and_is_raised_as_it_is(error):
    ended, all_work = [], asyncio.Barrier(3)

    async def work(item):
        await all_work.wait()
        if item == 0:
            raise error
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    with pytest.raises(type(error)) as raised:
        await work_on_all(range(3), work, 3)
    assert raised.value is error and sorted(ended) == [1, 2]


async def test_an_error_of_the_items_is_raised_as_it_is():
    def items():
        yield 1
        raise UserError("line 2")

    async def work(item):
        pass

    with pytest.raises(UserError, match="line 2"):
        await work_on_all(items(), work, 2)


@pytest.mark.parametrize(
    ("error", "calls"), [(InfrastructureError("x"), 3), (ServiceDown("x"), 1), (UserError("x"), 1), (TypeError("x"), 1)]
)
async def test_only_infrastructure_failures_are_tried_again(error, calls):
    made = 0

    async def call():
        nonlocal made
        made += 1
        raise error

    with pytest.raises(type(error)):
        await retrying(3, first_pause=0, longest_pause=0)(call)
    assert made == calls
