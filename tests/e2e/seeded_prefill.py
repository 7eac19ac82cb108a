"""Draws more seeded requests than an engine computes in one step: `python -m tests.e2e.seeded_prefill MODEL`."""

import os
import sys

from app.engine import CPU_ENVIRONMENT, ENVIRONMENT, PREFILL_TOKENS, engine_args
from tests.app.tiny import tiny_config

PROMPT_TOKENS = 100  # no divisor of what is computed at once: the last prompt would be cut


def main() -> None:
    count = PREFILL_TOKENS // PROMPT_TOKENS + 10
    config = tiny_config(max_prompt_tokens=PROMPT_TOKENS, max_tokens=8, seq_len=108, engine={"max_num_seqs": count})
    os.environ.update(CPU_ENVIRONMENT | ENVIRONMENT)
    from vllm import LLM, SamplingParams

    engine = LLM(model=sys.argv[1], skip_tokenizer_init=True, **engine_args(config, use_gpu=False))
    prompts = [{"prompt_token_ids": [(7 * i + j) % 30 for j in range(PROMPT_TOKENS)]} for i in range(count)]
    drawn = [SamplingParams(max_tokens=8, seed=i, logprobs=0, detokenize=False) for i in range(count)]
    done = engine.generate(prompts, drawn, use_tqdm=False)
    assert [one.finished for one in done] == [True] * count


if __name__ == "__main__":
    main()
