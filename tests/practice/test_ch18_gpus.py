"""Exercise 18 accepts a right diagnosis however it is made, and none by a keyword, by a guess or by heart."""

import re

import numpy as np
import pytest
from answers import assert_accepted, assert_refused, broken, solution_of, verdicts, with_slip, written

from collectives.measure import bandwidth, nccl_log
from collectives.practice import ch18_gpus, clinic
from collectives.practice.checks import NotYet

EXERCISE = "18_gpus"
SAID, ROWS, FIT, LATE = "a1-said", "a2-rows", "a3-fit", "a4-lateness"
SOCKETS, CARD, PEERS, DIRECT = "b1-sockets", "b2-card", "b3-peers", "b4-direct"
PROTOCOL, CLOCK, STRAGGLER, MISMATCH = "b5-protocol", "b6-synchronize", "b7-straggler", "b8-mismatch"
ALL = {SOCKETS, CARD, PEERS, DIRECT, PROTOCOL, CLOCK, STRAGGLER, MISMATCH}

# Right answers, each in another style than the solution's.

BY_WORDS = {
    "instruments": """
    def said(log):
        found = []
        for index in range(len(log)):
            before, ncclS, message = log[index].partition(" NCCL INFO ")
            if not ncclS:
                before, ncclS, message = log[index].partition(" NCCL WARN ")
            words = [word for word in before.split() if word.count(":") >= 2]
            if ncclS and words:
                found.append([index, words[0].split(":")[-3].split(">")[-1], message])
        return found

    def rows(sweep):
        found = []
        for index, line in enumerate(sweep):
            try:
                size, count, kind, operation, root, time, algbw, busbw, *_ = line.split()
                found.append([index, int(size), float(time) / 1e6, float(busbw) * 10**9] + 0 * [int(count)])
            except ValueError:
                pass
        return found

    def fit(rows):
        sizes, seconds = np.array([row[1] for row in rows], float), np.array([row[2] for row in rows])
        beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / seconds)
        return [alpha, beta]

    def lateness(trace):
        late = {}
        for seq in {event.seq for event in trace if event.group == "world"}:
            call = {e.rank: e for e in trace if (e.group, e.seq) == ("world", seq)}
            if None not in {e.left for e in call.values()}:
                inside = np.array([e.left - e.entered for e in call.values()])
                for rank, own in zip(call, inside):
                    late.setdefault(rank, []).append(np.median(inside) - own)
        return {rank: np.median(each) for rank, each in late.items()}
    """,
}
TIGHT = {
    "instruments": """
    LINE = re.compile(r"([A-Za-z][\\w.-]*|\\d[\\w.-]+):(\\d+):(\\d+) \\[(\\d+)\\]")

    def said(log):
        out = []
        for number, text in enumerate(log):
            start = LINE.search(text)
            if start and "NCCL " in text:
                out.append((number, start.group(1), re.split("NCCL (?:INFO|WARN) ", text, maxsplit=1)[1]))
        return np.array(out, dtype=object) if out else []

    def rows(sweep):
        pattern = re.compile(r"^\\s+(\\d+)\\s+\\d+\\s+\\w+\\s+\\w+\\s+-?\\d+\\s+([\\d.]+)\\s+[\\d.]+\\s+([\\d.]+)")
        return [(np.int64(number), int(m[1]), float(m[2]) * 1e-6, float(m[3]) * 1e9)
                for number, m in enumerate(map(pattern.match, sweep)) if m]

    def fit(rows):
        rows = [row for row in rows]
        best, weights = None, np.ones(len(rows))
        for _ in range(30):  # least absolute relative errors, by weights
            sizes, seconds = np.array([(row[1], row[2]) for row in rows]).T
            matrix = np.column_stack([1 / seconds, sizes / seconds]) * weights[:, None]
            best = np.linalg.lstsq(matrix, weights, rcond=None)[0]
            errors = np.abs((best[0] + best[1] * sizes) / seconds - 1)
            weights = 1 / np.sqrt(np.maximum(errors, 1e-4))
        return best.tolist()

    def lateness(trace):
        open_calls = {e.seq for e in trace if e.group == "world" and e.left is None}
        table = {}
        for e in trace:
            if e.group == "world" and e.seq not in open_calls:
                table.setdefault(e.seq, {})[e.rank] = e.left - e.entered
        ranks = sorted({rank for call in table.values() for rank in call})
        return {rank: median(median(call.values()) - call[rank] for call in table.values()) for rank in ranks}
    """,
}
IN_ONE = {
    "faults": """
    def diagnose(patient):
        \"\"\"All in one function, without part a's; evidence is the last proof.\"\"\"
        order, found = patient.order, {}
        host_of, env, nodes = {}, {}, order.nodes
        for index, line in enumerate(patient.log):
            match = re.search(r"([\\w.-]+):\\d+:\\d+ \\[\\d+\\](?: \\S+)? NCCL \\w+ (.*)", line)
            if not match:
                continue
            host, message = match.groups()
            if put := re.search(r"^(NCCL_\\w+) set .*?to (.*?)\\.?$", message):
                env[put[1]] = put[2], index
            if rank := re.search(r"rank (\\d+) n[Rr]anks \\d+(?: nNodes (\\d+))?", message):
                host_of[int(rank[1])] = host
                nodes = max(nodes, int(rank[2] or 0))
            if "NET/Socket" in message and (order.cards or nodes > order.nodes):
                found["sockets"] = index
            if "via SHM" in message and order.nvlink or "between NVLINK connected" in message:
                found["no peer access"] = index, host
            if re.search(r"via NET/IB\\w*/\\d+(\\(\\d+\\))?$", message):
                found["no GPUDirect"] = index
            devices = re.findall(r"\\[\\d+\\]mlx5_\\d+", message)
            slow = re.search(r"mlx5_\\d+:\\S* .*speed=(\\d+)000 ", message)
            few = "IB : Using" in message and len(devices) < order.cards
            if few or slow and int(slow[1]) < order.gbits:
                found["missing card"] = index, host
        if "sockets" in found:
            if nodes > order.nodes:
                remedy = "set NCCL_HOSTID"
            else:
                remedy = "unset NCCL_IB_DISABLE" if env.get("NCCL_IB_DISABLE", "0")[0] == "1" else "expose the cards"
            return "sockets", ["log", found["sockets"]], remedy
        if "missing card" in found:
            index, host = found["missing card"]
            hca = env.get("NCCL_IB_HCA", ["^"])[0]
            return "missing card", ["log", index], (
                f"drain {host}" if hca[0] == "^" or hca.count(",") + 1 == order.cards else "unset NCCL_IB_HCA")
        if "no peer access" in found:
            index, host = found["no peer access"]
            remedies = [f"unset {name}" for name, off in [("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_LEVEL", "LOC")]
                        if env.get(name, [""])[0] == off]
            return dict(fault="no peer access", evidence=("log", index), remedy=(remedies + [f"drain {host}"])[0])
        if "no GPUDirect" in found:
            off = env.get("NCCL_NET_GDR_LEVEL", [""])[0] == "LOC"
            remedy = "unset NCCL_NET_GDR_LEVEL" if off else "load nvidia_peermem"
            return Finding("no GPUDirect", ("log", np.int64(found["no GPUDirect"])), remedy)
        table = [line.split() for line in patient.sweep]
        table = {n: (int(r[0]), float(r[5]) / 1e6, float(r[7]) * 1e9)
                 for n, r in enumerate(table) if len(r) == 13 and r[0].isdigit()}
        for n in sorted(table, reverse=True):
            if table[n][2] > 1.5 * order.wire:
                return Finding("not synchronized", ("sweep", n), "synchronize")
        if table and env.get("NCCL_PROTO", [""])[0] in {"LL", "LL128", "Simple"}:
            first, last = min(table), max(table)
            if table[first][1] > 1.6 * order.alpha:
                return Finding("forced protocol", ("sweep", first), "unset NCCL_PROTO")
            if table[last][2] < 0.7 * order.wire:
                return Finding("forced protocol", ("sweep", last), "unset NCCL_PROTO")
        world = [(n, e) for n, e in enumerate(patient.trace) if e.group == "world"]
        latest = {}
        for n, e in world:
            latest[e.rank] = n, e
        if any(e.left is None for n, e in latest.values()):
            keys = [e[2:5] for n, e in latest.values()]
            for n, e in latest.values():
                if keys.count(e[2:5]) == 1:
                    return Finding("mismatch", ("trace", n), "fix rank %d" % e.rank)
            return Finding("healthy", None, None)
        delayed = {}
        for seq in {e.seq for n, e in world}:
            call = sorted((e.left - e.entered, n, e.rank) for n, e in world if e.seq == seq)
            if call[len(call) // 2][0] - call[0][0] > 5.5e-3:
                delayed.setdefault(call[0][2], []).append(call[0][1])
        for rank, calls in delayed.items():
            if len(calls) > 6:
                return Finding("straggler", ("trace", calls[-1]), "drain " + host_of[rank])
        return "healthy", "no evidence", "no remedy"
    """,
}
BY_PATTERN = {
    "faults": """
    class Chart:
        \"\"\"NCCL's lines by pattern; evidence is what stands furthest down, or the line that picks a protocol.\"\"\"

        def __init__(self, patient):
            self.own = said(patient.log)
            self.order = patient.order
            self.text = chr(10).join(message for _, _, message in self.own)

        def having(self, pattern, but="$^"):
            return [(n, host) for n, host, m in self.own if re.search(pattern, m) and not re.search(but, m)]

        def variable(self, name):
            put = re.findall(rf"(?m)^{name} set (?:by environment )?to (\\S+?)[.]?$", self.text)
            return put[0] if put else None


    def from_log(chart):
        by_socket = chart.having("via NET/Socket")
        several = [int(n) for n in re.findall(r"nNodes (\\d+)", chart.text)]
        if by_socket and several and several[0] != chart.order.nodes:
            yield "sockets", by_socket[-1][0], "set NCCL_HOSTID"
        elif by_socket and chart.order.cards:
            switch = {"1": "unset NCCL_IB_DISABLE"}
            yield "sockets", by_socket[-1][0], switch.get(chart.variable("NCCL_IB_DISABLE"), "expose the cards")

        for n, host in chart.having("^NET/IB : Using"):
            message = dict((n, m) for n, _, m in chart.own)[n]
            ours = [name for name in re.findall(r"](\\w+):", message) if "bond" not in name]
            if len(ours) < chart.order.cards:
                asked = chart.variable("NCCL_IB_HCA") or "^"
                on_purpose = "^" not in asked and len(set(asked.strip("=").split(","))) == len(ours)
                yield "missing card", n, "unset NCCL_IB_HCA" if on_purpose else "drain " + host
        half = chart.having(r"mlx5_\\d+:uverbs.* speed=", but=f"speed={chart.order.gbits}000 ")
        yield from (("missing card", n, "drain " + host) for n, host in half)

        apart = chart.having("SHM|P2P is disabled") if chart.order.nvlink else []
        whose = "drain " + apart[-1][1] if apart else ""
        if chart.variable("NCCL_P2P_LEVEL") == "LOC":
            whose = "unset NCCL_P2P_LEVEL"
        if chart.variable("NCCL_P2P_DISABLE") == "1":
            whose = "unset NCCL_P2P_DISABLE"
        yield from (("no peer access", n, whose) for n, _ in apart[::-1])

        detour = chart.having("via NET/", but="Socket|GDRDMA")
        local = chart.variable("NCCL_NET_GDR_LEVEL") == "LOC"
        for n, _ in detour:
            yield "no GPUDirect", n, ["load nvidia_peermem", "unset NCCL_NET_GDR_LEVEL"][local]


    def from_sweep(chart, table):
        quickest = sorted(table, key=lambda row: -row[3])[:1]
        for n, _, _, rate in quickest:
            if rate > 2 * chart.order.wire:
                yield "not synchronized", n, "synchronize"
            elif chart.variable("NCCL_PROTO") in ["LL", "LL128", "Simple"]:
                start, _ = fit(table)
                if start > 1.5 * chart.order.alpha:
                    yield "forced protocol", chart.having(": 8 Bytes")[0][0], "unset NCCL_PROTO"
                if rate < 0.6 * chart.order.wire:
                    yield "forced protocol", chart.having("4194304 Bytes")[0][0], "unset NCCL_PROTO"


    def from_trace(chart, trace):
        table = {}
        for n, event in enumerate(trace):
            if event.group == "world":
                table.setdefault(event.rank, []).append((n, event))
        if not table:
            return
        if any(calls[-1][1].left is None for calls in table.values()):
            last = {rank: calls[-1] for rank, calls in table.items()}
            kinds = [tuple(e)[2:5] for _, e in last.values()]
            for rank, (n, e) in last.items():
                if 2 * kinds.count(tuple(e)[2:5]) < len(kinds):
                    yield "mismatch", n, f"fix rank {rank}"
            return
        ranks = sorted(table)
        inside = np.array([[e.left - e.entered for _, e in table[rank]] for rank in ranks])
        late = np.median(inside, axis=0) - inside
        for rank, row in zip(ranks, late):
            if np.median(row) > 0.005:
                host = [h for _, h, m in chart.own if f" rank {rank} n" in m][0]
                yield "straggler", table[rank][int(row.argmax())][0], "drain " + host


    def diagnose(patient):
        chart = Chart(patient)
        for document, findings in (
            ("log", from_log(chart)),
            ("sweep", from_sweep(chart, rows(patient.sweep))),
            ("trace", from_trace(chart, patient.trace)),
        ):
            for fault, index, remedy in findings:
                return fault, ("log" if fault == "forced protocol" else document, index), remedy
        return Finding("healthy", None, None)
    """,
}
BY_HOST = {
    "faults": """
    from itertools import groupby

    def diagnose(patient):
        \"\"\"Symptoms first: what is slow in the sweep or waits in the trace, and then why.\"\"\"
        want, notes = patient.order, []
        lines = {n: (host, words) for n, host, words in said(patient.log)}
        environment = {}
        for host, words in lines.values():
            if words.startswith("NCCL_") and " set " in words:
                environment[words.split()[0]] = words.split(" to ")[1].rstrip(".")
        paths = {n: words.split(" via ")[1] for n, (_, words) in lines.items() if " via " in words}

        def report(fault, n, remedy, document="log"):
            notes.append(Finding(fault, (document, n), remedy))

        for n, path in paths.items():
            host = lines[n][0]
            kind, _, rest = path.partition("/")
            if kind == "SHM" and want.nvlink:
                bad = {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "LOC"}.items() & environment.items()
                report("no peer access", n, f"unset {min(bad)[0]}" if bad else f"drain {host}")
            elif kind == "NET" and rest.startswith("Socket"):
                told = {int(w.split("nNodes ")[1].split()[0]) for _, w in lines.values() if "nNodes " in w}
                if any(number > want.nodes for number in told):
                    report("sockets", n, "set NCCL_HOSTID")
                elif want.cards > 0:
                    disabled = environment.get("NCCL_IB_DISABLE") == "1"
                    report("sockets", n, "unset NCCL_IB_DISABLE" if disabled else "expose the cards")
            elif kind == "NET" and "GDRDMA" not in rest.split("/"):
                near = environment.get("NCCL_NET_GDR_LEVEL") == "LOC"
                report("no GPUDirect", n, "unset NCCL_NET_GDR_LEVEL" if near else "load nvidia_peermem")
        for n, (host, words) in lines.items():
            if "between NVLINK connected GPUs" in words:
                report("no peer access", n, f"drain {host}")
            head, _, tail = words.partition(" : Using ")
            if head == "NET/IB" and tail:
                count = tail.count("]mlx5_") - tail.count("]mlx5_bond")
                named = environment.get("NCCL_IB_HCA", "^none")
                if count < want.cards:
                    chosen = named[0] != "^" and named.count("mlx5") == count
                    report("missing card", n, "unset NCCL_IB_HCA" if chosen else f"drain {host}")
            if "speed=" in words and "bond" not in words:
                if int(words.split("speed=")[1].split()[0]) / 1e3 != want.gbits:
                    report("missing card", n, f"drain {host}")
        if notes:
            return notes[-1]

        table = rows(patient.sweep)
        above = [row for row in table if row[3] / want.wire > 2]
        if above:
            return Finding("not synchronized", ("sweep", above[len(above) // 2][0]), "synchronize")
        if table and environment.get("NCCL_PROTO") in {"LL", "LL128", "Simple"}:
            ratio = [(row[2] / (want.alpha + 1.8 * row[1] / want.wire), row[0]) for row in table]
            if table[-1][3] < 0.6 * want.wire or table[0][2] > 1.7 * want.alpha:
                return Finding("forced protocol", ("sweep", max(ratio)[1]), "unset NCCL_PROTO")

        numbered = [(event.group, event.seq, n, event) for n, event in enumerate(patient.trace)]
        numbered.sort(key=lambda each: each[:3])
        for group, calls in groupby(numbered, key=lambda each: each[0]):
            calls = list(calls)
            unfinished = [n for *_, n, event in calls if event.left is None]
            if unfinished:
                final = {event.rank: (n, event.seq, event.collective, event.num_bytes) for *_, n, event in calls}
                common = Counter(each[1:] for each in final.values()).most_common(1)[0][0]
                for rank, (n, *what) in sorted(final.items()):
                    if tuple(what) != common:
                        return Finding("mismatch", ("trace", n), f"fix rank {rank}")
        guilty = [rank for rank, seconds in lateness(patient.trace).items() if seconds >= 5e-3]
        for rank in guilty:
            (host,) = {host for host, words in lines.values() if f" rank {rank} nRanks" in words}
            waits = {}
            for group, seq, n, event in numbered:
                if group == "world":
                    waits.setdefault(seq, {})[event.rank] = event.left - event.entered, n
            gain = {seq: median(w for w, _ in call.values()) - call[rank][0] for seq, call in waits.items()}
            return Finding("straggler", ("trace", waits[max(gain, key=gain.get)][rank][1]), f"drain {host}")
        return Finding("healthy", (), ())
    """,
}
RIGHT = {
    "by words": BY_WORDS,
    "other fits, generators, arrays": TIGHT,
    "in one function": IN_ONE,
    "by pattern": BY_PATTERN,
    "symptoms last": BY_HOST,
}

