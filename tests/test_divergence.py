"""The distance of two policies on judged responses: on real policies, and with files that do not fit."""

import json
import shutil

import pytest
from test_offline_training import pocket_groups, write_lines

pytest.importorskip("verl", reason="veRL is not installed (scripts/setup.sh --profile none)")

from cobalt.stage.errors import UserError
from studies import divergence


@pytest.fixture
def groups(tmp_path):
    write_lines(tmp_path / "validation.jsonl", pocket_groups(3, 2))
    return tmp_path / "validation.jsonl"


@pytest.mark.slow
def test_a_policy_has_not_moved_from_itself_and_has_after_a_change(seed_model, groups, tmp_path):
    from safetensors.torch import load_file, save_file

    moved = shutil.copytree(seed_model, tmp_path / "moved")
    weights = load_file(moved / "model.safetensors")
    save_file({name: 1.1 * value for name, value in weights.items()}, moved / "model.safetensors", {"format": "pt"})
    found = {}
    for policy in (seed_model, moved):
        result = tmp_path / f"{policy.name}.json"
        arguments = divergence.Arguments(str(seed_model), str(policy), groups, result)
        assert divergence.main(arguments) == divergence.main(arguments) == 0
        found[policy] = json.loads(result.read_bytes())
    assert found[seed_model]["kl"] == 0 < found[moved]["kl"]
    assert found[moved]["responses"] == 9 and found[moved]["tokens"] > 9
    other = divergence.Arguments(str(moved), str(moved), groups, tmp_path / "moved.json")
    with pytest.raises(UserError, match="other settings"):
        divergence.main(other)


@pytest.mark.slow
def test_policies_whose_tokenizers_differ_are_refused(seed_model, groups, tmp_path):
    other = shutil.copytree(seed_model, tmp_path / "other")
    content = json.loads((other / "tokenizer_config.json").read_text())
    content["chat_template"] = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (other / "tokenizer_config.json").write_text(json.dumps(content))
    for file in other.glob("chat_template*"):
        file.unlink()
    with pytest.raises(UserError, match="make different tokens"):
        divergence.main(divergence.Arguments(str(seed_model), str(other), groups, tmp_path / "kl.json"))
