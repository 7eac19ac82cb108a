"""What stays true of a conversation's tokens, whatever is said."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.conversation import NO_VERSION, Conversation
from app.engine import Completion

PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
IDS = st.lists(st.integers(0, 99), min_size=1, max_size=12)
TURNS = st.lists(st.tuples(IDS, st.booleans(), st.lists(IDS, min_size=1, max_size=3)), min_size=1, max_size=6)


def spoken(ids: list[int], was_cut: bool, version: int) -> Completion:
    tokens, logprobs = tuple(ids), tuple(-1.0 for _ in ids)
    return Completion(tokens, logprobs, (version,) * len(ids), "length" if was_cut else "stop", 1.0, 2.0, "engine")


@PROPERTY
@given(IDS, TURNS, st.integers(1, 60), st.none() | st.integers(1, 6))
def test_tokens_masks_and_turns_agree_and_only_grow(prompt, turns, max_tokens, max_turn_tokens):
    talk = Conversation(prompt, max_tokens, max_turn_tokens)
    said = 0
    for version, (ids, was_cut, answers) in enumerate(turns):
        before = talk.ids
        assert 1 <= talk.turn_tokens <= min(max_tokens, max_turn_tokens or max_tokens)
        mine = ids[: talk.turn_tokens]
        said += len(mine)
        talk.say(spoken(mine, was_cut, version), "text")
        heard = [token for answer in answers for token in answer]
        fits = talk.hear([{"role": "user", "content": "answer"} for _ in answers], heard)
        assert talk.ids == [*before, *mine, *(heard if fits else [])]
        if not fits:
            break
    assert len(talk.token_ids) == len(talk.sampled) == len(talk.logprobs) == len(talk.versions) <= max_tokens
    assert sum(talk.sampled) == said
    assert [v == NO_VERSION for v in talk.versions] == [not mine for mine in talk.sampled]
    assert [p == 0.0 for p in talk.logprobs] == [not mine for mine in talk.sampled]
    assert sum(turn["num_tokens"] for turn in talk.turns) == len(talk.token_ids)
    for turn in talk.turns:
        stretch = talk.sampled[turn["first_token"] : turn["first_token"] + turn["num_tokens"]]
        assert set(stretch) <= {turn["role"] == "assistant"}
    assert talk.num_turns == version + 1
    assert talk.truncated_turns == sum(was_cut for _, was_cut, _ in turns[: version + 1])


def test_tokens_without_their_log_probabilities_are_refused():
    with pytest.raises(ValueError, match="2 tokens with 1 log-probabilities and 2 versions"):
        Conversation([1], 9).say(Completion((1, 2), (-1.0,), (0, 0), "stop", 0.0, 1.0, "engine"), "text")
