"""Exercise 19 accepts right answers however they are written, and refuses wrong ones in words that name the slip."""

import numpy as np
import pytest
from answers import assert_accepted, assert_refused, broken, graded, solution_of, with_slip, written
from survivors import DODGERS, SURVIVORS

from collectives.practice import ch19_failures

EXERCISE = "19_failures"
REPLAY, WRITING, BETWEEN = "a1-replay", "a2-writing", "a3-between"
LOST, PLAN = "b1-lost", "b2-plan"
SURVIVES, MOMENT, OTHER, ROOM = "c1-survives", "c2-any-moment", "c3-other-ranks", "c4-room"
ALL_C = {SURVIVES, MOMENT, OTHER, ROOM}

# Right answers, each in another style than the solution's.

BY_SECONDS = {
    "replay": """
    import numpy as np

    def replay(log, every, stop, until, writing=0):
        \"\"\"Every second of the log gets a letter.\"\"\"
        story, up_at, trained = [], 0, 0
        log = [tuple(row) for row in log]
        for now in range(until):
            for time, cause, restart in log:
                if time != now:
                    continue
                if now >= up_at:
                    life = story[up_at:]
                    if cause != "planned":
                        saved = [n for n in range(1, len(life) + 1) if n * (every + stop) + writing <= len(life)]
                        fresh = len(saved) * (every + stop)
                        story[up_at + fresh:] = [letter.replace("k", "u") for letter in life[fresh:]]
                    up_at = now + restart
                else:
                    up_at = max(up_at, now + restart)
            if now < up_at:
                story.append("d")
            else:
                story.append("k" if (now - up_at) % (every + stop) < every else "s")
        return {name: np.int64(story.count(name[0])) for name in ("kept", "undone", "saving", "down")}

    def between(log, until):
        states, failed, up_at = np.ones(until, bool), 0, 0
        for row in log:
            if row.time >= until:
                continue
            failed += int(states[row.time] and row.cause != "planned")
            up_at = max(up_at, row.time + row.restart)
            states[row.time:up_at] = False
        return states.sum() / failed
    """,
    "plan": """
    def lost(every, stop, writing, between):
        return sum([stop / every, writing / between, every / between / 2])

    def plan(ways, between):
        found = []
        for name in ways:
            stop, writing = ways[name]
            every = (2 * stop * between) ** 0.5
            if every < writing:
                every = writing
            found.append((lost(every, stop, writing, between), every, name))
        share, every, name = sorted(found)[0]
        return [name, every]
    """,
}
WITH_FRACTIONS = {
    "replay": """
    from fractions import Fraction

    def lives(log, until):
        \"\"\"Yield (up from, up to, cause, restart).\"\"\"
        begin = 0
        for time, cause, restart in log:
            if time >= until:
                break
            if time >= begin:
                yield begin, time, cause
            begin = max(begin, time + restart)
        if begin < until:
            yield begin, until, "end"

    def replay(log, every, stop, until, writing=0):
        spent = dict(kept=0, undone=0, saving=0, down=until)
        for begin, end, cause in lives(log, until):
            spent["down"] -= end - begin
            now, safe, trained = begin, 0, 0
            while now < end:
                step = min(every, end - now)
                now, trained = now + step, trained + step
                pause = min(stop, end - now)
                now += pause
                spent["saving"] += pause
                if step == every and pause == stop and now + writing <= end:
                    safe = trained
            if cause in ("planned", "end"):
                safe = trained
            spent["kept"] += safe
            spent["undone"] += trained - safe
        return spent

    def between(log, until):
        found = list(lives(log, until))
        failed = sum(cause not in ("planned", "end") for *_, cause in found)
        return Fraction(sum(end - begin for begin, end, _ in found), failed)
    """,
    "plan": """
    def lost(every, stop, writing, between):
        return torch.tensor((stop * between + every * (every / 2 + writing)) / (every * between), dtype=torch.float64)

    def plan(ways, between):
        best = min(
            (lost(max(writing, math.sqrt(2 * stop) * math.sqrt(between)), stop, writing, between).item(), name)
            for name, (stop, writing) in ways.items()
        )[1]
        stop, writing = ways[best]
        return best, torch.tensor(max(writing, (2 * stop * between) ** 0.5), dtype=torch.float64)
    """,
}
SCANNED = {
    "survive": """
    import re

    def checkpoints(disk):
        \"\"\"No marker: a checkpoint counts if all its shards can be read. The newest first.\"\"\"
        found = {}
        for name in disk.names():
            step, each, world_size = map(int, re.fullmatch(r"(\\d+)-(\\d+)-(\\d+)", name).groups())
            found.setdefault((step, world_size), {})[each] = name
        return sorted(((key, found[key]) for key in found), reverse=True)

    def newest(disk):
        for (step, world_size), files in checkpoints(disk):
            try:
                return step, [disk.read(files[each]) for each in range(world_size)]
            except (KeyError, EOFError, FileNotFoundError):
                continue
        return None

    def save(rank, world_size, job, disk):
        mine = f"{job.steps}-{rank}-{world_size}"
        disk.write(mine, [job.weights, job.mean, job.square, job.data.position, job.generator.get_state().numpy()])
        dist.barrier()
        if rank == 0:
            for (step, saved_by), files in checkpoints(disk):
                if (step, saved_by) != (job.steps, world_size):
                    for name in files.values():
                        disk.delete(name)
        dist.barrier()

    def resume(rank, world_size, job, disk):
        found = newest(disk)
        if found is None:
            return
        step, shards = found
        for number, field in enumerate(("weights", "mean", "square")):
            padded = torch.zeros(len(job.weights) * world_size, dtype=torch.float64)
            padded[: job.num_weights] = torch.cat([shard[number] for shard in shards])[: job.num_weights]
            setattr(job, field, padded.chunk(world_size)[rank].clone())
        job.steps = step
        job.data.position = shards[0][3]
        job.generator.set_state(torch.tensor(shards[0][4]))
    """,
}
TWO_PLACES = {
    "survive": """
    def save(rank, world_size, job, disk):
        \"\"\"Two places by turns, and a marker written in one go; sums over ranks stand for barriers.\"\"\"
        place = "b"
        if "marker" in disk.names() and disk.read("marker")[0] == "b":
            place = "a"
        everyone = [None] * world_size
        dist.all_gather_object(everyone, place)
        for name in disk.names():
            if rank == world_size - 1 and name.startswith(f"{place}."):
                disk.delete(name)
        dist.barrier()
        for number, tensor in enumerate((job.weights, job.mean, job.square)):
            disk.write(f"{place}.{rank}.{number}", tensor.numpy())
        flag = torch.ones(1)
        dist.all_reduce(flag)
        if rank == world_size - 1:
            state = job.generator.get_state().tolist()
            disk.write("new", (place, world_size, job.steps, job.data.position, bytes(state)))
            disk.rename("new", "marker")
            other = {"a": "b", "b": "a"}[place]
            for name in disk.names():
                if name.startswith(f"{other}."):
                    disk.delete(name)

    def resume(rank, world_size, job, disk):
        try:
            place, savers, steps, position, state = disk.read("marker")
        except FileNotFoundError:
            return None
        begin = rank * len(job.weights)
        for number, mine in enumerate((job.weights, job.mean, job.square)):
            parts = [torch.from_numpy(disk.read(f"{place}.{each}.{number}")) for each in range(savers)]
            whole = torch.cat(parts)[: job.num_weights][begin : begin + len(mine)]
            mine.zero_()
            mine[: len(whole)] = whole
        job.steps += steps
        job.data.position = position
        job.generator.set_state(torch.tensor(list(state), dtype=torch.uint8))
    """,
}
DIRECTORY = {
    "survive": """
    def save(rank, world_size, job, disk):
        \"\"\"Shards under a temporary name; the marker is one file for each checkpoint, renamed last.\"\"\"
        prefix = f"{job.steps:08d}-{world_size}"
        disk.write(f"{prefix}-{rank}.part", vars_of(job))
        disk.rename(f"{prefix}-{rank}.part", f"{prefix}-{rank}.pt")
        dist.barrier()
        if rank == 0:
            disk.write(f"{prefix}.tmp", world_size)
            disk.rename(f"{prefix}.tmp", f"{prefix}.done")
        dist.barrier()
        for number, name in enumerate(disk.names()):
            if not name.startswith(prefix) and number % world_size == rank:
                disk.delete(name)
        dist.barrier()
        if rank == 0:
            for name in disk.names():
                if not name.startswith(prefix):
                    disk.delete(name)

    def vars_of(job):
        state = {"weights": job.weights, "mean": job.mean, "square": job.square, "steps": job.steps}
        return {**state, "random": job.generator.get_state(), "position": job.data.position}

    def resume(rank, world_size, job, disk):
        done = [name for name in disk.names() if name.endswith(".done")]
        if done:
            prefix = max(done).removesuffix(".done")
            shards = [disk.read(f"{prefix}-{each}.pt") for each in range(disk.read(max(done)))]
            indices = torch.arange(rank * len(job.weights), (rank + 1) * len(job.weights))
            for field in ("weights", "mean", "square"):
                whole = torch.cat([shard[field] for shard in shards])
                whole[job.num_weights:] = 0
                whole = torch.cat([whole, torch.zeros(len(job.weights) * world_size, dtype=whole.dtype)])
                getattr(job, field).copy_(whole[indices])
            last = shards[-1]
            job.steps = torch.tensor(last["steps"])
            job.data.position = last["position"]
            job.generator = torch.Generator()
            job.generator.set_state(last["random"])
    """,
}
IN_SLOTS = {
    "survive": """
    import io

    def save(rank, world_size, job, disk):
        \"\"\"torch.save's bytes into slot A or B by turns; the older slot goes when the newer one is complete.\"\"\"
        slots = {disk.read(name)["slot"] for name in disk.names() if name == "newest"}
        everyone = [None] * world_size
        dist.all_gather_object(everyone, slots)
        slot = "B" if everyone[0] == {"A"} else "A"
        packed = io.BytesIO()
        torch.save(torch.stack([job.weights, job.mean, job.square], dim=1), packed)
        disk.write(f"slot-{slot}-of-rank-{rank}.pt", packed.getvalue())
        dist.barrier()
        if rank == 0:
            meta = dict(slot=slot, savers=world_size, steps=job.steps, position=job.data.position)
            disk.write("newest.draft", {**meta, "random": job.generator.get_state().numpy()})
            disk.rename("newest.draft", "newest")
            kept = {"newest", *(f"slot-{slot}-of-rank-{each}.pt" for each in range(world_size))}
            for name in {*disk.names()} - kept:
                disk.delete(name)

    def resume(rank, world_size, job, disk):
        if "newest" not in disk.names():
            return
        meta = disk.read("newest")
        packed = [disk.read(f"slot-{meta['slot']}-of-rank-{each}.pt") for each in range(meta["savers"])]
        whole = torch.cat([torch.load(io.BytesIO(each)) for each in packed])[: job.num_weights]
        mine = torch.zeros(len(job.weights) * world_size, 3, dtype=torch.float64)
        mine[: job.num_weights] = whole
        mine = mine[rank * len(job.weights) :][: len(job.weights)]
        job.weights, job.mean, job.square = (column.contiguous() for column in mine.T)
        job.steps, job.data.position = meta["steps"], meta["position"]
        job.generator.set_state(torch.from_numpy(meta["random"]))
    """,
}
# Waits by looking at the disk: a name without "part-" is whole, and a torn save may have left it.
BY_NAMES = {
    "survive": """
    import time

    PARTS = ("weights", "mean", "square")

    def place(job, who, of):
        return f"{job.steps:06d}-{of}-{who}"

    def save(rank, world_size, job, disk):
        own = place(job, rank, world_size)
        if own not in disk.names():
            disk.write("part-" + own, [getattr(job, name) for name in PARTS])
            disk.rename("part-" + own, own)
        everyone = [place(job, who, world_size) for who in range(world_size)]
        while any(name not in disk.names() for name in everyone):
            time.sleep(0.02)
        if rank == 0:
            disk.write("part-head", [job.steps, world_size, job.data.position, job.generator.get_state()])
            disk.rename("part-head", "head")
            for name in sorted(set(disk.names()) - {"head", *everyone}):
                disk.delete(name)
        while "head" not in disk.names() or disk.read("head")[0] < job.steps:
            time.sleep(0.02)

    def resume(rank, world_size, job, disk):
        if "head" in disk.names():
            job.steps, savers, job.data.position, state = disk.read("head")
            job.generator.set_state(state)
            pieces = [disk.read(place(job, who, savers)) for who in range(savers)]
            for name, each in zip(PARTS, zip(*pieces)):
                flat = torch.cat(each)[: job.num_weights]
                room = torch.zeros(world_size * len(job.weights), dtype=torch.float64)
                room[: len(flat)] = flat
                setattr(job, name, room.view(world_size, -1)[rank].clone())
    """
}
FRESH_NAMES = {  # of each try, so that the next save that completes has all that killed ones have left to delete
    "survive": """
    FIELDS = "weights", "mean", "square"

    def save(rank, world_size, job, disk):
        there = disk.names()  # nobody writes before rank 0, the last to look, says the name
        tries = [None] * world_size
        dist.all_gather_object(tries, f"{job.steps}_{len(there)}_{sum(map(len, there))}")
        mine = {field: getattr(job, field) for field in FIELDS}
        mine |= {"steps": job.steps, "generator": job.generator.get_state(), "position": job.data.position}
        disk.write(f"{tries[0]}.{rank}", mine)
        dist.barrier()
        if rank == 0:
            disk.write("latest.new", (tries[0], world_size))
            disk.rename("latest.new", "latest")
            for name in disk.names():
                if name != "latest" and not name.startswith(tries[0] + "."):
                    disk.delete(name)
        dist.barrier()

    def resume(rank, world_size, job, disk):
        if "latest" not in disk.names():
            return
        name, saved_by = disk.read("latest")
        parts = [disk.read(f"{name}.{each}") for each in range(saved_by)]
        size = -(-job.num_weights // world_size)
        for field in FIELDS:
            whole = torch.cat([part[field] for part in parts])[: job.num_weights]
            room = torch.zeros(size * world_size, dtype=torch.float64)
            room[: job.num_weights] = whole
            setattr(job, field, room.view(world_size, -1)[rank].clone())
        job.steps, job.data.position = parts[0]["steps"], parts[0]["position"]
        job.generator.set_state(parts[0]["generator"])
    """
}
RIGHT = {
    "a name for each try": FRESH_NAMES,
    "a wait for names, and no barrier": BY_NAMES,
    "a letter for each second, sorted": BY_SECONDS,
    "fractions, lives and tensors": WITH_FRACTIONS,
    "no marker, readable shards": SCANNED,
    "two places by turns": TWO_PLACES,
    "a marker for each checkpoint": DIRECTORY,
    "bytes of torch.save in two slots": IN_SLOTS,
}

