# ruff: noqa: F821
# %% log
def basics(text):
    def largest(pattern):
        return max((int(number) for number in re.findall(pattern, text)), default=None)

    version = re.findall(r"NCCL version (\d+\.\d+\.\d+)", text)
    return {
        "version": version[0] if version else None,
        "channels": largest(r" (\d+) coll channels"),
        "ranks": largest(r" n[rR]anks (\d+)"),
        "nodes": largest(r" nNodes (\d+)"),
    }


def transport(text, src, dst):
    for line in text.splitlines():
        match = re.search(r" : (\d+)\[.*?\] -> (\d+)\[.*?\].* via (\S+)", line)
        if match and (int(match[1]), int(match[2])) == (src, dst):
            kind = match[3].split("/")
            return "/".join(kind[:2]) if kind[0] == "NET" else kind[0]
    return None


def picked(text, num_bytes):
    for size, algorithm, protocol in re.findall(r"(\d+) Bytes -> Algo (\w+) proto (\w+)", text):
        if int(size) == num_bytes:
            known = []
            for printed, names in ((algorithm, ALGORITHMS), (protocol, PROTOCOLS)):
                lower = [name.lower() for name in names]
                known.append(
                    names[int(printed) if printed.isdigit() else lower.index(printed.lower().replace("_", ""))]
                )
            return tuple(known)
    return None


# %% bandwidths
def rows(text):
    table = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return [(int(cells[0]), float(cells[5]) / 1e6) for cells in table if cells]


def algbw(num_bytes, seconds):
    return num_bytes / seconds


def busbw(collective, num_bytes, seconds, world_size):
    factor = (world_size - 1) / world_size
    if collective == "all_reduce":
        factor *= 2
    return algbw(num_bytes, seconds) * factor


# %% model
def alpha_beta(rows):
    sizes, seconds = np.array(rows).T
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    return alpha, beta


def half_size(alpha, beta):
    return alpha / beta


def slow(rows):
    for row in rows:
        alpha, beta = alpha_beta([other for other in rows if other != row])
        if row[1] > 1.4 * (alpha + beta * row[0]):
            return row[0]
    return None


# %% places
def environment(node, local_rank, num_nodes, ranks_per_node):
    return {
        "RANK": str(node * ranks_per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(num_nodes * ranks_per_node),
        "LOCAL_WORLD_SIZE": str(ranks_per_node),
    }


def place(environment, visible):
    local_rank = int(environment["LOCAL_RANK"])
    if visible == 0:
        return "gloo", "cpu"
    if visible == 1:
        return "nccl", "cuda:0"
    if local_rank >= visible:
        raise ValueError(f"{visible} GPUs are not enough for local rank {local_rank}")
    return "nccl", f"cuda:{local_rank}"


# %% one-function
def average(numbers, device):
    there = numbers.to(device, copy=True)
    dist.all_reduce(there)
    return (there / dist.get_world_size()).cpu()
