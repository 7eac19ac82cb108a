"""The embedded policy: a character-level Llama of about three million parameters, built here in about a minute.

It is warmed up, briefly, on the environments' own worked examples. What is wrong or missing in those is left to
reinforcement learning. The same settings and seed give the same weights on the same kind of machine.
"""

import hashlib
import inspect
import json
import logging
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.model_cache import BadPolicy
from environments.base import WorkedExample
from environments.checks import BadEnvironment, raised, shown
from environments.loader import load

logger = logging.getLogger(__name__)

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
IGNORED = -100
"""Label of a token that the warm-up does not learn from: the prompt and the padding."""

RECIPE: dict[str, Any] = {
    "model": {
        "hidden_size": 256,
        "intermediate_size": 672,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
    },
    "steps": 140,
    "examples_per_step": 32,
    "matrix_rate": 0.02,
    "other_rate": 1e-2,
    "rising_steps": 5,
    "falling_share": 0.5,
}

Chosen = Sequence[tuple[str, dict[str, Any]]]


def key(environments: Chosen, seed: int) -> str:
    """Changes with everything that the weights depend on, the code included."""
    sources = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("embedded.py", "orthogonal.py")]
    sources += [inspect.getsource(inspect.getmodule(type(load(*chosen)))) for chosen in environments]  # type: ignore[arg-type]
    depends = [RECIPE, list(environments), seed, sources, version("torch"), version("transformers")]
    content = json.dumps(depends, sort_keys=True, default=str)
    return f"embedded-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"


def build(folder: Path, environments: Chosen, seed: int) -> None:
    """Write the warmed-up model and its tokenizer."""
    import torch

    tokenizer = make_tokenizer()
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(1)  # the order of additions, and so the weights, depends on their number
        try:
            torch.manual_seed(seed)
            model = make_model(tokenizer)
            warm_up(model, tokenizer, worked_examples(environments, seed))
        finally:
            torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer() -> Any:
    """One token a character of printable ASCII."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate([PAD, BOS, EOS, UNKNOWN, *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    characters.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_max_length=RECIPE["model"]["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **RECIPE["model"],
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def worked_examples(environments: Chosen, seed: int) -> Iterator[WorkedExample]:
    """The environments' examples, in turn."""
    streams = [_examples_of(*chosen, seed) for chosen in environments]
    while True:
        for stream in streams:
            yield next(stream)


def _examples_of(name: str, kwargs: dict[str, Any], seed: int) -> Iterator[WorkedExample]:
    """The examples of one environment. What is wrong with them is a refusal that names it."""
    who = f"environment {name!r}: worked_examples(seed)"
    wanted = "wanted pairs (prompt, completion) without end, each given with `yield`"
    try:
        found: Any = load(name, kwargs).worked_examples(seed)
        if not isinstance(found, Iterator):
            raise BadPolicy(f"{who} returned {shown(found)}; {wanted}")
        for example in found:
            if not _is_example(example):
                raise BadPolicy(f"{who} gave {shown(example)}; {wanted}")
            yield example
    except (BadPolicy, BadEnvironment, NotImplementedError):
        raise
    except Exception as error:
        raise BadPolicy(f"{who} failed: {raised(error)}") from error
    raise BadPolicy(f"{who} came to an end; {wanted}")


def _is_example(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return False
    prompt, completion = value
    turns = [completion] if isinstance(completion, str) else completion
    return isinstance(prompt, str) and isinstance(turns, Sequence) and all(isinstance(turn, str) for turn in turns)


def warm_up(model: Any, tokenizer: Any, examples: Iterator[WorkedExample]) -> None:
    """A few steps of supervised learning: momentum with orthogonal updates for matrices, Adam for the rest."""
    import torch

    from app.orthogonal import OrthogonalMomentum

    hidden = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    chosen = {id(weight) for weight in hidden}
    others = [weight for weight in model.parameters() if id(weight) not in chosen]
    optimizers = [
        OrthogonalMomentum(hidden, lr=RECIPE["matrix_rate"]),
        torch.optim.AdamW(others, lr=RECIPE["other_rate"], weight_decay=0.0, betas=(0.9, 0.95)),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, _rate) for optimizer in optimizers]
    started = time.monotonic()
    for step in range(1, RECIPE["steps"] + 1):
        loss = _loss(model, tokenizer, [next(examples) for _ in range(RECIPE["examples_per_step"])])
        model.zero_grad()
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if step % 10 == 0:
            spent_s = time.monotonic() - started
            what = (step, RECIPE["steps"], loss.item(), spent_s)
            logger.info("warming up the policy: step %d of %d, loss %.3f, %.0f s", *what)


def _rate(step: int) -> float:
    """Share of the full learning rate: a short rise, then constant, then falling to nearly nothing."""
    rising = min(1.0, (step + 1) / RECIPE["rising_steps"])
    falling = (1 - step / RECIPE["steps"]) / RECIPE["falling_share"] + 0.02
    return rising * min(1.0, falling)


def _loss(model: Any, tokenizer: Any, examples: Sequence[WorkedExample]) -> Any:
    """Mean cross-entropy of the completions' tokens, the end token included."""
    import torch

    rows = [_ids(tokenizer, *example) for example in examples]
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [tokenizer.pad_token_id] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in rows])
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


def _ids(tokenizer: Any, prompt: str, completion: str | Sequence[str]) -> tuple[list[int], list[int]]:
    """Ids of a worked example, and its labels. Of a conversation, what the environment says is not learnt either."""
    ids = tokenizer.encode(prompt, split_special_tokens=True)
    labels = [IGNORED] * len(ids)
    for number, text in enumerate([completion] if isinstance(completion, str) else completion):
        told = tokenizer.encode(text, split_special_tokens=True, add_special_tokens=False)
        is_policys = number % 2 == 0
        told += [tokenizer.eos_token_id] if is_policys else []
        ids, labels = ids + told, labels + (told if is_policys else [IGNORED] * len(told))
    if tokenizer.unk_token_id in ids or len(ids) > tokenizer.model_max_length:
        raise BadPolicy(
            f"the embedded policy cannot learn the worked example {prompt!r} -> {completion!r}: it knows printable "
            f"ASCII only and fewer than {tokenizer.model_max_length} characters; change the example or the model"
        )
    return ids, labels
