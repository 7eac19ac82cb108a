"""What is refused before anything expensive starts."""

import json
import sys

import pytest

from app import embedded, preflight
from app.preflight import Refused
from environments.base import Sample
from tests.app.tiny import tiny_config

NODES = [float(1 << 30)] * 2


@pytest.fixture
def folder(tmp_path):
    shape = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "num_hidden_layers": 8,
        "max_position_embeddings": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


def test_a_block_holds_the_keys_and_values_of_its_tokens():
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "num_hidden_layers": 8}
    assert preflight.block_bytes(shape) == 2 * 8 * 2 * 16 * 4 * 128


@pytest.mark.parametrize(("megabytes", "held"), [(4, 15), (5, None)])
def test_a_cache_that_holds_fewer_sequences_than_may_be_decoded_is_told(folder, caplog, megabytes, held):
    """Blocks of 1/4 MiB, one of them kept empty by vLLM: 16 sequences need 17."""
    preflight.check_engine(
        tiny_config(engine={"kv_cache_mb": megabytes, "max_num_seqs": 16}), folder, use_gpu=False, nodes=NODES
    )
    told = f"engine.kv_cache_mb {megabytes} holds {held} sequences of 32 tokens, engine.max_num_seqs is 16"
    assert (told in caplog.text) == (held is not None)
    assert held is not None or not caplog.records


def test_too_little_memory_for_the_cache_names_both_numbers(folder):
    config = tiny_config(engine={"kv_cache_mb": 1})
    shape = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 64}
    (folder / "config.json").write_text(json.dumps(shape))
    with pytest.raises(Refused, match=r"engine\.kv_cache_mb is 1, but one sequence of 32 tokens needs 4 MiB"):
        preflight.check_engine(config, folder, use_gpu=False, nodes=NODES)


def test_a_sequence_longer_than_the_model_was_made_for(folder):
    config = tiny_config(max_tokens=100, seq_len=128)
    with pytest.raises(Refused, match=r"max_model_len is 116, but .* was made for 64 positions"):
        preflight.check_engine(config, folder, use_gpu=False, nodes=NODES)


def test_what_fits_passes(folder):
    preflight.check_engine(tiny_config(), folder, use_gpu=False, nodes=NODES)


def test_engines_that_the_memory_does_not_hold_are_refused_with_all_numbers(folder):
    (folder / "model.safetensors").write_bytes(bytes(24 << 20))
    config = tiny_config(num_engines=3, engine={"kv_cache_mb": 1000})
    with pytest.raises(
        Refused, match=r"kv_cache_mb is 1000: num_engines 3 with 1024 MiB each, .* 1024 \+ 1024 MiB that Ray has"
    ):
        preflight.check_engine(config, folder, use_gpu=False, nodes=NODES)
    preflight.check_engine(config, folder, use_gpu=False, nodes=[*NODES, *NODES])
    preflight.check_engine(config, folder, use_gpu=True, nodes=NODES)
    with pytest.raises(Refused, match="num_engines 1 with 1025 MiB each"):  # two halves of an engine are none
        preflight.check_engine(tiny_config(engine={"kv_cache_mb": 1001}), folder, use_gpu=False, nodes=NODES)


def test_an_unknown_environment_is_named_with_the_nearest():
    config = tiny_config(environments=[{"name": "sumz"}])
    with pytest.raises(Refused, match=r"environment 'sumz' is unknown; available: .*sums"):
        preflight.check_environments(config)


def test_an_eval_of_a_problem_that_is_trained_on_is_refused(monkeypatch):
    """The same environment with other sizes of its splits: what was held out is trained on."""
    trained = {"name": "sums", "kwargs": {"num_train": 2_600, "num_eval": 20}}
    apart, mixed = ({"name": "sums", "label": "held", "kwargs": {"num_train": 20, "num_eval": n}} for n in (20, 600))
    preflight.check_environments(tiny_config(environments=[trained], evals=[apart | {"kwargs": trained["kwargs"]}]))
    with pytest.raises(Refused, match=r"eval 'held': its problem \w+ is also trained on, by environment 'sums'"):
        preflight.check_environments(tiny_config(environments=[trained], evals=[mixed]))


def test_an_eval_without_held_out_prompts_is_refused():
    config = tiny_config(evals=[{"name": "tests.environments.faulty:NoEval", "label": "none"}])
    with pytest.raises(
        Refused, match=r"eval 'none': environment .* has no eval samples with kwargs \{\}; give it a held"
    ):
        preflight.check_environments(config)


