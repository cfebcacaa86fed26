# ruff: noqa: F821
# %% fill
def fill(sizes, bound):
    """In the order of the parameters, as the forward pass uses them."""
    filled, held = [[]], 0
    for number, size in enumerate(sizes):
        if held + size > bound:
            filled.append([])
            held = 0
        filled[-1].append(number)
        held += size
    return filled


# %% times
def ready_times(buckets, backward):
    return [sum(backward[: max(bucket) + 1]) for bucket in buckets]


def step_end(buckets, backward, sizes, alpha, beta):
    done = 0
    for bucket, ready in zip(buckets, ready_times(buckets, backward), strict=True):
        done = max(done, ready) + alpha + beta * sum(sizes[number] for number in bucket)
    return done


# %% choose
def choose(sizes, backward, alpha, beta):
    return [[number] for number in range(len(sizes))]


# %% overlapped
def arrived(step, number):
    """Launches by the number of the parameter: bucket 0 first if parameter 0 is there."""
    step.arrived.add(number)
    if 0 in step.arrived:
        for b in range(len(step.buckets)):
            flat = step.pack(b)
            step.works.append((flat, dist.all_reduce(flat, async_op=True)))


def finish(step):
    for b, (flat, work) in enumerate(step.works):
        work.wait()
        step.unpack(b, flat)