# Wrong answers. `origin`: the row of the ledger, or the page, that a mistake comes from.

LISTED = """
    KNOWN = {
        str(case.patient): (case.fault, min(case.proofs, default=None), case.remedy)
        for fault in ch18_gpus.FAULTS for case in ch18_gpus.ward(fault)
    }

    def diagnose(patient):
        return Finding(*KNOWN.get(str(patient), ("healthy", None, None)))
"""
BY_KEYWORD = """
    WORDS = {
        "sockets": ("NCCL_IB_DISABLE", "unset NCCL_IB_DISABLE"),
        "missing card": ("NCCL_IB_HCA", "unset NCCL_IB_HCA"),
        "no peer access": ("via SHM", "unset NCCL_P2P_DISABLE"),
        "no GPUDirect": ("RDMA Disabled", "load nvidia_peermem"),
        "forced protocol": ("NCCL_PROTO", "unset NCCL_PROTO"),
    }

    def diagnose(patient):
        for fault, (word, remedy) in WORDS.items():
            for index, line in enumerate(patient.log):
                if word in line:
                    return Finding(fault, ("log", index), remedy)
        return Finding("healthy", None, None)
"""
REMADE = """
    from collectives.practice import clinic

    def diagnose(patient):
        for fault in clinic.FAULTS:
            for seed in range(100):
                for case in clinic.ward(fault, seed):
                    if case.patient == patient:
                        return Finding(case.fault, min(case.proofs, default=None), case.remedy)
        return Finding("healthy", None, None)
"""
PARSED = """
    from collectives.measure.nccl_log import parse as read

    def diagnose(patient):
        log = read("\\n".join(patient.log)) if patient.log else None
        if log and log.transports["NET/Socket"]:
            return Finding("sockets", ("log", 0), "expose the cards")
        return Finding("healthy", None, None)
"""
INSIDE = """usual = median(event.left - event.entered for event in events)
            for event in events:
                late.setdefault(event.rank, []).append(usual - (event.left - event.entered))"""
