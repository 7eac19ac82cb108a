"""The columns of what travels through the stream: groups become samples, and samples scored ones."""

import pyarrow as pa

from metrics.schema import TURN

GROUP = pa.struct(
    [
        ("group_id", pa.int64()),
        ("env", pa.string()),
        ("problem_id", pa.string()),
        ("prompt", pa.string()),  # environments.base.encode_prompt
        ("answer", pa.string()),  # JSON
        ("metadata", pa.string()),  # JSON
    ]
)
SAMPLE = pa.struct(
    [
        *GROUP,
        ("sample_id", pa.int64()),
        ("prompt_text", pa.string()),  # what the policy read
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion", pa.string()),
        ("token_ids", pa.list_(pa.int32())),  # after the prompt: the policy's, and in a conversation the environment's
        ("sampled", pa.list_(pa.bool_())),  # per token: by the policy; null where all are
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("finish", pa.string()),  # stop | length | max_turns | abort | error
        ("error", pa.string()),
        ("engine", pa.string()),
        ("generate_start_s", pa.float64()),
        ("generate_end_s", pa.float64()),
        ("num_turns", pa.int64()),
        ("truncated_turns", pa.int64()),
        ("prefix_breaks", pa.int64()),  # only of a conversation, like the following two
        ("turns", pa.list_(TURN)),
        ("state", pa.string()),  # JSON of environments.multi_turn.State
    ]
)
SCORED = pa.struct(
    [
        *SAMPLE,
        ("reward", pa.float64()),
        ("sample_metrics", pa.map_(pa.string(), pa.float64())),
        ("golden_answers", pa.map_(pa.string(), pa.string())),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("reward_start_s", pa.float64()),
        ("reward_end_s", pa.float64()),
    ]
)