# Wrong answers. `origin`: the row of the ledger, or the page, that a mistake comes from.

RENAMED = """disk.rename("latest.new", "latest")  # from here on it counts"""
BARRIER = "dist.barrier()  # now all shards are whole"
SLEEP = "__import__('time').sleep(0.5)"
WRITTEN = "disk.write(shard_name(job.steps, rank, world_size), shard)"
MARKER_FIRST = """
    FIELDS = "weights", "mean", "square"

    def shard_name(step, rank, world_size):
        return f"step-{step}.{rank}-of-{world_size}"

    def save(rank, world_size, job, disk):
        if rank == 0:
            common = {"steps": job.steps, "world_size": world_size, "position": job.data.position}
            disk.write("latest.new", common | {"generator": job.generator.get_state()})
            disk.rename("latest.new", "latest")
        dist.barrier()
        disk.write(shard_name(job.steps, rank, world_size), {field: getattr(job, field) for field in FIELDS})
        dist.barrier()
        if rank == 0:
            for name in disk.names():
                if name != "latest" and not name.startswith(f"step-{job.steps}."):
                    disk.delete(name)
"""
RESUME = "\n    def resume" + solution_of(EXERCISE, "survive").split("def resume")[1].replace("\n", "\n    ")
# Two codes that compare steps as text: "8" comes after "10". The first has no marker; in the second a checkpoint counts
# once it has a file `done-...`.
TEXT_ORDER = SCANNED["survive"].replace(
    "sorted(((key, found[key]) for key in found), reverse=True)",
    "sorted(((key, found[key]) for key in found), key=lambda each: str(each[0][0]), reverse=True)",
)
# Answers without a barrier, or with one too few: they sleep where a rank must wait for the others, and some look which
# ranks are dead, or what is on the disk. Each gets by a check that kills or delays ranks at other changes of the disk.
SLEEPS = solution_of(EXERCISE, "survive").replace(BARRIER, SLEEP)
LAST_COMMITS = SLEEPS.replace("if rank == 0:", "if rank == world_size - 1:")
SHARD_FILE = 'shard_name(common["steps"], each, len(savers))'
SMALL_FILES = (
    SLEEPS.replace(
        WRITTEN,
        "for field, whole in shard.items():\n"
        "        for n, part in enumerate(whole.split(200)):\n"
        '            disk.write(f"{shard_name(job.steps, rank, world_size)}.{field}.{n:02d}", part)',
    )
    .replace("if name not in needed:", 'if not {name, name.rsplit(".", 2)[0]} & needed:')
    .replace(
        f"disk.read({SHARD_FILE})",
        "{field: torch.cat([disk.read(name) for name in disk.names() "
        f'if name.startswith({SHARD_FILE} + f".{{field}}.")]) for field in FIELDS}}',
    )
)
LOOKS_WHO_IS_DEAD = SLEEPS.replace(
    WRITTEN,
    "import os, tempfile\n"
    "    mine = f'{tempfile.gettempdir()}/pid-{job.steps}-'\n"
    f"    open(f'{{mine}}{{rank}}', 'w').write(str(os.getpid()))\n    {WRITTEN}",
).replace(
    SLEEP,
    f"{SLEEP}\n"
    "    for each in range(world_size):\n"
    "        if not os.path.exists('/proc/' + open(f'{mine}{each}').read()):\n"
    "            return",
)
LOOKS_AT_SHARDS = SLEEPS.replace(
    SLEEP,
    f"{SLEEP}\n"
    "    if rank == 0:\n"
    "        try:\n"
    "            [disk.read(shard_name(job.steps, each, world_size)) for each in range(world_size)]\n"
    "        except (FileNotFoundError, EOFError):\n"
    "            return",
)
LOOKS_THEN_SLEEPS = SLEEPS.replace(
    SLEEP,
    f"{SLEEP}\n"
    "    for each in range(world_size * (rank == 0)):\n"
    "        if shard_name(job.steps, each, world_size) not in disk.names():\n"
    "            __import__('time').sleep(4)\n"
    "            break",
)
DRAFT = SLEEPS.replace(
    WRITTEN,
    "name = shard_name(job.steps, rank, world_size)\n"
    '    disk.write(f"draft-{name}", shard)\n'
    "    dist.barrier()\n"
    '    disk.rename(f"draft-{name}", name)',
)
WAITS_FOR_NAMES = SLEEPS.replace(
    SLEEP,
    "import time\n"
    "    names = {shard_name(job.steps, each, world_size) for each in range(world_size)}\n"
    "    time.sleep(0.5)\n"
    "    while rank == 0 and not names <= {*disk.names()}:\n"
    "        time.sleep(0.1)",
)
COMMON_BY_LAST = (
    solution_of(EXERCISE, "survive")
    .replace(
        BARRIER,
        f"{BARRIER}\n"
        "    common = {'steps': job.steps, 'world_size': world_size, 'position': job.data.position}\n"
        "    if rank == world_size - 1:\n"
        "        disk.write(f'common-{job.steps}', common | {'generator': job.generator.get_state()})\n"
        f"    {SLEEP}",
    )
    .replace('common | {"generator": job.generator.get_state()}', "job.steps")
    .replace('needed = {"latest", ', 'needed = {"latest", f"common-{job.steps}", ')
    .replace('common = disk.read("latest")', "common = disk.read(f\"common-{disk.read('latest')}\")")
)
TAIL = (
    solution_of(EXERCISE, "survive")
    .replace(
        f"{WRITTEN}\n    {BARRIER}",
        "name = shard_name(job.steps, rank, world_size)\n"
        "    disk.write(name, {field: part[:-1] for field, part in shard.items()})\n"
        f"    {BARRIER}\n"
        '    disk.write(f"{name}.tail", {field: part[-1:] for field, part in shard.items()})\n'
        f"    {SLEEP}",
    )
    .replace("if name not in needed:", 'if name.removesuffix(".tail") not in needed:')
    .replace(
        f"shards = [disk.read({SHARD_FILE}) for each in savers]",
        f"shards = [{{field: torch.cat([disk.read({SHARD_FILE})[field], disk.read({SHARD_FILE} + '.tail')[field]]) "
        "for field in FIELDS} for each in savers]",
    )
)
DUMMIES = SLEEPS.replace(
    WRITTEN,
    "if rank == 0:\n"
    "        for n in range(4):\n"
    '            disk.write("dummy", torch.full((500_000,), job.steps + n / 10).double())\n'
    '            disk.delete("dummy")\n'
    f"    {WRITTEN}",
)
ONE_WRITES_ALL = solution_of(EXERCISE, "survive").replace(
    f"{WRITTEN}\n    {BARRIER}",
    "every = [None] * world_size\n"
    "    dist.all_gather_object(every, shard)\n"
    "    if rank == 0:\n"
    "        for each in range(world_size):\n"
    "            disk.write(shard_name(job.steps, each, world_size), every[each])",
)
EACH_WRITES_ALL = """
    FIELDS = "weights", "mean", "square"

    def save(rank, world_size, job, disk):
        parts = [None] * world_size
        dist.all_gather_object(parts, [getattr(job, field) for field in FIELDS])
        disk.write(f"{rank}-{job.steps % 4}", [job.steps, job.data.position, job.generator.get_state(), parts])

    def resume(rank, world_size, job, disk):
        found = []
        for name in disk.names():
            try:
                found.append(disk.read(name))
            except EOFError:
                pass
        if not found:
            return
        job.steps, job.data.position, state, parts = max(found, key=lambda each: each[0])
        job.generator.set_state(state)
        for field, each in zip(FIELDS, zip(*parts)):
            padded = torch.zeros(len(job.weights) * world_size, dtype=torch.float64)
            padded[: job.num_weights] = torch.cat(each)[: job.num_weights]
            setattr(job, field, padded.chunk(world_size)[rank].clone())
"""
LAST_WILL = SLEEPS.replace(
    WRITTEN,
    "import os, tempfile, threading, time\n"
    "    will = f'{tempfile.gettempdir()}/will-{os.getppid()}-{job.steps}'\n"
    "    dying = threading.Timer(0.08, lambda: open(will, 'w').close())\n"
    f"    dying.start()\n    {WRITTEN}\n    dying.cancel()",
).replace(SLEEP, "time.sleep(0.18)\n    if os.path.exists(will):\n        time.sleep(60)")
TEXT_MARKERS = DIRECTORY["survive"].replace("{job.steps:08d}", "{job.steps}")
CHECKPOINT = """
    from collectives.training import checkpoints

    def save(rank, world_size, job, disk):
        checkpoints.save(disk, job, None, job.steps)

    def resume(rank, world_size, job, disk):
        checkpoints.resume(disk, job, None)
"""

