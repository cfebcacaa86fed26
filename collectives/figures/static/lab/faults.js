// Why a schedule doesn't keep its promise, for those who are still building it: what no later step can repair, and otherwise what
// is still missing. Lab.wrongSlots decides whether the promise is kept.
(() => {
  const Lab = globalThis.CollectiveLab, { ofChunk, inWords, lastWrite, print, upper } = Lab;

  const bits = (counts) => counts.reduce((all, count, rank) => all | (count ? 1 << rank : 0), 0);

  // Whether every slot must end with its own row's chunk. An all-to-all moves chunks to other rows.
  const keepsRows = ({ origin }) => origin.every((row) => row.every((of, chunk) => of === chunk));

  // The sets of ranks, as bits, in the slots that a step may still add up to the finished slot.
  const usable = ({ parts, origin, repeats }, state, rank, chunk) => {
    const most = parts[rank][chunk], ranks = most.length;
    const fits = (slot) => ofChunk(slot, ranks) === origin[rank][chunk] && most.every((part, from) => slot[from] <= part || (repeats && part));
    return [...new Set(state.flat().filter(fits).map((slot) => bits(slot.slice(0, ranks))))].sort((a, b) => b - a);
  };

  // Whether some of the sets make up the wanted one, with no rank in two of them unless signals may repeat.
  const makeUp = (sets, wanted, repeats, held = 0, failed = new Set()) => {
    if (held === wanted) return true;
    if (failed.has(held)) return false;
    const open = wanted & ~held, first = open & -open;
    if (sets.some((set) => set & first && (repeats || !(set & held)) && makeUp(sets, wanted, repeats, held | set, failed))) return true;
    failed.add(held);
    return false;
  };

  // --- what no later step repairs: each returns {step, message} of a slot, or null ---

  const twice = ({ schedule, promise, states, excess }, rank, chunk) => {
    if (!excess(states.at(-1)[rank][chunk]).some(Boolean)) return null;
    const [step, words] = Lab.diagnose(schedule, promise, states, rank, chunk);
    return { step, message: `Chunk ${chunk} on rank ${rank} ${words}.` };
  };

  const misplaced = ({ schedule, promise, states }, rank, chunk) => {
    const held = ofChunk(states.at(-1)[rank][chunk], schedule.ranks);
    if (held === chunk || !keepsRows(promise)) return null;
    const [step, transfer] = lastWrite(schedule, rank, chunk, schedule.steps.length);
    return { step, message: `Rank ${rank} holds ${held < 0 ? "a mix of chunks" : `chunk ${held}`} in the row of chunk ${chunk}. Step ${step} put it there (${print(transfer)}).` };
  };

  const lost = ({ promise, states, seen }, rank, chunk) => {
    const { parts, origin, repeats } = promise, wanted = bits(parts[rank][chunk]), of = origin[rank][chunk], key = `${chunk} ${of}`;
    const possible = (state) => makeUp(usable(promise, state, rank, chunk), wanted, repeats);
    if (!seen.has(key)) seen.set(key, possible(states.at(-1)) ? 0 : states.findIndex((state) => !possible(state)));
    const after = seen.get(key);
    if (!after) return null;
    const left = usable(promise, states[after], rank, chunk).reduce((all, set) => all | set, 0), gone = parts[rank][chunk].flatMap((part, from) => (part && !(left & (1 << from)) ? [from] : []));
    const why = gone.length ? `no slot is left from which the data of ${inWords(gone)} could come` : "the sums left over overlap, so adding them counts a rank twice";
    return { step: after - 1, message: `Step ${after - 1} spoils chunk ${of}: ${why}.` };
  };

  // --- what a later step can still bring ---

  const missing = ({ promise, states, have }, [rank, chunk], cause) => {
    const counts = states.at(-1)[rank][chunk], ranks = promise.parts[rank][chunk].flatMap((part, from) => (counts[from] < part ? [from] : []));
    if (!have[rank][chunk]) return `Rank ${rank} still has nothing in chunk ${chunk}: no step writes it.`;
    return `Rank ${rank} still needs ${ranks.length ? `the data of ${inWords(ranks)}` : `what was in chunk ${promise.origin[rank][chunk]}`} in chunk ${chunk}.${cause ? ` ${upper(cause)}.` : ""}`;
  };

  // Returns null if the schedule keeps its promise. Otherwise the slot that `message` explains, the table of all that end wrong, whether
  // it is `spoilt` for all later steps, and the step that spoilt it, or null. `have`: which slots hold anything at the end.
  const faultOf = (schedule, promise, states, have) => {
    const table = Lab.wrongSlots(promise, states.at(-1));
    const slots = table.flatMap((row, rank) => row.flatMap((wrong, chunk) => (wrong ? [[rank, chunk]] : [])));
    if (!slots.length) return null;
    const at = { schedule, promise, states, have, excess: Lab.excesses(promise), seen: new Map() };
    for (const spoils of [twice, misplaced, lost]) {
      for (const [rank, chunk] of slots) {
        const fault = have[rank][chunk] || spoils === lost ? spoils(at, rank, chunk) : null;
        if (fault) return { wrong: table, rank, chunk, spoilt: true, ...fault };
      }
    }
    let [explained, cause] = [slots[0], ""];
    for (const slot of slots) {
      const [, words, guilty] = Lab.wronglyWritten(schedule, promise, states, ...slot);
      if (!guilty) continue;
      [explained, cause] = [slot, words];
      break;
    }
    const [rank, chunk] = explained;
    return { wrong: table, rank, chunk, spoilt: false, step: null, message: missing(at, explained, cause) };
  };

  Object.assign(Lab, { faultOf, keepsRows });
})();
