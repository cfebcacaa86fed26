# ruff: noqa: F821
# %% there-and-back
def send_order(experts):
    chosen = experts.flatten().tolist()
    return torch.tensor(sorted(range(len(chosen)), key=chosen.__getitem__), dtype=torch.int64)


def count(experts, num_experts):
    return (experts.flatten()[:, None] == torch.arange(num_experts)).sum(0)


def back_home(rows, order):
    return rows[order.argsort()]


# %% capacity
def kept(experts, num_experts, places):
    taken = [0] * num_experts
    verdict = torch.zeros(experts.numel(), dtype=torch.bool)
    for place, expert in enumerate(experts.flatten().tolist()):
        verdict[place] = taken[expert] <= places
        taken[expert] += 1
    return verdict.view(experts.shape)


def dropped_and_padded(counts, places):
    filled = int(counts.clamp(max=places).sum())
    return int(counts.sum()) - filled, places * len(counts) - filled


# %% layer
def all_counts(rank, world_size, mine):
    return mine.repeat(world_size, 1)


def layer(rank, world_size, tokens, experts, weights, num_experts, answer):
    k, share = experts.shape[1], num_experts // world_size
    order = send_order(experts)
    counts = all_counts(rank, world_size, count(experts, num_experts)).view(world_size, world_size, share)
    arrived = exchange(tokens[order // k], counts.sum(-1))

    answers, at = torch.empty_like(arrived), 0
    for src in range(world_size):
        for number in range(share):
            end = at + int(counts[src, rank, number])
            answers[at:end] = answer(rank * share + number, arrived[at:end])
            at = end

    returned = exchange(answers, counts.sum(-1).T)
    weighted = returned * weights.flatten()[order, None]
    return torch.zeros_like(tokens).index_add(0, order // k, weighted)
