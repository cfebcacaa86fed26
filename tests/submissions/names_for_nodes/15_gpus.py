# ruff: noqa: F821
# %% log
def basics(text):
    hosts = set(re.findall(r"^(\S+?):\d+:\d+ \[", text, re.MULTILINE))
    version = re.search(r"NCCL version (\S+)", text)
    channels = set(re.findall(r"Channel (\d+)", text))
    ranks = set(re.findall(r" rank (\d+) ", text))
    return {
        "version": version[1] if version else None,
        "channels": len(channels) or None,
        "ranks": len(ranks) or None,
        "nodes": len(hosts) or None,
    }


def transport(text, src, dst):
    match = re.search(rf"\[{src}\] -> \d+\[{dst}\].* via (\S+)", text)
    return match[1].split("/")[0] if match else None


def picked(text, num_bytes):
    match = re.search(rf"{num_bytes} Bytes -> Algo (\w+) proto (\w+)", text)
    return (match[1], match[2]) if match else None


# %% bandwidths
def rows(text):
    table = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return [(int(cells[0]), float(cells[5])) for cells in table]


def algbw(num_bytes, seconds):
    return num_bytes / seconds / 1e9


def busbw(collective, num_bytes, seconds, world_size):
    return algbw(num_bytes, seconds) * 2 * (world_size - 1) / world_size


# %% model
def alpha_beta(rows):
    """Plain least squares."""
    sizes, seconds = np.array(rows).T
    beta, alpha = np.polyfit(sizes, seconds, 1)
    return alpha, 1 / beta


def half_size(alpha, beta):
    return alpha * beta


def slow(rows):
    return min(rows, key=lambda row: row[0] / row[1])[0]
