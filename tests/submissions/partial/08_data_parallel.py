# ruff: noqa: F821
# %% fill
def fill(sizes, bound):
    """Torch's rule: closes a bucket when it has reached the bound."""
    filled, held = [], bound
    for number in reversed(range(len(sizes))):
        if held >= bound:
            filled.append([])
            held = 0
        filled[-1].append(number)
        held += sizes[number]
    return filled


# %% times
def ready_times(buckets, backward):
    return [sum(backward[min(bucket) :]) for bucket in buckets]


def step_end(buckets, backward, sizes, alpha, beta):
    """All-reduces side by side."""
    return max(
        ready + alpha + beta * sum(sizes[number] for number in bucket)
        for ready, bucket in zip(ready_times(buckets, backward), buckets, strict=True)
    )


# %% choose
def choose(sizes, backward, alpha, beta):
    """The best of many bounds, priced on the library's timeline."""
    best = None
    for share in range(1, 41):
        filled, held = [[]], 0
        for number in reversed(range(len(sizes))):
            filled[-1].append(number)
            held += sizes[number]
            if held >= sum(sizes) * share / 40 and number:
                filled.append([])
                held = 0
        end = buckets.step(filled, backward, sizes, alpha, beta).seconds
        if best is None or end < best[0]:
            best = end, filled
    return best[1]


# %% overlapped
def arrived(step, number):
    """Launches each bucket as soon as it is full, whatever the order."""
    step.arrived.add(number)
    for b, bucket in enumerate(step.buckets):
        if number in bucket and set(bucket) <= step.arrived:
            flat = step.pack(b)
            step.works.append((b, flat, dist.all_reduce(flat, async_op=True)))


def finish(step):
    for b, flat, work in step.works:
        work.wait()
        step.unpack(b, flat / step.world_size)
