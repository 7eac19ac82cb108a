"""Which samples share a forward pass, on which rank, in which optimiser update. Lengths in, indices out."""

import random
from collections.abc import Sequence


def pack(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """First-fit decreasing: the longest sample first, each into the first pack that has room for it.

    Returns the indices of each pack's samples. Equal lengths keep their order: equal inputs give equal packs.
    """
    _check(lengths, seq_len)
    return _first_fit(lengths, seq_len)


def _check(lengths: Sequence[int], seq_len: int) -> None:
    for i, length in enumerate(lengths):
        if not 1 <= length <= seq_len:
            raise ValueError(f"sample {i} has {length} tokens, wanted 1 to seq_len = {seq_len}")


def _first_fit(lengths: Sequence[int], size: int) -> list[list[int]]:
    packs: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        p = next((p for p, free in enumerate(room) if free >= lengths[i]), len(packs))
        if p == len(packs):
            packs.append([])
            room.append(size)
        packs[p].append(i)
        room[p] -= lengths[i]
    return packs


def pack_groups(prompts: Sequence[int], lengths: Sequence[int], groups: Sequence[int], seq_len: int) -> list[list[int]]:
    """The same for samples of groups, whose prompt stands once in a pack: a group stays together as far as it fits.

    prompts: the tokens of each sample's prompt, one number a group; lengths: all of a sample's tokens.
    """
    _check(lengths, seq_len)
    members: dict[int, list[int]] = {}
    for i in sorted(range(len(groups)), key=lambda i: groups[i]):
        members.setdefault(groups[i], []).append(i)
    pieces: list[list[int]] = []
    tokens: list[int] = []
    for own in members.values():
        prompt = prompts[own[0]]
        for piece in _first_fit([lengths[i] - prompt for i in own], seq_len - prompt):
            pieces.append([own[p] for p in piece])
            tokens.append(prompt + sum(lengths[i] - prompt for i in pieces[-1]))
    return [[i for p in one for i in pieces[p]] for one in _first_fit(tokens, seq_len)]


def rows(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Longest first: as many samples share a micro-batch as fit when each of them is padded to the longest.

    No attention mask is needed: a token sees only what is before it, and padding comes after.
    """
    packs: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if packs and (len(packs[-1]) + 1) * lengths[packs[-1][0]] <= seq_len:
            packs[-1].append(i)
        else:
            packs.append([i])
    return packs


def share(packs: Sequence[Sequence[int]], lengths: Sequence[int], world: int) -> list[list[list[int]]]:
    """Deal packs to ranks: every rank gets as many, with about as many tokens.

    All ranks gather sharded layers at once: a rank with fewer packs gets empty ones, dummy micro-batches.
    """
    if world < 1:
        raise ValueError(f"world: got {world}, wanted at least 1 rank")
    tokens = [sum(lengths[i] for i in pack) for pack in packs]
    most = -(-len(packs) // world)
    ranks: list[list[list[int]]] = [[] for _ in range(world)]
    loads = [0] * world
    for p in sorted(range(len(packs)), key=lambda p: (-tokens[p], p)):
        rank = min((rank for rank in range(world) if len(ranks[rank]) < most), key=lambda rank: (loads[rank], rank))
        ranks[rank].append(list(packs[p]))
        loads[rank] += tokens[p]
    return [mine + [[] for _ in range(most - len(mine))] for mine in ranks]


def minibatches(num_samples: int, parts: int, seed: int | str) -> list[list[int]]:
    """Split sample indices into the optimiser updates of a step: near-equal parts, shuffled by seed.

    One part keeps the order. With fewer samples than parts there are fewer updates; none is empty.
    """
    if parts < 1:
        raise ValueError(f"minibatches: got {parts}, wanted at least 1")
    order = list(range(num_samples))
    if parts > 1:
        random.Random(seed).shuffle(order)
    parts = min(parts, num_samples)
    return [order[part * num_samples // parts : (part + 1) * num_samples // parts] for part in range(parts)]
