# ruff: noqa: F821
# %% fill
def fill(sizes, bound):
    filled, room = [], -1
    for number in range(len(sizes) - 1, -1, -1):
        if sizes[number] > room:
            filled.append([])
            room = bound
        filled[-1].append(number)
        room -= sizes[number]
    return filled


# %% times
def ready_times(buckets, backward):
    times, clock = [], 0
    for bucket in buckets:
        clock += sum(backward[number] for number in bucket)
        times.append(clock)
    return times


def step_end(buckets, backward, sizes, alpha, beta):
    free = 0
    for ready, bucket in zip(ready_times(buckets, backward), buckets, strict=True):
        free = max(free, ready) + alpha + beta * sum(sizes[number] for number in bucket)
    return free


# %% choose
def choose(sizes, backward, alpha, beta):
    """The earliest end for the last k gradients, for every k, from those for fewer."""
    count = len(sizes)
    ends, cuts = [0.0], [0]
    for k in range(1, count + 1):
        ready = sum(backward[count - k :])
        options = [max(ends[j], ready) + alpha + beta * sum(sizes[count - k : count - j]) for j in range(k)]
        ends.append(min(options))
        cuts.append(options.index(ends[k]))
    found, k = [], count
    while k:
        found.insert(0, list(range(count - cuts[k] - 1, count - k - 1, -1)))
        k = cuts[k]
    return found


# %% overlapped
def arrived(step, number):
    step.arrived.add(number)
    while len(step.works) < len(step.buckets) and set(step.buckets[len(step.works)]) <= step.arrived:
        flat = step.pack(len(step.works))
        flat /= step.world_size
        step.works.append((dist.all_reduce(flat, async_op=True), flat))


def finish(step):
    for number, (work, flat) in enumerate(step.works):
        work.wait()
        step.unpack(number, flat)
