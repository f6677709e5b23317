"""The outside of the project is what `tests/data/outside` says: flags, variables, routes, results and manifests.

`python tests/outside.py --write` renews the first three; its page says when that is right. The README of that folder
says how each stage is covered.
"""

import json

import outside
import pytest

pytestmark = pytest.mark.slow


def recorded(name):
    return json.loads((outside.DATA / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def flags():
    return outside.flags()


@pytest.mark.parametrize("command", recorded("flags"))
def test_a_command_has_the_flags_aliases_kinds_and_defaults_that_it_had(command, flags):
    assert flags.get(command) == recorded("flags")[command]


def test_every_command_is_in_the_snapshot(flags):
    assert flags.keys() == recorded("flags").keys()


def test_the_apps_have_the_routes_that_they_had():
    assert outside.routes() == recorded("routes")


def test_the_documents_name_the_variables_that_they_named_and_the_apps_have_the_settings_that_they_had():
    assert outside.environment() == recorded("environment")


def test_each_variable_that_the_documents_name_is_read():
    assert set(recorded("environment")["documented"]) <= outside.read_by_code()
