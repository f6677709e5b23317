"""The library leaves its process as it was: configurations and imports do no work, environment and arguments stay."""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT, needs_api

from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.litellm_engine import LiteLLMEngine
from cobalt.engine.provider_access import read_credentials
from cobalt.stage.environment import environment_variables

pytestmark = pytest.mark.slow

IMPORT = """
import importlib, json, os, pkgutil, sys
import cobalt
before, read = dict(os.environ), []
root = os.path.dirname(os.path.dirname(cobalt.__file__))
# vLLM's executor is a subclass, whose import is vLLM's.
left_out = ("__main__", "vllm_executor")
names = [m.name for m in pkgutil.walk_packages(cobalt.__path__, "cobalt.") if not m.name.endswith(left_out)]
# Programs that run in the judge's sandbox.
names = [name for name in names if not name.startswith("cobalt.judge.inside.")]


def listen(event, arguments):
    if event == "open" and str(arguments[0]).startswith(root) and "/." not in str(arguments[0])[len(root):]:
        if not str(arguments[0]).endswith((".py", ".pyc")) and "__pycache__" not in str(arguments[0]):
            read.append(str(arguments[0]))
    elif event in ("subprocess.Popen", "os.system", "socket.connect"):
        read.append([event, repr(arguments)])


sys.addaudithook(listen)
for name in names:
    importlib.import_module(name)
changed = {n for n in before.keys() | os.environ.keys() if before.get(n) != os.environ.get(n)}
print(json.dumps([len(names), sorted(changed), sys.argv, read]))
"""


def test_importing_the_library_reads_and_starts_nothing_and_leaves_environment_and_arguments():
    command = [sys.executable, "-c", IMPORT, "--flag", "value"]
    # Few variables: what an import has set in this process would not be seen to change.
    environment = {name: os.environ[name] for name in ("HOME", "PATH")}
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    count, changed, arguments, read = json.loads(finished.stdout)
    assert count > 80
    assert set(changed) <= {"RAY_CLIENT_MODE"}, "which Ray sets when it is imported"
    assert arguments == ["-c", "--flag", "value"]
    assert read == []


def test_variables_are_put_back_whatever_happens(monkeypatch):
    monkeypatch.setenv("COBALT_ONE", "1")
    monkeypatch.delenv("COBALT_TWO", raising=False)
    before = dict(os.environ)
    with pytest.raises(KeyError), environment_variables(COBALT_ONE=None, COBALT_TWO="2"):
        assert "COBALT_ONE" not in os.environ
        assert os.environ["COBALT_TWO"] == "2"
        raise KeyError
    assert dict(os.environ) == before


@needs_api
def test_an_engine_leaves_the_environment(monkeypatch):
    monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    before = dict(os.environ)
    LiteLLMEngine(ApiFlags(model_name="gpt-5-mini-2025-08-07"), read_credentials({}))
    assert dict(os.environ) == before
