// What a picture of a schedule shows: the kind and contents of every slot after every step, as collectives/figures/slots.py
// finds them, in the form that schedule.js draws; and a step in words.
(() => {
  const Lab = globalThis.CollectiveLab, { COPY, REDUCE, singles, inWords, listed } = Lab;
  const FEW = 3, LISTED = 8; // up to 3 transfers get a sentence each; a sentence names at most 8

  // Without a contract, all slots are given and wanted; none is finished or wrong.
  const promiseOf = (schedule) => {
    if (schedule.collective) return Lab.terms(schedule.collective, schedule);
    const table = (value) => Array.from({ length: schedule.ranks }, () => Array.from({ length: schedule.chunks }, (_, chunk) => value(chunk)));
    const endless = new Array(schedule.ranks).fill(Infinity);
    return { repeats: false, given: table(() => true), wanted: table(() => true), origin: table((chunk) => chunk), parts: table(() => endless) };
  };

  // Returns all that a board shows of a schedule: `states` of counts, `kinds` of slots (see KINDS in slots.py), one table
  // before the first step and one after each, the contract's `fault` or null, and the share of the promise that is kept.
  // While the contract isn't met, any slot may still be needed at the end, so only what gets overwritten unread is stale.
  const analyse = (schedule) => {
    const { ranks, steps, collective } = schedule, promise = promiseOf(schedule), states = Lab.contributions(schedule), have = [promise.given];
    for (const transfers of steps) {
      const written = have.at(-1).map((row) => [...row]);
      for (const { dst, into } of singles(transfers)) written[dst][into] = true;
      have.push(written);
    }
    const fault = collective ? Lab.faultOf(schedule, promise, states, have.at(-1)) : null, excess = Lab.excesses(promise), inRows = collective && Lab.keepsRows(promise);
    const wanted = fault ? promise.wanted.map((row) => row.map(() => true)) : promise.wanted, needed = Lab.live(schedule, wanted);
    const kinds = states.map((state, number) => state.map((row, rank) => row.map((slot, chunk) => {
      if (!have[number][rank][chunk]) return "empty";
      if (!needed[number][rank][chunk]) return "stale";
      if (excess(slot).some(Boolean) || (inRows && Lab.ofChunk(slot, ranks) !== chunk)) return "wrong";
      if (Lab.finished(promise, slot, rank, chunk)) return "finished";
      return slot.slice(0, ranks).every((count, from) => count === Number(from === rank)) ? "own" : "partial";
    })));
    const goal = promise.wanted.flat().filter(Boolean).length, missing = fault ? fault.wrong.flat().filter(Boolean).length : 0;
    return { schedule, promise, states, have, kinds, fault, goal, done: goal - missing };
  };

  // A slot as schedule.js draws it: the letter of its kind, then the ranks that it holds, in hexadecimal.
  const slotText = ({ kinds, states, schedule: { ranks } }, number, rank, chunk) => {
    const kind = kinds[number][rank][chunk], counts = states[number][rank][chunk];
    return kind === "empty" ? "e" : kind[0] + Array.from({ length: ranks }, (_, from) => from.toString(16).repeat(Math.min(counts[from], 2))).join("");
  };

  // The lane above the row of cells for each transfer: 0 between neighbours and between rows; the shortest is the lowest.
  const lanesOf = (moves) => {
    const lanes = moves.map(() => 0), taken = new Map();
    const long = moves.map((t, number) => [Math.abs(t.src - t.dst), number]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    for (const [length, number] of long) {
      const { src, dst, chunk, into } = moves[number], left = Math.min(src, dst), right = Math.max(src, dst);
      if (length < 2 || chunk !== into) continue;
      let lane = 1;
      const spans = () => taken.get(`${chunk} ${lane}`) ?? [];
      while (spans().some(([from, until]) => left < until && from < right)) lane++;
      taken.set(`${chunk} ${lane}`, [...spans(), [left, right]]);
      lanes[number] = lane;
    }
    return lanes;
  };

  // The data of `Drawing.data` in slots.py.
  const drawing = (seen, colours, texts) => {
    const { schedule, states, kinds, fault } = seen, { ranks, chunks, steps } = schedule;
    const tables = states.map((_, number) => Array.from({ length: ranks * chunks }, (_, slot) => slotText(seen, number, Math.floor(slot / chunks), slot % chunks)));
    const adds = states.some((state) => state.some((row) => row.some((slot) => slot.slice(0, ranks).reduce((sum, count) => sum + count) > 1)));
    const places = adds || ["all_reduce", "reduce_scatter", "reduce", "barrier"].includes(schedule.collective) ? ranks : 1;
    const moves = steps.map((each, number) => {
      const parts = singles(each), lanes = lanesOf(parts), guilty = fault?.step === number;
      return parts.map((t, place) => [t.src, t.dst, t.chunk, Number(t.combine === REDUCE), lanes[place], Number(guilty && (kinds[number + 1][t.dst][t.into] === "wrong" || t.into === fault.chunk)), t.into]);
    });
    return {
      ranks, chunks, places, columns: Math.ceil(places / Math.ceil(places / 4)), colours: colours.slice(0, ranks), kinds: texts, alarms: [], first: tables[0],
      steps: moves.map((each, number) => ({ moves: each, changed: Object.fromEntries(tables[number + 1].flatMap((text, slot) => (text === tables[number][slot] ? [] : [[slot, text]]))) })),
    };
  };

  // What a slot holds, in words.
  const holds = (seen, number, rank, chunk) => {
    const counts = seen.states[number][rank][chunk].slice(0, seen.schedule.ranks), kind = seen.kinds[number][rank][chunk];
    if (kind === "empty") return "nothing yet";
    const twice = counts.flatMap((count, from) => (count > 1 ? [from] : [])), of = Lab.ofChunk(seen.states[number][rank][chunk], seen.schedule.ranks);
    return `${of === chunk ? "" : `${of < 0 ? "a mix of chunks" : `chunk ${of}`} of `}${inWords(counts.flatMap((count, from) => (count ? [from] : [])))}${twice.length ? `, ${inWords(twice)} more than once` : ""}${kind === "own" || kind === "partial" ? "" : `, ${kind}`}`;
  };

  const chunkWords = (first, count) => (count === 1 ? `chunk ${first}` : `chunks ${first} to ${first + count - 1}`);
  const sentence = ({ src, dst, chunk, into, count, combine }) =>
    `rank ${src} sends ${chunkWords(chunk, count)} to rank ${dst}, which ${combine === COPY ? "keeps a copy" : count === 1 ? "adds it" : "adds them"}${into === chunk ? "" : ` as its ${chunkWords(into, count)}`}`;

  // A step in words, for those who can't see the arrows: a sentence each for a few transfers, else one for all that add and
  // one for all that copy.
  const stepWords = ({ schedule: { steps } }, number) => {
    const each = steps[number] ?? [];
    if (!each.length) return `Step ${number} is empty.`;
    if (each.length <= FEW) return `Step ${number}: ${each.map(sentence).join("; ")}.`;
    const groups = [[REDUCE, "added"], [COPY, "copied"]].map(([combine, done]) => [each.filter((t) => t.combine === combine), done]);
    return `Step ${number}: ${groups.filter(([some]) => some.length).map(([some, done]) => {
      const more = some.length - LISTED, moves = some.slice(0, LISTED).map((t) => `${chunkWords(t.chunk, t.count)} from rank ${t.src} to ${t.dst}`);
      return `${some.length} ${some.length === 1 ? "message is" : "messages are"} ${done} on arrival: ${listed([...moves, ...(more > 0 ? [`${more} more`] : [])])}`;
    }).join("; ")}.`;
  };

  Object.assign(Lab, { analyse, drawing, slotText, holds, sentence, stepWords });
})();
