# ruff: noqa: F821
# %% fill
def fill(sizes, bound):
    """Never quite full: a bucket is closed one gradient too early when it would be full exactly."""
    filled, held = [], bound
    for number in reversed(range(len(sizes))):
        if held + sizes[number] >= bound:
            filled.append([])
            held = 0
        filled[-1].append(number)
        held += sizes[number]
    return filled


# %% times
def ready_times(buckets, backward):
    return [sum(backward)] * len(buckets)


def step_end(buckets, backward, sizes, alpha, beta):
    return sum(backward) + sum(alpha + beta * sum(sizes[number] for number in bucket) for bucket in buckets)


# %% choose
def choose(sizes, backward, alpha, beta):
    """Without overlap every launch is a loss: a single bucket."""
    return [list(reversed(range(len(sizes))))]


# %% overlapped
def arrived(step, number):
    """Waits for each all-reduce as soon as it is launched."""
    step.arrived.add(number)
    launched = len(step.works)
    if launched < len(step.buckets) and set(step.buckets[launched]) <= step.arrived:
        flat = step.pack(launched)
        dist.all_reduce(flat)
        step.works.append(flat)


def finish(step):
    for number, flat in enumerate(step.works):
        step.unpack(number, flat / step.world_size)
