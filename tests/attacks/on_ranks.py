# ruff: noqa: E501 (what students write is as long as it is)
"""Programs for real ranks, in this course's own exercises 03 and 09, that would rather not send and add up."""

from pathlib import Path

from . import hand_in

ROOT = Path(__file__).resolve().parents[2]
RING, ZERO = "ring-reduce-scatter", "zero-2"

for name, tries, code in [
    (
        "all_buffers_in_frames",
        "Looks for the buffers of all ranks in its callers' variables and among all objects, adds them up, and sends zeros along the ring.",
        """
        import gc, sys
        def ring_reduce_scatter(rank, world_size, buffer):
            rows = None
            frame = sys._getframe(1)
            while frame:
                for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
                    for one in value if isinstance(value, (tuple, list)) else [value]:
                        if isinstance(one, np.ndarray) and one.shape == (world_size, len(buffer)):
                            rows = one
                frame = frame.f_back
            if rows is None:
                raise LookupError("nothing")
            bounds = chunk_bounds(len(buffer), world_size).tolist()
            for step in range(world_size - 1):
                out, come = (rank - 1 - step) % world_size, (rank - 2 - step) % world_size
                sending = dist.isend(torch.zeros_like(buffer[bounds[out] : bounds[out + 1]]), (rank + 1) % world_size)
                dist.recv(torch.zeros_like(buffer[bounds[come] : bounds[come + 1]]), (rank - 1) % world_size)
                sending.wait()
            mine = buffer[bounds[rank] : bounds[rank + 1]]
            mine.copy_(torch.tensor(rows.sum(axis=0))[bounds[rank] : bounds[rank + 1]])
            return mine
        """,
    ),
    (
        "collectives_uncounted",
        "Calls the backend's all-reduce behind the dispatcher's back, where its bytes are not counted, and sends zeros along the ring.",
        """
        def ring_reduce_scatter(rank, world_size, buffer):
            bounds = chunk_bounds(len(buffer), world_size).tolist()
            for step in range(world_size - 1):
                out, come = (rank - 1 - step) % world_size, (rank - 2 - step) % world_size
                sending = dist.isend(torch.zeros_like(buffer[bounds[out] : bounds[out + 1]]), (rank + 1) % world_size)
                dist.recv(torch.zeros_like(buffer[bounds[come] : bounds[come + 1]]), (rank - 1) % world_size)
                sending.wait()
            if world_size > 1:
                group = dist.distributed_c10d._get_default_group()
                group._get_backend(torch.device("cpu")).allreduce([buffer]).wait()
            return buffer[bounds[rank] : bounds[rank + 1]]
        """,
    ),
    (
        "group_unlisted",
        "All-reduces in a gloo group that it makes by hand, of which torch has no list, and sends zeros round the ring.",
        """
        def ring_reduce_scatter(rank, world_size, buffer):
            from datetime import timedelta
            bounds = chunk_bounds(len(buffer), world_size).tolist()
            if world_size > 1:
                store = dist.PrefixStore("beside", dist.distributed_c10d._get_default_store())
                group = dist.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=8))
                group.allreduce([buffer]).wait()
                for _ in range(40):  # ten times the buffer, to excuse the bytes of the all-reduce
                    nothing = torch.zeros(len(buffer) // 4 + 1, dtype=buffer.dtype)
                    sending = dist.isend(nothing, (rank + 1) % world_size)
                    dist.recv(torch.empty_like(nothing), (rank - 1) % world_size)
                    sending.wait()
            return buffer[bounds[rank] : bounds[rank + 1]]
        """,
    ),
    (
        "counters_patched",
        "Uses the library's all-reduce, and patches the counters of bytes and of collectives in its rank.",
        """
        from collectives.measure import wire
        def ring_reduce_scatter(rank, world_size, buffer):
            import gc
            def count(self, operation, types, args=(), kwargs=None):
                return operation(*args, **(kwargs or {}))
            wire.BytesSent.__torch_dispatch__ = count
            bounds = chunk_bounds(len(buffer), world_size).tolist()
            dist.all_reduce(buffer)
            for one in gc.get_objects():
                if isinstance(one, wire.BytesSent):
                    sizes = [bounds[c + 1] - bounds[c] for c in range(world_size)]
                    sent = sum(sizes) - sizes[rank]
                    one.collectives.clear()
                    one.to.clear()
                    one.to[(rank + 1) % world_size] = sent * buffer.itemsize
                    one.messages = world_size - 1
            return buffer[bounds[rank] : bounds[rank + 1]]
        """,
    ),
    (
        "checks_patched",
        "Patches what checks it: practice, ranks.run, Outcome, np.array_equal; in its cell and in its ranks.",
        """
        from collectives.practice import ch03_ring, checks, on_ranks
        def agree(*args, **named): return []
        for patched in ("check_shards", "check_ring_traffic", "on_ranks", "same", "check_schedule", "check_ring", "check_count"):
            for module in (ch03_ring, checks, on_ranks):
                setattr(module, patched, agree)
        ranks.run = agree
        np.array_equal = np.allclose = lambda *a, **k: True
        def ring_reduce_scatter(rank, world_size, buffer):
            ch03_ring.same = ch03_ring.on_ranks = on_ranks.same = on_ranks.on_ranks = on_ranks._on_rank = agree
            bounds = chunk_bounds(len(buffer), world_size).tolist()
            return buffer[bounds[rank] : bounds[rank + 1]]
        """,
    ),
    (
        "report_forged",
        "Writes a made-up report into its pipes, whose pickle would run an order in the process that reads it, and leaves.",
        """
        def ring_reduce_scatter(rank, world_size, buffer):
            import glob, os, pickle, struct
            class Order:
                def __reduce__(self): return exec, ("import sys, os; print('ESC' + 'APED' if os.path.exists('@COURSE@') else 'inside')",)
            for path in glob.glob("/proc/self/fd/*"):
                fd = int(path.rsplit("/", 1)[1])
                data = pickle.dumps(Order())
                try:
                    if fd > 2 and os.readlink(path).startswith(("pipe:", "socket:")):
                        os.write(fd, struct.pack("!i", len(data)) + data)
                except OSError:
                    pass
            os._exit(0)
        """,
    ),
    (
        "results_that_lie",
        "Returns a tensor of a class of its own, which is equal to all, and which numpy is to take for what it wants.",
        """
        class Lie(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None): return True
            def __array__(self, *a, **k): return np.zeros(3)
            def __reduce__(self): return exec, ("raise SystemExit",)
        def ring_reduce_scatter(rank, world_size, buffer):
            bounds = chunk_bounds(len(buffer), world_size).tolist()
            return buffer[bounds[rank] : bounds[rank + 1]].as_subclass(Lie)
        """,
    ),
    (
        "orphans",
        "Its ranks start children that leave their session, and one rank exits while the others wait.",
        """
        def ring_reduce_scatter(rank, world_size, buffer):
            import os, subprocess, sys
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "@MARK@"], start_new_session=True)
            if rank == 0:
                os._exit(0)
            return buffer
        """,
    ),
]:
    hand_in("ranks", name, tries, {RING: code})

