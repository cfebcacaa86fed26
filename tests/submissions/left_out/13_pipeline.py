# %% counts
def bubble_over_total(p, m):
    return (p - 1) / m


def bubble_over_ideal(p, m):
    return (p - 1) / m


def enough(p, share):
    import math

    return math.ceil((p - 1) / share)


# %% kept
def gpipe_kept(rank, p, m):
    return m


def one_f_one_b_kept(rank, p, m):
    return min(p - rank, m)


# %% one-f-one-b
def one_f_one_b(rank, p, m):
    """Without the cool-down."""
    ahead = min(m, p - 1 - rank)
    order = [f"F{i}" for i in range(ahead)]
    for i in range(ahead, m):
        order += [f"F{i}", f"B{i - ahead}"]
    return order


# %% mine
def mine():
    """Without W."""
    return """
    F0 F1 F2 F3 I0 F4 I1 F5 I2 F6 I3 F7 I4 I5 I6 I7
    F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 F7 I5 I6 I7
    F0 F1 I0 F2 I1 F3 I2 F4 I3 F5 I4 F6 I5 F7 I6 I7
    F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 F7 I7
    """


# %% within
def within(rank, p, m, limit):
    """The W of the cool-down is left out."""
    ahead, order = p - 1 - rank, []
    for i in range(m + ahead):
        order += [f"F{i}"] if i < m else []
        order += [f"I{i - ahead}"] if i >= ahead else []
        order += [f"W{i - ahead - rank}"] if i >= ahead + rank else []
    return order
