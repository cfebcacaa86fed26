# %% counts
def bubble_over_total(p, m):
    return (p - 1) / (m + p - 1)


def bubble_over_ideal(p, m):
    return (p - 1) / m


def enough(p, share):
    import math

    return math.ceil((p - 1) / share)


# %% kept
def gpipe_kept(rank, p, m):
    return m


def one_f_one_b_kept(rank, p, m):
    return p - rank


# %% one-f-one-b
def one_f_one_b(rank, p, m):
    ahead = p - 1 - rank
    order = [f"F{i}" for i in range(ahead)]
    for i in range(m - ahead):
        order += [f"F{ahead + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(m - ahead, m)]


# %% mine
def mine():
    """1F1B, each backward split where it stands."""
    lines = [" ".join(one_f_one_b(rank, 4, 8)) for rank in range(4)]
    for i in range(8):
        lines = [line.replace(f"B{i}", f"I{i} W{i}") for line in lines]
    return "\n".join(lines)


# %% within
def within(rank, p, m, limit):
    """Right within 1F1B's memory; what is more is not used."""
    ahead, late = p - 1 - rank, rank
    order = [f"F{i}" for i in range(ahead)]
    for i in range(m + late):
        order += [f"F{ahead + i}"] if ahead + i < m else []
        order += [f"I{i}"] if i < m else []
        order += [f"W{i - late}"] if i >= late else []
    return order