@pytest.mark.parametrize("backend", ["app.nowhere:Trainer", "app.trainer:Nobody"])
def test_a_backend_that_is_not_there(backend):
    with pytest.raises(Refused, match="cannot be imported"):
        preflight.check_environments(tiny_config(backend=backend))


def test_a_missing_model_folder_says_what_is_wanted():
    with pytest.raises(Refused, match=r"model '/nowhere': there is no such folder; wanted 'embedded'"):
        preflight.policy_of(tiny_config(model="/nowhere"))


def test_a_prompt_that_is_too_long_is_refused_with_both_lengths():
    model = preflight.policy_of(tiny_config(model="embedded"))
    with pytest.raises(Refused, match="a prompt has 11 tokens, max_prompt_tokens is 4"):
        preflight.check_prompts(tiny_config(max_prompt_tokens=4), model)
    assert preflight.check_prompts(tiny_config(), model) == "<eos>"


@pytest.mark.parametrize(
    ("changes", "resources", "expected"),
    [
        ({}, {"CPU": 2.0}, False),
        ({}, {"CPU": 8.0, "GPU": 2.0}, True),
        ({"use_gpu": False}, {"CPU": 8.0, "GPU": 2.0}, False),
    ],
)
def test_gpus_are_used_where_there_are_some(changes, resources, expected):
    assert preflight.use_gpu(tiny_config(**changes), resources) is expected


def test_more_than_the_cluster_has_is_refused():
    with pytest.raises(Refused, match="2 workers and 1 engines of 1 need 3 GPUs, the cluster has 2"):
        preflight.use_gpu(tiny_config(num_workers=2), {"CPU": 8, "GPU": 2.0})
    with pytest.raises(Refused, match=r"reserve 4\.4 CPUs, the cluster has 2"):
        preflight.use_gpu(tiny_config(num_workers=10), {"CPU": 2.0})


def bad_samples(kind: str):
    """An environment of a user's own whose samples are wrong in one way."""
    from environments.base import SingleTurnEnvironment

    class Bad(SingleTurnEnvironment):
        def samples(self, split):
            if kind == "exits":
                raise SystemExit(4)
            if kind == "raises":
                raise ValueError("no data here")
            return {"none": None, "texts": ["1+1="], "generator": (s for s in ())}[kind]

        def compute_reward(self, completion, sample, eos_token=""):
            return 0.0

    return Bad


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("exits", r"samples\('train'\) raised SystemExit: 4"),
        ("raises", r"samples\('train'\) raised ValueError: no data here"),
        ("none", "must return a list of Sample, got NoneType"),
        ("texts", "must return a list of Sample, got list"),
        ("generator", "must return a list of Sample, got generator"),
    ],
)
def test_samples_that_are_wrong_are_refused_by_the_name_of_their_environment(monkeypatch, kind, said):
    monkeypatch.setattr(sys.modules[__name__], "Mine", bad_samples(kind), raising=False)
    config = tiny_config(environments=[{"name": f"{__name__}:Mine", "label": "mine"}])
    with pytest.raises(Refused, match=f"environment 'mine'.*{said}"):
        preflight.check_environments(config)


def test_a_chat_template_that_does_not_know_the_role_of_an_answer_is_refused_before_the_run(tmp_path):
    from app import embedded

    tokenizer = embedded.make_tokenizer()
    refusal = "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    tokenizer.chat_template = "{% for m in messages %}" + refusal + "{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    name = "tests.e2e.talkers:Calling"
    with pytest.raises(Refused, match=r"'tools' answers as 'tool': .*no tools; set its reply_roles"):
        preflight.check_prompts(tiny_config(environments=[{"name": name, "label": "tools"}]), tmp_path)


def test_the_embedded_policy_needs_worked_examples():
    with pytest.raises(Refused, match="has no worked_examples"):
        preflight.policy_of(tiny_config(model="embedded", environments=[{"name": "reverse_text"}]))


def test_a_prompt_that_is_no_text_is_refused_with_its_environment(tmp_path, monkeypatch):
    embedded.make_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(preflight, "samples_of", lambda *_: [Sample("hi \ud800", 1)])
    with pytest.raises(
        Refused, match=r"environment 'sums', 'hi \\ud800': prompt .* holds '\\ud800', half of a surrogate"
    ):
        preflight.check_prompts(tiny_config(), tmp_path)
