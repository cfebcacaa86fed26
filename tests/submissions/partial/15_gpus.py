# ruff: noqa: F821
# %% log
def basics(text):
    def first(pattern):
        match = re.search(pattern, text)
        return int(match[1]) if match else None

    version = re.search(r"NCCL version (\d+\.\d+\.\d+)", text)
    return {
        "version": version[1] if version else None,
        "channels": first(r"(\d+) coll channels"),
        "ranks": first(r"n[Rr]anks (\d+)"),
        "nodes": first(r"nNodes (\d+)"),
    }


def transport(text, src, dst):
    match = re.search(rf" : {src}\[.*?\] -> {dst}\[.*?\].* via (\w+)", text)
    return match[1] if match else None


def picked(text, num_bytes):
    match = re.search(rf" {num_bytes} Bytes -> Algo (\d+) proto (\d+)", text)
    return (ALGORITHMS[int(match[1])], PROTOCOLS[int(match[2])]) if match else None


# %% bandwidths
def rows(text):
    table = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return [(int(cells[0]), float(cells[5]) * 1e-6) for cells in table]


def algbw(num_bytes, seconds):
    return num_bytes / seconds


def busbw(collective, num_bytes, seconds, world_size):
    return 2 * (world_size - 1) / world_size * num_bytes / seconds


# %% model
def alpha_beta(rows):
    """From the first row and the last."""
    return rows[0][1], (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])


def half_size(alpha, beta):
    return alpha / beta


def slow(rows):
    alpha, beta = alpha_beta(rows)
    for size, seconds in rows:
        if seconds > 1.5 * (alpha + beta * size):
            return size
    return None


# %% one-function
def average(numbers, device):
    total = numbers.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