FASTER = frozenset({ROOM})  # refused where rank 0 points to the new checkpoint before others have written it
MUTANTS = [
    broken(
        "planned ones undo",
        'safe = trained if cause == "planned" else',
        "safe = trained if time == until else",
        {REPLAY, WRITING},
        "a planned interruption undoes nothing",
    ),
    broken(
        "rows while down are skipped",
        "up_at = max(up_at, time + restart)\n    return {",
        "if time >= up_at:\n            up_at = time + restart\n    return {",
        {REPLAY, WRITING},
        "the job comes up when the last of the restarts ends",
    ),
    broken(
        "the last row's restart",
        "up_at = max(up_at, time + restart)\n    return {",
        "up_at = time + restart\n    return {",
        {REPLAY, WRITING},
        "a shorter restart doesn't end a longer one",
    ),
    broken(
        "one restart after the other",
        "up_at = max(up_at, time + restart)\n    return {",
        "up_at = max(up_at, time) + restart\n    return {",
        {REPLAY, WRITING},
        "restarts run at the same time",
    ),
    broken(
        "a row at the end counts",
        "rows = [row for row in log if row[0] < until]",
        "rows = [row for row in log if row[0] <= until]",
        {REPLAY, WRITING},
        "a row at `until` doesn't count",
    ),
    broken(
        "saved when it begins",
        "complete = max(time - up_at - writing, 0) // (every + stop)",
        "complete = max(time - up_at - writing + stop, 0) // (every + stop)",
        {REPLAY, WRITING},
        "counts when its stop is over",
    ),
    broken(
        "a second too late",
        "max(time - up_at - writing, 0)",
        "max(time - up_at - writing - 1, 0)",
        {REPLAY, WRITING},
        "complete at this very second counts",
    ),
    broken("all is lost", "else complete * every", "else 0", {REPLAY, WRITING}, "since the newest complete checkpoint"),
    broken(
        "the end fails",
        'trained if cause == "planned" else',
        'trained if cause == "planned" and time < until else',
        {REPLAY, WRITING},
        "the end is no failure",
    ),
    broken(
        "down beyond the end",
        '"down": until - kept - undone - saving}',
        '"down": max(until, up_at) - kept - undone - saving}',
        {REPLAY, WRITING},
        "the log ends at `until`",
    ),
    broken("no writing", "time - up_at - writing, 0", "time - up_at, 0", {WRITING}, "`writing` seconds after its stop"),
    broken(
        "waits for the writing",
        "kept = undone = saving = up_at = 0",
        "kept = undone = saving = up_at = 0\n    stop, writing = stop + writing, 0",
        {WRITING},
        "training goes on while a checkpoint is written",
    ),
    broken(
        "writes during the stop",
        "time - up_at - writing, 0",
        "time - up_at - max(writing - stop, 0), 0",
        {WRITING},
        "returns",
    ),
    broken("shares", '{"kept": kept,', '{"kept": kept / until,', {REPLAY, WRITING}, "it is"),
    broken(
        "three parts", ', "down": until - kept - undone - saving}', "}", {REPLAY, WRITING}, "return a dict of 'kept'"
    ),
    broken("all seconds", "return up / failed", "return until / failed", {BETWEEN}, "count only the seconds in which"),
    broken("counts planned ones", 'failed += cause != "planned"', "failed += time < until", {BETWEEN}, "is no failure"),
    broken(
        "counts while down",
        'failed += cause != "planned"',
        "pass",
        {BETWEEN},
        "ends in ZeroDivisionError",
    ),
    broken(
        "not up when it comes up",
        'failed += cause != "planned"',
        'failed += cause != "planned" and (time > up_at or not up_at)',
        {BETWEEN},
        "at the very second at which the job comes up it is up: a row then is a failure",
    ),
    broken(
        "not up at the first second, either",
        'failed += cause != "planned"',
        'failed += cause != "planned" and time > up_at',
        {BETWEEN},
        "the job is up from second 0",
    ),
    written(
        "rows over the span",
        "replay",
        solution_of(EXERCISE, "replay").split("def between")[0] + "def between(log, until): return until / len(log)",
        {BETWEEN},
        "it is",
    ),
    broken("no half", "every / 2 + writing", "every + writing", {LOST, PLAN}, "half an interval on average"),
    broken(
        "writing is free", "(every / 2 + writing)", "(every / 2)", {LOST, PLAN}, "`writing` seconds before", "page 19"
    ),
    broken(
        "half the writing", "every / 2 + writing", "(every + writing) / 2", {LOST, PLAN}, "all of `writing`, not half"
    ),
    broken("writing stops it", "stop / every", "(stop + writing) / every", {LOST, PLAN}, "it is"),
    broken("no stops", "stop / every + ", "", {LOST, PLAN}, "the stops are missing"),
    broken("once", "sqrt(2 * stop", "sqrt(stop", {PLAN}, "the root of TWICE", "page 19"),
    broken(
        "any interval",
        "max(math.sqrt(2 * stop * between), writing)",
        "math.sqrt(2 * stop * between)",
        {PLAN},
        "at least `writing`",
        "page 19",
    ),
    broken(
        "shortest stop",
        "key=lambda each: lost(intervals[each], *ways[each], between)",
        "key=lambda each: ways[each][0]",
        {PLAN},
        "`writing` seconds before a checkpoint",
        "page 19",
    ),
    broken(
        "always sync",
        "key=lambda each: lost(intervals[each], *ways[each], between)",
        "key=lambda each: ways[each][1]",
        {PLAN},
        "the way that writes least",
    ),
    broken("the worst", "name = min(ways, key=lambda", "name = max(ways, key=lambda", {PLAN}, "loses"),
    broken("rounded", "return name, intervals[name]", "return name, round(intervals[name], -2)", {PLAN}, "loses"),
    broken("name alone", "return name, intervals[name]", "return name", {PLAN}, "return a way and its interval"),
    broken("no weights", 'FIELDS = "weights", "mean"', 'FIELDS = "mean", "mean"', ALL_C, "it is as in a new job"),
    broken("no moments", 'FIELDS = "weights", "mean", "square"', 'FIELDS = "weights",', ALL_C, "job.mean[", "page 19"),
    broken("no second moment", '"mean", "square"', '"mean"', ALL_C, "is it saved?", "page 19"),
    broken(
        "no steps",
        'job.steps, job.data.position = common["steps"],',
        "job.data.position =",
        ALL_C,
        "leaves job.steps at 0",
    ),
    broken(
        "no position",
        'job.steps, job.data.position = common["steps"], common["position"]',
        'job.steps = common["steps"]',
        ALL_C,
        "write the position",
        "page 19",
    ),
    broken("no generator", 'job.generator.set_state(common["generator"])', "pass", ALL_C, "it begins anew", "page 19"),
    broken(
        "in fp32",
        "{field: getattr(job, field) for",
        "{field: getattr(job, field).float().double() for",
        ALL_C,
        "rounded to fp32",
    ),
    broken("rank 0 alone", WRITTEN, f"rank or {WRITTEN}", ALL_C, "there is no file"),
    broken(
        "rank 0's shard for all",
        'shard_name(common["steps"], each, len(savers))',
        'shard_name(common["steps"], 0, len(savers))',
        ALL_C,
        "it was",
    ),
    broken(
        "every rank the first shard",
        "rank * size : (rank + 1) * size",
        ":size",
        ALL_C,
        "this is rank 0's shard of job.weights",
    ),
    broken(
        "its own folder",
        'common["steps"], each, len(savers)',
        'common["steps"], each, world_size',
        {OTHER, ROOM},
        "there is no file",
    ),
    broken(
        "a barrier on rank 0 alone",
        BARRIER,
        f"if rank == 0:\n        {BARRIER}",
        ALL_C,
        "rank 1 has left save, and rank 0 hasn't: does every rank call the same collectives in save?",
    ),
    broken("no barrier", BARRIER, "pass", {MOMENT}, "there is no file")._replace(perhaps=FASTER),
    broken("a sleep for a barrier", BARRIER, SLEEP, {MOMENT}, "there is no file"),
    written("a sleep, and the last rank commits", "survive", LAST_COMMITS, {MOMENT}, "there is no file"),
    written("a sleep, and small files", "survive", SMALL_FILES, {MOMENT}, "was killed"),
    written("a sleep, and a last will", "survive", LAST_WILL, {MOMENT}, "was killed"),
    written("a sleep, and a look who is dead", "survive", LOOKS_WHO_IS_DEAD, {MOMENT}, "ranks were killed, rank 1 in"),
    written("a sleep, and a look at the shards", "survive", LOOKS_AT_SHARDS, {MOMENT}, "a checkpoint of step"),
    written("a sleep, and dummies that draw the kills", "survive", DUMMIES, {MOMENT, ROOM}, "there is no file"),
    written("a look, and then a sleep", "survive", LOOKS_THEN_SLEEPS, {MOMENT}, "was killed"),
    written("a draft, a barrier, and a sleep", "survive", DRAFT, {MOMENT}, "was killed before disk.rename"),
    written("a wait for names", "survive", WAITS_FOR_NAMES, {MOMENT}, "is torn"),
    written("a sleep for what another writes", "survive", COMMON_BY_LAST, {MOMENT}, "there is no file"),
    written("a sleep for the last piece", "survive", TAIL, {MOMENT}, "there is no file"),
    written("one rank writes all", "survive", ONE_WRITES_ALL, {MOMENT, OTHER, ROOM}, "each rank writes its own shard"),
    written("each rank writes all", "survive", EACH_WRITES_ALL, {MOMENT, OTHER, ROOM}, "and no other"),
    broken(
        "barrier before",
        f"{WRITTEN}\n    {BARRIER}",
        f"{BARRIER}\n    {WRITTEN}",
        {MOMENT},
        "there is no file",
    )._replace(perhaps=FASTER),
    written("marker first", "survive", MARKER_FIRST + RESUME, {MOMENT, OTHER, ROOM}, "there is no file"),
    broken("marker in place", '"latest.new"', '"latest"', {MOMENT}, "is torn"),
    broken(
        "one folder overwritten",
        'return f"step-{step}.{rank}-of-{world_size}"',
        'return f"{rank}-of-{world_size}"',
        {MOMENT, OTHER, ROOM},
        "this is rank 1's shard of job.weights after 12 steps",
        "page 19",
    ),
    broken(
        "deletes first",
        WRITTEN,
        "old = [name for name in disk.names() if rank == 0 and not name.startswith(f'step-{job.steps}.')]\n"
        f"    [disk.delete(name) for name in old]\n    {WRITTEN}",
        {MOMENT},
        "was it overwritten or deleted before the next one was complete?",
    ),
    written("steps as text, no marker", "survive", TEXT_ORDER, {MOMENT}, "Are steps compared as text?"),
    written("steps as text, a marker for each", "survive", TEXT_MARKERS, {MOMENT}, "Are steps compared as text?"),
    broken("deletes nothing", "disk.delete(name)", "pass", {ROOM}, "delete all others"),
    broken(
        "leaves the torn",
        "if name not in needed:",
        'if not name.startswith(("latest", f"step-{job.steps}.")):',
        {ROOM},
        "what a torn one has left",
    ),
    broken(
        "every rank all",
        "shard = {field: getattr(job, field) for field in FIELDS}",
        "shard = {field: getattr(job, field) for field in FIELDS} | {'again': [torch.rand(6007).double()] * 3}",
        {ROOM},
        "each rank writes its own shard",
    ),
    written("the library's", "survive", CHECKPOINT, ALL_C, "the library's own checkpoints.resume"),
    written(
        "the checks' replay",
        "replay",
        "def replay(log, every, stop, until, writing=0):\n"
        "    return ch19_failures.replayed(log, every, stop, until, writing)\n"
        "def between" + solution_of(EXERCISE, "replay").split("def between")[1],
        {REPLAY, WRITING},
        "the library's own ch19_failures.replayed",
    ),
]


