# %% counts
def bubble_over_total(p, m):
    return (p - 1) / (m + p)


def bubble_over_ideal(p, m):
    return p / m


def enough(p, share):
    return int((p - 1) * (1 - share) / share) + 1


# %% kept
def gpipe_kept(rank, p, m):
    return m


def one_f_one_b_kept(rank, p, m):
    return min(m, p - rank + 1)


# %% one-f-one-b
def one_f_one_b(rank, p, m):
    ahead = min(m, p - rank)
    order = [f"F{i}" for i in range(ahead)]
    for i in range(ahead, m):
        order += [f"F{i}", f"B{i - ahead}"]
    return order + [f"B{i}" for i in range(m - ahead, m)]


# %% mine
def mine():
    """One W too late on ranks 1 to 3."""
    return """
    F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
    F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 F6 I4 W2 F7 I5 W3 I6 W4 I7 W5 W6 W7
    F0 F1 I0 F2 I1 F3 I2 F4 I3 W0 F5 I4 W1 F6 I5 W2 F7 I6 W3 I7 W4 W5 W6 W7
    F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 F6 I6 W2 F7 I7 W3 W4 W5 W6 W7
    """


# %% within
def within(rank, p, m, limit):
    ahead = min(2 * (p - 1 - rank), limit - 1 - rank)
    late = limit - 2 - ahead
    turns = []
    for i in range(m):
        turns += [(i, 0, f"F{i}"), (i + ahead, 1, f"I{i}"), (i + ahead + late, 2, f"W{i}")]
    return [word for _, _, word in sorted(turns)]
