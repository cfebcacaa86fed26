# %% counts
def bubble_over_total(p, m):
    return (p - 1) / (m + p - 1)


def bubble_over_ideal(p, m):
    return (p - 1) / (m + p - 1)


def enough(p, share):
    import math

    return math.floor((p - 1) / share - (p - 1))


# %% kept
def gpipe_kept(rank, p, m):
    return m


def one_f_one_b_kept(rank, p, m):
    return m


# %% one-f-one-b
def one_f_one_b(rank, p, m):
    return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]


# %% mine
def mine():
    """All forwards, all I, all W."""
    return "\n".join(" ".join(f"{kind}{i}" for kind in "FIW" for i in range(8)) for rank in range(4))


# %% within
def within(rank, p, m, limit):
    return [f"{kind}{i}" for kind in "FIW" for i in range(m)]
