# %% counts
def bubble_over_total(p, m):
    return (p - 1) / (p - 1 + m)


def bubble_over_ideal(p, m):
    return (p - 1) / m


def enough(p, share):
    m = 1
    while bubble_over_total(p, m) > share:
        m += 1
    return m


# %% kept
def gpipe_kept(rank, p, m):
    return m


def one_f_one_b_kept(rank, p, m):
    return min(p - rank, m)


# %% one-f-one-b
def one_f_one_b(rank, p, m):
    """Backwards come in the reverse order of forwards, as the layers' do."""
    ahead = min(m, p - 1 - rank)
    order = [f"F{i}" for i in range(ahead)]
    for i in range(ahead, m):
        order += [f"F{i}", f"B{m - 1 - i + ahead}"]
    return order + [f"B{i}" for i in reversed(range(ahead))]


# %% within
def within(rank, p, m, limit):
    return [f"F{i}" for i in range(m)] + [f"{kind}{i}" for i in reversed(range(m)) for kind in "IW"]