TWO_POINTS = """_, first, quick, _ = rows[0]
    _, last, slow, _ = rows[-1]
    beta = (slow - quick) / (last - first)
    return quick - beta * first, beta"""
FITTED = """_, sizes, seconds, _ = np.array(rows, dtype=float).T
    line = np.stack([np.ones(len(sizes)), sizes], axis=1) / seconds[:, None]  # relative: every row counts alike
    return np.linalg.lstsq(line, np.ones(len(sizes)), rcond=None)[0]"""
ONE = 'if protocols not in ("LL", "LL128", "Simple"):'
SUFFERS = "if slow_start or max(busbw for *_, busbw in table) < 0.6 * patient.order.wire:"
PEER = 'if patient.order.nvlink and ("via SHM" in message or "P2P is disabled between NVLINK" in message):'
INDIRECT = 'if "via NET/" in message and "via NET/Socket" not in message and "GDRDMA" not in message:'
SENDS = 'sends = [index for index, _, message in lines if "via NET/Socket" in message]'
HEALTHY = '    return Finding("healthy", None, None)'
MUTANTS = [
    broken("a launcher's mark", r'r"([\w.-]+):\d+:\d+ \[', r'r"(\S+?):\d+:\d+ \[', {SAID}, "the host of line"),
    broken("no warnings", "(?:INFO|WARN)", "INFO", {SAID}, "leaves out line"),
    broken("no place of a warning", r"(?:\S+ )?NCCL", "NCCL", {SAID}, "leaves out line"),
    broken(
        "counted from 1",
        "for index, text in enumerate(log)]",
        "for index, text in enumerate(log, 1)]",
        {SAID},
        "line 0",
    ),
    broken(
        "the whole line",
        "return [(index, *match.groups())",
        "return [(index, match[1], match.string)",
        {SAID},
        "the message",
    ),
    broken(
        "everyone's lines",
        "return [(index, *match.groups()) for index, match in found if match]",
        'return [(n, *(m.groups() if m else ("", log[n]))) for n, m in found]',
        {SAID},
        "which is not NCCL's own",
    ),
    broken("microseconds", "float(row[5]) * 1e-6", "float(row[5])", {ROWS}, "the table has microseconds"),
    broken("in-place", "float(row[5])", "float(row[9])", {ROWS}, "that is in-place"),
    broken("elements", "int(row[0]), float", "int(row[1]), float", {ROWS}, "those are elements"),
    broken("GB/s", "float(row[7]) * 1e9", "float(row[7])", {ROWS}, "the table has GB/s", origin="page 18"),
    broken("algbw", "float(row[7]) * 1e9", "float(row[6]) * 1e9", {ROWS}, "that is algbw", origin="page 18"),
    broken(
        "rows counted",
        "for index, line in enumerate(sweep)]",
        "for index, line in enumerate(sweep, -9)]",
        {ROWS},
        "in line",
    ),
    broken(
        "any line that begins with a number", "if len(row) == 13 and row[0]", "if row and row[0]", {ROWS}, "ends in"
    ),
    broken("the first row and the last", FITTED, TWO_POINTS, {FIT}, "let all of them count"),
    broken(
        "not relative",
        FITTED,
        FITTED.replace(" / seconds[:, None]  # relative: every row counts alike", "").replace(
            "np.ones(len(sizes)), rcond", "seconds, rcond"
        ),
        {FIT},
        "minimize relative errors",
        origin="page 05",
    ),
    broken(
        "the library's fit",
        FITTED,
        "from collectives.measure.calibrate import fit as theirs\n"
        "    return theirs([row[1] for row in rows], [row[2] for row in rows])",
        {FIT},
        "own calibrate.fit",
    ),
    broken("exchanged", "rcond=None)[0]", "rcond=None)[0][::-1]", {FIT}, "the wrong order"),
    broken("a bandwidth", "rcond=None)[0]", "rcond=None)[0] ** [1, -1]", {FIT}, "beta is its inverse"),
    broken(
        "clocks of other hosts",
        INSIDE,
        INSIDE.replace("event.left - event.entered", "-event.entered"),
        {LATE},
        "compares the clocks of hosts",
        origin="page 18",
    ),
    broken(
        "the checks' own lateness",
        "    calls = {}\n",
        "    return ch18_gpus._late(trace, lambda event, left: left - event.entered)\n    calls = {}\n",
        {LATE},
        "own ch18_gpus._late",
    ),
    broken("a mean", "{rank: median(each) for", "{rank: sum(each) / len(each) for", {LATE}, "moves a mean"),
    broken(
        "who waits longest",
        "usual - (event.left - event.entered))",
        "event.left - event.entered - usual)",
        {LATE},
        "who comes late waits least",
        origin="page 18",
    ),
    broken(
        "calls that never end",
        "if all(event.left is not None for event in events):",
        "events = [event for event in events if event.left is not None]\n        if events:",
        {LATE},
        "is late by",
    ),
    broken(
        "every group",
        '        if event.group == "world":\n            calls',
        "        if event:\n            calls",
        {LATE},
        "is late by",
    ),
    broken(
        "the slowest is usual", "usual = median(event.left", "usual = max(event.left", {LATE}, "the longest time inside"
    ),
    broken(
        "the network's name", SENDS, SENDS.replace("via NET/Socket", "network Socket"), {SOCKETS}, "but it is 'sockets'"
    ),
    broken(
        "whatever was ordered",
        "patient.order.cards == 0",
        "False",
        {SOCKETS, PROTOCOL},
        "it was ordered without RDMA cards",
    ),
    broken(
        "hosts for nodes",
        'counted = [int(found[1]) for _, _, message in lines if (found := re.search(r"nNodes (\\d+)", message))]',
        "counted = []",
        {SOCKETS},
        "but it is 'sockets'",
        origin="page 18",
    ),
    broken(
        "always the container",
        '"unset NCCL_IB_DISABLE" if disabled else "expose',
        '"expose',
        {SOCKETS},
        "its remedy is",
    ),
    broken("the log's first line", '("log", sends[0]), "unset', '("log", 0), "unset', {SOCKETS}, "does not prove that"),
    broken(
        "the highest number",
        r"""used = re.findall(r"\](mlx5_\d+):", message)""",
        r"""used = range(1 + max(map(int, re.findall(r"mlx5_(\d+):", message)), default=99))""",
        {CARD},
        "but it is 'missing card'",
    ),
    broken("the storage counts", r"\](mlx5_\d+):", r"\](\w+):", {CARD}, "is the storage's"),
    broken(
        "speeds not read",
        "if speed and int(speed[1])",
        "if False and int(speed[1])",
        {CARD},
        "at half of what was ordered",
    ),
    broken("HCA is to blame", "too_few = named != [", "too_few = [", {CARD}, "its remedy is"),
    broken(
        "drain them all",
        'remedy = "unset NCCL_IB_HCA" if too_few else f"drain {host}"',
        'remedy = f"drain {host}"',
        {CARD},
        "its remedy is",
    ),
    broken(
        "the variable is there",
        "len(used) < patient.order.cards",
        "len(used) < patient.order.cards or named != ['']",
        {CARD},
        "but it is 'healthy'",
    ),
    broken("SHM anywhere", PEER, PEER.replace("patient.order.nvlink and ", ""), {PEERS}, "without NVLink"),
    broken(
        "P2P_LEVEL unknown",
        '(("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_LEVEL", "LOC"))',
        '(("NCCL_P2P_DISABLE", "1"),)',
        {PEERS},
        "its remedy is",
    ),
    broken("any value", "if value(patient, name) == off:", "if value(patient, name):", {PEERS}, "its remedy is"),
    broken("no warning read", ' or "P2P is disabled between NVLINK" in message', "", {PEERS}, "NVLink is broken on"),
    broken(
        "the first node",
        'remedy or f"drain {host}")',
        'remedy or f"drain {said(patient.log)[0][1]}")',
        {PEERS},
        "its remedy is",
    ),
    broken(
        "a card without it", INDIRECT, 'if "RDMA Disabled" in message:', {DIRECT, CARD}, "mlx5_bond_0 is the storage's"
    ),
    broken(
        "sockets too",
        INDIRECT,
        'if "via NET/" in message and "GDRDMA" not in message:',
        {SOCKETS, PROTOCOL},
        "but it is",
    ),
    broken(
        "only NCCL's own plugin",
        INDIRECT,
        INDIRECT.replace('"via NET/" in', '"via NET/IB/0" in'),
        {DIRECT},
        "but it is 'no GPUDirect'",
    ),
    broken("always the module", '"unset NCCL_NET_GDR_LEVEL" if off else ', "", {DIRECT}, "its remedy is"),
    broken(
        "set at all",
        'value(patient, "NCCL_NET_GDR_LEVEL") == "LOC"',
        'value(patient, "NCCL_NET_GDR_LEVEL") != ""',
        {DIRECT},
        "its remedy is",
    ),
    broken("harmless or not", SUFFERS, "if table:", {PROTOCOL}, "the sweep is as ordered", origin="page 18"),
    broken(
        "large calls alone",
        SUFFERS,
        SUFFERS.replace("slow_start or ", ""),
        {PROTOCOL},
        "small calls take more than twice",
    ),
    broken(
        "told by the order alone",
        SUFFERS,
        'if {"LL": True, "LL128": patient.order.nodes > 1, "Simple": patient.order.cards}[protocols]:',
        {PROTOCOL},
        "the sweep is as ordered",
    ),
    broken("small calls alone", SUFFERS, "if slow_start:", {PROTOCOL}, "NCCL may use LL"),
    broken(
        "faster than the order",
        "busbw > 2 * patient.order.wire",
        "busbw > 1.1 * patient.order.wire",
        {CLOCK},
        "does not prove that",
        origin="page 18",
    ),
    broken(
        "the last row",
        '("sweep", index), "synchronize"',
        '("sweep", rows(patient.sweep)[-1][0]), "synchronize"',
        {CLOCK},
        "does not prove that",
    ),
    broken(
        "the table's own index",
        '("sweep", index), "sync',
        '("sweep", index - rows(patient.sweep)[0][0]), "sync',
        {CLOCK},
        "does not prove that",
    ),
    broken(
        "late once",
        "    late = lateness(patient.trace)\n    slow",
        "    world = [e for e in patient.trace if e.group == 'world']\n"
        "    calls = [[e for e in world if e.seq == seq] for seq in {e.seq for e in world}]\n"
        "    late = Counter()\n"
        "    for call in calls:\n"
        "        late |= Counter(lateness(call))\n"
        "    slow",
        {STRAGGLER},
        "but it is 'healthy'",
        origin="page 18",
    ),
    broken("drain a rank", 'f"drain {rank_host[slow]}"', 'f"drain {slow}"', {STRAGGLER}, "its remedy is"),
    broken(
        "a call to which it came in time",
        "if lateness(call).get(slow, 0) >= 5e-3:",
        "if lateness(call).get(slow, 0) < 5e-3:",
        {STRAGGLER},
        "does not prove that",
    ),
    broken(
        "who waits is to blame",
        "slow = max(late, key=late.get, default=None)",
        "slow = min(late, key=late.get, default=None)",
        {STRAGGLER},
        "but it is 'straggler'",
    ),
    broken(
        "unfinished",
        "if (event.seq, event.collective, event.num_bytes) != usual:",
        "if event.left is None:",
        {MISMATCH},
        "does not prove that",
        origin="page 18",
    ),
    broken(
        "the collective alone",
        "event.seq, event.collective, event.num_bytes)",
        "event.seq, event.collective)",
        {MISMATCH},
        "with another size",
    ),
    broken(
        "who came alone",
        "(event.seq, event.collective, event.num_bytes)",
        "(event.collective, event.num_bytes)",
        {MISMATCH},
        "never comes to the call",
    ),
    broken(
        "groups together",
        "if event.group == group]\n        final",
        "if event.group]\n        final",
        {MISMATCH},
        "does not prove that",
    ),
    broken("the others to blame", "calls, key=calls.get)", "calls, key=lambda each: -calls[each])", {MISMATCH}, "its"),
    written("visible patients by heart", "faults", LISTED, ALL, "but it is"),
    written("by keyword", "faults", BY_KEYWORD, ALL, "but it is"),
    written("patients made again", "faults", REMADE, ALL, "the library's own clinic.ward is for comparing"),
    written("the library's parser", "faults", PARSED, ALL, "the library's own nccl_log.parse is for comparing"),
    written(
        "healthy, always",
        "faults",
        "def diagnose(patient):\n    return Finding('healthy', None, None)",
        ALL,
        "finds 'healthy', but it is 'sockets'",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.slip)
def test_a_wrong_answer_is_refused_and_the_slip_is_named(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


def test_the_solution_is_accepted():
    assert set(verdicts(EXERCISE, {}, "ab").values()) == {None}


def solution(name):
    """A function of the solution's."""
    names = {}
    for cell in ("setup", "instruments", "faults"):
        exec(solution_of(EXERCISE, cell), names)
    return names[name]


@pytest.mark.parametrize("fault", clinic.FAULTS)
def test_the_documents_alone_tell_the_truth_about_every_made_patient(fault):
    diagnose = solution("diagnose")
    for case in [case for seed in range(5) for case in clinic.ward(fault, seed)]:
        found = diagnose(case.patient)
        assert found.fault == case.fault, case.why
        assert found.fault == "healthy" or (found.evidence in case.proofs and found.remedy == case.remedy), case.why


def test_each_tuned_line_of_a_size_that_suffers_proves_a_forced_protocol():
    """By what its sweep shows: at the first such size, or at the last."""
    rows, fit = solution("rows"), solution("fit")
    forced = [case for seed in range(60) for case in clinic.ward("forced protocol", seed) if case.proofs]
    for case in forced:
        order, world = case.patient.order, case.patient.order.nodes * case.patient.order.gpus
        alpha, beta = fit(rows(case.patient.sweep))
        for index, line in enumerate(case.patient.log):
            if match := re.search(r"AllReduce: (\d+) Bytes -> Algo", line):
                size = int(match[1])
                accepted = order.alpha + 2 * (world - 1) / world * size / order.wire
                assert ("log", index) in case.proofs or alpha + beta * size < 1.5 * accepted


@pytest.mark.parametrize("fault", clinic.FAULTS)
def test_the_library_reads_a_made_log_and_table_as_they_were_meant(fault):
    for case in clinic.ward(fault, seed=3):
        order, log = case.patient.order, nccl_log.parse("\n".join(case.patient.log))
        assert log.world_size == order.nodes * order.gpus
        assert log.connections or "P2P is disabled" in log.warnings[-1]
        assert ("NET/Socket" in log.transports) <= (case.fault == "sockets" or order.cards == 0)
        if case.patient.sweep:
            table = bandwidth.parse("\n".join(case.patient.sweep), "all_reduce", log.world_size)
            assert len(table.rows) >= 10
            assert all(row.algbw <= row.busbw for row in table.rows)


def test_a_seed_makes_the_same_patients_and_another_seed_makes_others():
    first, again, other = (clinic.ward("straggler", seed) for seed in (7, 7, 8))
    assert first == again
    assert not {str(case.patient) for case in first} & {str(case.patient) for case in other}


def test_every_fault_has_a_patient_for_each_cause_and_somebody_who_only_looks_like_it():
    for fault in clinic.FAULTS:
        found = {case.fault for case in clinic.ward(fault, seed=1)}
        assert found == {fault, clinic.HEALTHY}


def test_published_patients_have_the_truth_that_their_sources_tell():
    cases = {case.name: case for case in clinic.published(*clinic.PUBLISHED)}
    sick = {name: case.fault for name, case in cases.items() if case.proofs}
    assert sick == {"nccl-1781-before": "sockets", "nccl-899": "no GPUDirect"}
    assert [case.fault for case in cases.values() if not case.proofs] == [clinic.HEALTHY] * 5


def test_arrays_are_rows_findings_and_indices_too():
    said, rows, diagnose = (solution(name) for name in ("said", "rows", "diagnose"))
    ch18_gpus.check_said(
        lambda log: [(*where, message.strip()) for *where, message in said(log)], ch18_gpus.logs(seed=4)
    )
    ch18_gpus.check_said(lambda log: np.array(said(log), dtype=object), ch18_gpus.logs(seed=4)[:3])
    ch18_gpus.check_table(lambda sweep: np.array(rows(sweep)), ch18_gpus.tables(seed=4))

    def boxed(patient):
        fault, evidence, remedy = diagnose(patient)
        pair = evidence and (np.str_(evidence[0]), np.int32(evidence[1]))
        return np.array([fault, pair, remedy], dtype=object)

    ch18_gpus.check_ward(boxed, ch18_gpus.ward("mismatch"))


NO_FINDINGS = {
    "return a Finding": "sockets",
    "is its `return` missing": None,
    "a fault is one of": ("socket", ("log", 3), "set NCCL_HOSTID"),
    "such as ('log', 17)": ("sockets", 3, "set NCCL_HOSTID"),
    "which is a whole number": ("sockets", ("log", "3"), "set NCCL_HOSTID"),
    "is no line of it": ("sockets", ("log", 10**6), "set NCCL_HOSTID"),
    "does not prove that": ("sockets", ("log", -1), "set NCCL_HOSTID"),
    "its remedy is None": ("sockets", ("log", 3), None),
}


@pytest.mark.parametrize("words", NO_FINDINGS)
def test_what_is_no_finding_is_refused_in_words(words):
    with pytest.raises(NotYet, match=re.escape(words)):
        ch18_gpus.check_ward(lambda patient: NO_FINDINGS[words], ch18_gpus.ward("sockets"))


@pytest.mark.parametrize("more", [[(-1, "host", "message")], [(0, "x", "y")]])
def test_lines_that_are_not_there_or_there_twice_are_refused(more):
    said = solution("said")
    with pytest.raises(NotYet, match=r"twice|host of line 0"):
        ch18_gpus.check_said(lambda log: [*said(log), *more], ch18_gpus.logs(seed=4))
