# ruff: noqa: F821
# %% peers
def peers(rank, world_size):
    """The circle method: seat 0 stays, all others move on by one chair; whoever sits opposite is the partner."""
    seats = list(range(world_size)) + [None] * (world_size % 2)
    partners = []
    for _ in range(len(seats) - 1):
        partners.append(seats[-1 - seats.index(rank)])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return partners


# %% all-to-all-steps
def all_to_all_steps(world_size):
    def swaps(rank, k):
        return {(rank + k) % world_size, (rank - k) % world_size}  # one rank, if it is just opposite

    return [
        [Transfer(rank, peer, peer, into=rank) for rank in range(world_size) for peer in swaps(rank, k)]
        for k in range(1, world_size // 2 + 1)
    ]


# %% exchange
def exchange(rank, world_size, chunks):
    result = chunks.clone()
    for k in range(1, world_size):
        to, source = (rank + k) % world_size, (rank - k) % world_size
        sending = dist.isend(chunks[to], to)
        dist.recv(result[source], source)
        sending.wait()
    return result