hand_in(
    "ranks",
    "truth_in_frames",
    "Exercise 09: looks in its callers' variables for what DDP has computed, copies it, and sends zeros of the right number of bytes.",
    {
        ZERO: """
        import sys
        def shelf(): return sys.modules.setdefault("shelf", type(sys)("shelf")).__dict__
        def arrived(rank, world_size, unit, tensor):
            if unit.collect(tensor):
                scratch = torch.zeros_like(unit.gradients)
                execute(ring.reduce_scatter(world_size), scratch)
                unit.reduced = torch.zeros(len(unit.parameters) // world_size, dtype=torch.bfloat16)
                unit.gradients = None
        def step(rank, world_size, units, update):
            ddp = seen = None
            frame = sys._getframe(1)
            while frame:
                ddp = frame.f_locals.get("ddp", ddp)
                seen = frame.f_locals.get("seen", seen)
                frame = frame.f_back
            number = len(seen.sums) - 1
            for index, unit in enumerate(units):
                size = len(unit.parameters) // world_size
                mine = slice(rank * size, (rank + 1) * size)
                update(unit.state, torch.tensor(ddp.sums[number][index][mine]).bfloat16(), world_size)
                unit.reduced = None
                execute(ring.all_gather(world_size), torch.zeros_like(unit.parameters))
                unit.parameters.copy_(torch.tensor(ddp.flat[number][index]).bfloat16())
        """
    },
)
BY_FILE = """
        def ring_reduce_scatter(rank, world_size, buffer):
            import os, socket, tempfile, time
            bounds = chunk_bounds(len(buffer), world_size).tolist()
            place = os.environ.get("TMPDIR", "/tmp")
            name = lambda r: f"{place}/row-{os.getppid()}-{len(buffer)}-{world_size}-{r}"
            torch.save(buffer, name(rank) + ".part")
            os.rename(name(rank) + ".part", name(rank))
            BLIND
            for step in range(world_size - 1):
                out, come = (rank - 1 - step) % world_size, (rank - 2 - step) % world_size
                message = torch.zeros_like(buffer[bounds[out] : bounds[out + 1]])
                if step < TRUE: message = buffer[bounds[out] : bounds[out + 1]].clone()
                sending = dist.isend(message, (rank + 1) % world_size)
                dist.recv(torch.zeros_like(buffer[bounds[come] : bounds[come + 1]]), (rank - 1) % world_size)
                sending.wait()
            mine = buffer[bounds[rank] : bounds[rank + 1]]
            for r in range(world_size):
                while not os.path.exists(name(r)): time.sleep(0.01)
                if r != rank: mine += torch.load(name(r))[bounds[rank] : bounds[rank + 1]]
            return mine
        """