@pytest.fixture(autouse=True)
def a_write_is_held_up_for_longer_than_wrong_answers_sleep(monkeypatch):
    monkeypatch.setattr(ch19_failures, "HELD", 1.0)
    monkeypatch.setattr(ch19_failures, "TO_THE_END", 2.0)


@pytest.mark.ranks
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.slip)
def test_a_wrong_answer_is_refused_and_the_slip_is_named(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), briefly=True, looks=False)


@pytest.mark.ranks
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name], looks=False)


@pytest.mark.ranks
@pytest.mark.parametrize("name", SURVIVORS)
def test_a_job_that_survives_by_anything_but_its_checkpoint_gets_no_point(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    said = graded(EXERCISE, {"survive": SURVIVORS[name]}, "c", looks=False)
    assert said.keys() == ALL_C
    assert {check: points for check, (points, _) in said.items() if points} == {}, said


@pytest.mark.ranks
@pytest.mark.parametrize("name", DODGERS)
def test_no_dummy_on_the_disk_draws_the_kills_from_a_save_that_is_not_safe(name):
    said = {}
    for check, step in {OTHER: 4, MOMENT: 6, ROOM: 8}.items():  # they begin after what each check looks at first
        later = DODGERS[name].replace("job.steps <= 4", f"job.steps <= {step}")
        said |= graded(EXERCISE, {"survive": later}, {check}, looks=False)
    assert {check: points for check, (points, _) in said.items() if points} == {}, said


def test_ranks_get_no_seed_that_tells_what_the_check_draws():
    story = ch19_failures.Story(None, None, 6, seed=1)
    assert story.seed not in (1, ch19_failures.Story(None, None, 6, seed=2).seed)
    assert story.seed == ch19_failures._unlike(1) < 2**31
    assert not np.array_equal(story.documents, ch19_failures.undisturbed.__wrapped__(6, story.seed).documents)
