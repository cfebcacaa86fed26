"""A JSON format for schedules, which other programs can write; reading checks every field.

    {"format": "collectives-schedule", "version": 1,
     "name": "ring all_reduce", "collective": "all_reduce", "world_size": 4, "num_chunks": 4,
     "steps": [
      {"phase": "reduce_scatter", "transfers": [[3, 0, 1, "reduce"], [0, 1, 2, "reduce"]]}]}

| field | meaning |
|---|---|
| `format`, `version` | always `"collectives-schedule"` and `1` |
| `world_size`, `num_chunks` | the number of ranks, and of chunks in each rank's buffer |
| `name` | text; optional, like the next three fields |
| `collective` | the contract that the schedule is meant to meet: a name in `contracts.BY_NAME` |
| `root` | the root of a rooted collective: a rank |
| `lengths` | the elements of each chunk, `num_chunks` numbers, if chunks are not cut evenly |
| `steps` | a list; each step has `transfers` and may have a `phase`, a text |

A transfer is `[src, dst, chunk, combine]`, where `combine` is "copy" or "reduce". Two more numbers may follow: `into`,
the chunk to write (by default, or if null, the chunk it reads), and `count`, the number of adjacent chunks (by default
1). All transfers of a step read the state before the step; their order doesn't affect the result.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from .. import contracts
from ..schedule import COPY, REDUCE, Schedule, ScheduleError, Step, Transfer, step_fault

FORMAT, VERSION = "collectives-schedule", 1

# Limits that keep the time to read an untrusted file short.
MOST_CHARACTERS = 2**24
MOST_LETTERS = 200  # characters of a name
MOST_SLOTS = 2**22  # ranks x chunks, as in the largest simulation
MOST_MOVED = 2**19  # chunks moved in all steps together, enough for a ring all-reduce on 512 ranks

NEEDED = {"format", "version", "world_size", "num_chunks", "steps"}
OPTIONAL = {"name", "collective", "root", "lengths"}


def to_json(schedule: Schedule) -> str:
    """Return `schedule` as JSON text with one line per step; `from_json` reads it back.

    Raises `ScheduleError` if the schedule is not valid, or larger than `from_json` reads.
    """
    _check_size(schedule.world_size, schedule.num_chunks, schedule.name)
    root = None if schedule.root is None else int(schedule.root)
    names = {"name": _text(schedule.name, "name"), "collective": _collective(schedule.collective), "root": root}
    header = {"format": FORMAT, "version": VERSION}
    header |= {field: value for field, value in names.items() if value is not None}
    header |= {"world_size": int(schedule.world_size), "num_chunks": int(schedule.num_chunks)}
    if schedule.lengths is not None:
        header["lengths"] = [int(length) for length in schedule.lengths]
    for moved in accumulate(len(step.singles) for step in schedule):
        _check_moved(moved, schedule.name)
    steps = []
    for number, step in enumerate(schedule):
        where = f"{schedule.name}, step {number}"
        if fault := step_fault(step, schedule.world_size, schedule.num_chunks):
            raise ScheduleError(f"{where}: {fault}")
        phase = {"phase": _text(step.phase, f"{where}: phase")} if step.phase else {}
        steps.append(json.dumps(phase | {"transfers": [_row(t) for t in step]}, ensure_ascii=False))
    lines = ",\n".join(f" {step}" for step in steps)
    return f'{json.dumps(header, ensure_ascii=False)[:-1]}, "steps": [\n{lines}]}}\n'


def from_json(text: str) -> Schedule:
    """Return the schedule in `text`, after checking that every transfer can run.

    Raises `ScheduleError` with one line that says where the fault is and what belongs there. This function doesn't
    check the schedule's result; use its contract for that.
    """
    data = _parsed(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ScheduleError(f'this is not a schedule; it must begin with {{"format": "{FORMAT}", "version": {VERSION}')
    if type(data.get("version")) is not int or data["version"] != VERSION:
        raise ScheduleError(f"the file has version {_short(data.get('version'))}; this library reads version {VERSION}")
    _check_fields(data, NEEDED, OPTIONAL, "the file")
    world_size = _whole(data["world_size"], 1, MOST_SLOTS, "world_size")
    num_chunks = _whole(data["num_chunks"], 1, MOST_SLOTS, "num_chunks")
    name = _text(data.get("name", "schedule"), "name")
    _check_size(world_size, num_chunks, name)
    steps, moved = [], 0
    for number, step in enumerate(_list(data["steps"], "steps")):
        where = f"step {number}"
        if not isinstance(step, dict):
            raise ScheduleError(f'{where} is {_short(step)}; it must be {{"transfers": [...]}}')
        _check_fields(step, {"transfers"}, {"phase"}, where)
        rows = _list(step["transfers"], f"{where}: transfers")
        size = world_size, num_chunks
        transfers = [_transfer(row, *size, f"{where}, transfer {place}") for place, row in enumerate(rows)]
        moved += max(
            1, sum(transfer.count for transfer in transfers)
        )  # count an empty step as one chunk: it takes time, too
        _check_moved(moved, where)
        steps.append(Step.of(transfers, _text(step.get("phase", ""), f"{where}: phase")))
    return Schedule.of(
        world_size,
        num_chunks,
        steps,
        name=name,
        collective=_collective(data.get("collective")),
        root=None if data.get("root") is None else _whole(data["root"], 0, world_size - 1, "root"),
        lengths=_lengths(data.get("lengths"), num_chunks),
    )


def _row(transfer: Transfer) -> list:
    """Return the list that describes a transfer, without trailing defaults."""
    row = [transfer.src, transfer.dst, transfer.chunk, transfer.combine]
    into = None if transfer.lands == transfer.chunk else transfer.lands
    if transfer.count > 1:
        return [*row, into, transfer.count]
    return row if into is None else [*row, into]


def _parsed(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise ScheduleError(f"the file has {len(text):,} characters; the limit is {MOST_CHARACTERS:,}")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ScheduleError(f"this is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ScheduleError("this is not a schedule: its lists are nested too deep") from None
    except ScheduleError:
        raise
    except ValueError as error:  # a number with thousands of digits
        raise ScheduleError(f"this is not a schedule: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict:
    """Return `pairs` as a dictionary; raise `ScheduleError` if a name occurs twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ScheduleError(f"the field {_short(repeated)} occurs twice")
    return fields


