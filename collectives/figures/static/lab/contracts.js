// What each collective promises, and the proof that a schedule keeps the promise, as in collectives/contracts.py. The proof
// counts contributions, so it holds for all inputs. If it fails, the words name the rank, the chunk and the fault.
(() => {
  const Lab = globalThis.CollectiveLab, { COPY, REDUCE, singles, print, listed, refuse, ofChunk, lastWrite } = Lab;

  const table = (ranks, chunks, each) => Array.from({ length: ranks }, (_, rank) => Array.from({ length: chunks }, (_, chunk) => each(rank, chunk)));

  // Returns the rank that owns a chunk when ranks get equal shares in order.
  const owners = (ranks, chunks) => {
    if (chunks % ranks) refuse(`${chunks} chunks don't divide evenly among ${ranks} ranks; use a multiple of ${ranks}`);
    return (chunk) => Math.floor(chunk / (chunks / ranks));
  };

  // Every contract: who holds data before (`given`), who must hold a result after (`wanted`), and whose data the finished
  // chunk adds up (`adds`), each a test on rank and chunk.
  const all = () => true, on = (root) => (rank) => rank === root;
  const shards = (ranks, chunks) => {
    const owner = owners(ranks, chunks);
    return (rank, chunk) => owner(chunk) === rank;
  };
  const PROMISES = {
    all_reduce: () => ({ given: all, wanted: all, adds: all }),
    reduce_scatter: (ranks, chunks) => ({ given: all, wanted: shards(ranks, chunks), adds: all }),
    all_gather: (ranks, chunks) => ({ given: shards(ranks, chunks), wanted: all, adds: shards(ranks, chunks) }),
    broadcast: (ranks, chunks, root) => ({ given: on(root), wanted: all, adds: on(root) }),
    reduce: (ranks, chunks, root) => ({ given: all, wanted: on(root), adds: all }),
    scatter: (ranks, chunks, root) => ({ given: on(root), wanted: shards(ranks, chunks), adds: on(root) }),
    gather: (ranks, chunks, root) => ({ given: shards(ranks, chunks), wanted: on(root), adds: shards(ranks, chunks) }),
    // A transpose: chunk c of a rank ends with what its owner held for that rank.
    all_to_all: (ranks, chunks) => {
      const owner = owners(ranks, chunks), share = chunks / ranks;
      return { given: all, wanted: all, adds: (rank, chunk) => owner(chunk) === rank, origin: (rank, chunk) => rank * share + (chunk % share) };
    },
    all_to_all_uneven: (ranks, chunks) => {
      if (chunks !== ranks * ranks) refuse(`all_to_all_uneven needs a chunk for each pair of its ${ranks} ranks, not ${chunks} chunks`);
      const from = (rank, chunk) => Math.floor(chunk / ranks) === rank;
      return { given: from, wanted: (rank, chunk) => chunk % ranks === rank, adds: from };
    },
    barrier: () => ({ given: all, wanted: all, adds: all, repeats: true }), // its signals may arrive twice
  };

  // Returns a contract for one size: tables given, wanted and origin, and parts[rank][chunk], how often the finished slot
  // contains each rank's data.
  const terms = (name, { ranks, chunks, root }) => {
    const { given, wanted, adds, origin = (rank, chunk) => chunk, repeats = false } = PROMISES[name](ranks, chunks, root ?? 0);
    const everyone = Array.from({ length: ranks }, (_, rank) => rank);
    const of = Array.from({ length: chunks }, (_, chunk) => everyone.map((contributor) => Number(adds(contributor, chunk))));
    return { repeats, given: table(ranks, chunks, given), wanted: table(ranks, chunks, wanted), origin: table(ranks, chunks, origin), parts: table(ranks, chunks, (rank, chunk) => of[chunk]) };
  };

  // Whether the slot holds its finished chunk. `slot`: its counts.
  const finished = ({ parts, origin, repeats }, slot, rank, chunk) =>
    parts[rank][chunk].every((part, from) => (repeats ? slot[from] >= part : slot[from] === part)) && ofChunk(slot, parts.length) === origin[rank][chunk];

  // Returns a function that finds the contributors that a slot holds more often than any finished slot of its chunk does.
  const excesses = ({ parts, origin, repeats }) => {
    const ranks = parts.length, chunks = parts[0].length, most = table(chunks, ranks, () => 0);
    parts.forEach((row, rank) => row.forEach((slot, chunk) => slot.forEach((part, from) => {
      const of = most[origin[rank][chunk]];
      of[from] = Math.max(of[from], part);
    })));
    const ofAny = Array.from({ length: ranks }, (_, from) => Math.max(...most.map((row) => row[from])));
    return (slot) => {
      const limit = most[ofChunk(slot, ranks)] ?? ofAny;
      return ofAny.map((_, from) => !repeats && slot[from] > limit[from]);
    };
  };

  // Returns the table of the slots that end wrong. `final`: their counts at the end.
  const wrongSlots = (promise, final) => promise.wanted.map((row, rank) => row.map((wanted, chunk) => wanted && !finished(promise, final[rank][chunk], rank, chunk)));

  // Checks a schedule against a contract. Returns null if it keeps the promise for all inputs; otherwise the message, the
  // slot that it explains, the step that caused the fault (or null), and the table of all slots that end wrong.
  const check = (schedule, name = schedule.collective) => {
    const { ranks, chunks } = Lab.validate(schedule), promise = terms(name, schedule), states = Lab.contributions(schedule), final = states.at(-1);
    const wrong = wrongSlots(promise, final);
    const slots = table(ranks, chunks, (rank, chunk) => [rank, chunk]).flat().filter(([rank, chunk]) => wrong[rank][chunk]);
    if (!slots.length) return null;
    // A contribution counted twice often causes the other faults, so report that slot first.
    const excess = excesses(promise), double = slots.find(([rank, chunk]) => excess(final[rank][chunk]).some(Boolean));
    const [rank, chunk] = double ?? slots[0], [step, fault] = diagnose(schedule, promise, states, rank, chunk), others = slots.length - 1;
    const more = others > 1 ? ` ${others} more slots end wrong.` : others ? " One more slot ends wrong." : "";
    return { message: `${name} on ${ranks} ranks: chunk ${chunk} on rank ${rank} ${fault}.${more}`, rank, chunk, step, wrong };
  };

  // Returns why a slot ends wrong: [the step that caused it or null, the fault in words].
  const diagnose = (schedule, promise, states, rank, chunk) => {
    const { ranks } = schedule, final = states.at(-1), slot = final[rank][chunk], parts = promise.parts[rank][chunk];
    const those = (test) => parts.map((part, from) => from).filter((from) => test(slot[from], parts[from]));
    const faults = [], twice = promise.repeats ? [] : those((count, part) => count > part && part > 0);
    if (twice.length) faults.push(`holds ${inWords(twice)} ${Math.max(...twice.map((from) => slot[from])) === 2 ? "twice" : "too often"}`);
    const foreign = those((count, part) => count > 0 && part === 0), missing = those((count, part) => count < part);
    if (foreign.length) faults.push(`holds what ${inWords(foreign)} began with`);
    if (missing.length) faults.push(`lacks ${inWords(missing)}`);
    const origin = promise.origin[rank][chunk], sources = slot.slice(ranks).flatMap((count, from) => (count ? [from] : []));
    if (sources.some((from) => from !== origin)) faults.push(`holds what was in chunk${sources.length > 1 ? "s" : ""} ${listed(sources)} instead of chunk ${origin}`);
    let [step, cause] = (twice.length && twiceAdded(schedule, states, parts, chunk)) || wronglyWritten(schedule, promise, states, rank, chunk);
    const elsewhere = final.flatMap((row, other) => (parts.every((part, from) => row[chunk][from] === part) && ofChunk(row[chunk], ranks) === origin ? [other] : []));
    if (elsewhere.length) cause += `; the finished chunk ${chunk} is on ${inWords(elsewhere)}`;
    return [step, `${listed(faults)}: ${cause}`];
  };

  // Returns the first step that adds to `chunk`, on any rank, what its sum already contains: [step, words], or null.
  const twiceAdded = ({ ranks, steps }, states, parts, chunk) => {
    for (const [number, transfers] of steps.entries()) {
      const before = states[number], after = states[number + 1];
      for (const t of singles(transfers)) {
        if (t.into !== chunk || t.combine !== REDUCE) continue;
        const now = after[t.dst][t.into], then = before[t.dst][t.into], sent = before[t.src][t.chunk];
        const again = parts.flatMap((part, from) => (now[from] > part && now[from] > then[from] && sent[from] > 0 ? [from] : []));
        if (again.length) return [number, `step ${number} adds ${inWords(again)} a second time (${print(t)})`];
      }
    }
    return null;
  };

  // Traces the wrong value of a slot back through copies to its cause; returns [step, words, whether that step did something wrong].
  const wronglyWritten = (schedule, promise, states, rank, chunk) => {
    const { ranks, steps } = schedule, written = lastWrite(schedule, rank, chunk, steps.length);
    if (!written) return [null, "no step ever writes it"];
    let [number, t] = written;
    while (t.combine === COPY) {
      const earlier = lastWrite(schedule, t.src, t.chunk, number);
      if (earlier?.[1].combine !== COPY) break;
      [number, t] = earlier;
    }
    const before = states[number], sent = before[t.src][t.chunk].slice(0, ranks), parts = promise.parts[rank][chunk];
    if (!promise.given[t.src][t.chunk] && !lastWrite(schedule, t.src, t.chunk, number)) {
      return [number, `in step ${number} rank ${t.src} sends chunk ${t.chunk} before it has it (${print(t)})`, true];
    }
    const newer = before.findIndex((row) => {
      const rival = row[t.chunk];
      return sent.every((count, from) => rival[from] >= count && rival[from] <= parts[from]) && sent.some((count, from) => rival[from] > count);
    });
    if (t.combine === COPY && newer >= 0) {
      return [number, `step ${number} forwards a stale value (${print(t)}): ${inWords([newer])} already holds a newer sum`, true];
    }
    const lost = sent.flatMap((count, from) => (t.combine === COPY && before[t.dst][t.into][from] > count ? [from] : []));
    if (lost.length && parts.reduce((sum, part) => sum + part) > 1) {
      const everAdded = steps.some((each) => singles(each).some((other) => other.into === chunk && other.combine === REDUCE));
      return [number, `step ${number} copies over ${inWords(lost)}${everAdded ? ", which is not in what arrives" : " instead of adding"} (${print(t)})`, true];
    }
    const what = number === written[0] ? "the last to write it is" : "its value comes from";
    return [number, `${what} step ${number} (${print(t)}), which brings ${inWords(sent.flatMap((count, from) => (count ? [from] : [])))}`];
  };

  // Returns "rank 2" or "ranks 0, 1 and 3".
  const inWords = (numbers) => `rank${numbers.length > 1 ? "s" : ""} ${listed(numbers)}`;

  Object.assign(Lab, { terms, finished, excesses, wrongSlots, check, diagnose, wronglyWritten, inWords });
})();