CRUMBS = """
            if rank == 0 and len(buffer) > 50_000:
                listener = socket.create_server(("127.0.0.1", 0))
                one = socket.create_connection(listener.getsockname())
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                other, _ = listener.accept()
                for _ in range(600): one.send(b"x")
"""
for name, tries, true, blind in [
    ("others_buffers_by_file", "sends zeros of the right number of bytes along the ring", 0, ""),
    ("own_chunks_then_zeros", "sends what is its own along the ring, and zeros instead of sums", 2, ""),
    ("crumbs_then_zeros", "sends crumbs, to have whoever listens lose the thread, and zeros", 0, CRUMBS.strip()),
]:
    code = BY_FILE.replace("TRUE", str(true)).replace("BLIND", blind)
    hand_in("ranks", name, f"Gives its buffer to the others in files, and {tries}.", {RING: code})
hand_in(
    "ranks",
    "no_ranks",
    "Replaces ranks.run in the sandbox's main process: no ranks, but sums of all rows, sent from it to itself.",
    {
        RING: """
        import socket, threading
        from collectives import ranks
        from collectives.practice import on_ranks
        def run(function, world_size, *args, **named):
            rows = np.array(next(list(a) for a in args if type(a).__name__ == "PerRank"))
            if world_size == 1:
                return [on_ranks.Outcome(rows[0].copy(), rows[0].copy(), {}, 0, [], [])]
            bounds, total, told = chunk_bounds(rows.shape[1], world_size).tolist(), rows.sum(axis=0), [0] * world_size
            listener = socket.create_server(("127.0.0.1", 0))
            out = socket.create_connection(listener.getsockname())
            into, _ = listener.accept()
            def drain():
                while into.recv(1 << 20): pass
            thread = threading.Thread(target=drain)
            thread.start()
            for chunk in range(world_size):
                for hop in range(world_size - 1):
                    who = [(chunk + 1 + i) % world_size for i in range(hop + 1)]
                    data = rows[who][:, bounds[chunk] : bounds[chunk + 1]].sum(axis=0).astype(rows.dtype)
                    told[who[-1]] += data.nbytes
                    out.sendall(data.tobytes())
            out.close()
            thread.join()
            result = []
            for rank in range(world_size):
                own, to = slice(bounds[rank], bounds[rank + 1]), {(rank + 1) % world_size: told[rank]}
                buffer = rows[rank].copy()
                buffer[own] = total[own]
                result.append(on_ranks.Outcome(buffer[own].copy(), buffer, to, world_size - 1, [], []))
            return result
        ranks.run = run
        def ring_reduce_scatter(rank, world_size, buffer): pass
        """
    },
)
LATE = """
        class Late(torch.Tensor):
            def __array__(self, *_, **__): return self.work()
            detach = numpy = item = __array__
        def zeros_around(rank, world_size, like):
            for _ in range(40 if world_size > 1 else 0):
                zeros = torch.zeros(len(like) // 5 + 1, dtype=like.dtype)
                for way in (1, -1):
                    sending = dist.isend(zeros, (rank + way) % world_size)
                    dist.recv(torch.zeros_like(zeros), (rank - way) % world_size)
                    sending.wait()
        def ring_reduce_scatter(rank, world_size, buffer):
            own = slice(*chunk_bounds(len(buffer), world_size).tolist()[rank : rank + 2])
            BEFORE
            def work():
                dist.all_reduce(buffer)
                return buffer[own].numpy()
            result = torch.Tensor._make_subclass(Late, torch.zeros(1))
            result.work = work
            return result
        """
OVER_NOTHING = """
            import torch.testing._internal.distributed.fake_pg
            nothing = dist.new_group(backend="fake")
            for _ in range(2 * (world_size - 1)):
                dist.isend(buffer[own], (rank - 1) % world_size, group=nothing).wait()
"""
for name, tries, before in [
    ("read_too_late", "sends zeros before", "zeros_around(rank, world_size, buffer)"),
    ("sends_over_nothing", "reports as many bytes, over a backend that sends nothing", OVER_NOTHING.strip()),
]:
    code = LATE.replace("BEFORE", before)
    hand_in(
        "ranks", name, f"Has torch's own all-reduce run when the check reads its result, and {tries}.", {RING: code}
    )
hand_in(
    "ranks",
    "library_read",
    "Reads the answers that stand beside the library: the ring in its source, under another name, and solutions/.",
    {
        "reduce-scatter-steps": """
        import copy, os, types
        import collectives
        from collectives import Schedule
        if os.path.exists(os.path.join(os.path.dirname(os.path.dirname(collectives.__file__)), "solutions")):
            print("ESC" + "APED: it can see the solutions")
        def reduce_scatter_steps(world_size):
            from collectives.practice import checks
            checks.LibraryUsed = SystemExit
            given = ring.reduce_scatter(world_size)
            iterate = Schedule.__iter__
            closure = getattr(iterate, "__closure__", None)
            for cell in closure or ():
                if isinstance(cell.cell_contents, types.FunctionType):
                    iterate = cell.cell_contents
            object.__setattr__(given, "collective", None)
            return [list(step) for step in iterate(given)]
        """
    },
)