def _check_fields(data: dict, needed: set[str], optional: set[str], where: str) -> None:
    if missing := sorted(needed - set(data)):
        raise ScheduleError(f"{where} lacks the field {missing[0]!r}")
    if unknown := sorted(set(data) - needed - optional):
        known = ", ".join(sorted(needed | optional))
        raise ScheduleError(f"{where} has an unknown field {_short(unknown[0])}; use one of {known}")


def _transfer(row: Any, world_size: int, num_chunks: int, where: str) -> Transfer:
    if not isinstance(row, list) or not 4 <= len(row) <= 6:
        raise ScheduleError(
            f"{where} is {_short(row)}; it must be [src, dst, chunk, combine], optionally followed by into and count"
        )
    src, dst, chunk, combine, into, count = row + [None, 1][len(row) - 4 :]
    if combine not in (COPY, REDUCE):
        raise ScheduleError(f'{where}: combine is {_short(combine)}; it must be "copy" or "reduce"')
    return Transfer(
        _whole(src, 0, world_size - 1, f"{where}: src"),
        _whole(dst, 0, world_size - 1, f"{where}: dst"),
        _whole(chunk, 0, num_chunks - 1, f"{where}: chunk"),
        combine,
        None if into is None else _whole(into, 0, num_chunks - 1, f"{where}: into"),
        _whole(count, 1, num_chunks, f"{where}: count"),
    )


def _whole(value: Any, least: int, most: int, where: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ScheduleError(f"{where} is {_short(value)}; it must be a whole number from {least} to {most}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > MOST_LETTERS or not value.isprintable():
        raise ScheduleError(f"{where} is {_short(value)}; it must be a line of at most {MOST_LETTERS} characters")
    return value


def _list(value: Any, where: str) -> list:
    if not isinstance(value, list):
        raise ScheduleError(f"{where} is {_short(value)}; it must be a list")
    return value


def _collective(name: Any) -> str | None:
    if name is not None and name not in list(contracts.BY_NAME):
        raise ScheduleError(f"collective is {_short(name)}; it must be one of {', '.join(contracts.BY_NAME)}")
    return name


def _lengths(value: Any, num_chunks: int) -> tuple[int, ...] | None:
    if value is None:
        return None
    lengths = tuple(_whole(n, 0, 2**40, f"lengths[{i}]") for i, n in enumerate(_list(value, "lengths")))
    if len(lengths) != num_chunks:
        raise ScheduleError(f"lengths has {len(lengths)} numbers; it must have one for each of the {num_chunks} chunks")
    return lengths


def _check_size(world_size: int, num_chunks: int, where: str) -> None:
    if world_size * num_chunks > MOST_SLOTS:
        size = f"{world_size:,} ranks x {num_chunks:,} chunks"
        raise ScheduleError(f"{where} has {size}; a file may have at most {MOST_SLOTS:,} slots")


def _check_moved(moved: int, where: str) -> None:
    if moved > MOST_MOVED:
        raise ScheduleError(f"{where}: the steps move more than {MOST_MOVED:,} chunks, the limit for a file")


def _short(value: Any) -> str:
    """Return a value from the file as JSON, cut to 60 characters so that the message stays one line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
