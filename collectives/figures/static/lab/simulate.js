// Runs a schedule on numbers, and counts contributions, as collectives/simulate.py and collectives/dataflow.py do.
(() => {
  const Lab = globalThis.CollectiveLab, { REDUCE, singles, refuse } = Lab;
  const SATURATED = 2 ** 31; // limit of a count: a barrier's signals multiply

  // Runs a step in place on `slots`, slots[rank][chunk], each an array. This alone defines what a step does.
  const apply = (transfers, slots) => {
    const moves = singles(transfers), arriving = moves.map(({ src, chunk }) => [...slots[src][chunk]]); // sends read the state before the step
    moves.forEach(({ dst, into, combine }, number) => {
      const held = slots[dst][into], here = arriving[number];
      for (let i = 0; i < held.length; i++) held[i] = combine === REDUCE ? held[i] + here[i] : here[i];
    });
  };

  // Returns what every rank holds after the schedule: `before` and the result are lists of numbers, one for each rank.
  const simulate = (schedule, before) => {
    const { ranks, chunks, steps, name } = Lab.validate(schedule), elements = before[0]?.length ?? 0;
    if (before.length !== ranks || before.some((buffer) => buffer.length !== elements)) {
      refuse(`${name} takes buffers of shape [${ranks} ranks, num_elements], not (${before.length}, ${elements})`);
    }
    const ends = Lab.bounds(schedule, elements);
    const slots = before.map((buffer) => Array.from({ length: chunks }, (_, chunk) => buffer.slice(ends[chunk], ends[chunk + 1])));
    for (const each of steps) {
      Lab.checkFit(each, ends);
      apply(each, slots);
    }
    return slots.map((held) => held.flat());
  };

  // Returns the contributions to every slot before the first step and after each step: states[step][rank][chunk] holds
  // how often the slot contains each rank's data, and after these `ranks` counts, how often data of each chunk.
  const contributions = ({ ranks, chunks, steps }) => {
    const counts = Array.from({ length: ranks }, (_, rank) => Array.from({ length: chunks }, (_, chunk) => {
      const slot = new Array(ranks + chunks).fill(0);
      slot[rank] = slot[ranks + chunk] = 1; // at first every slot holds the data of its own rank and its own chunk, once
      return slot;
    }));
    const copy = (slots) => slots.map((held) => held.map((slot) => [...slot]));
    const states = [copy(counts)];
    for (const each of steps) {
      apply(each, counts);
      for (const { dst, into } of singles(each)) counts[dst][into] = counts[dst][into].map((count) => Math.min(count, SATURATED));
      states.push(copy(counts));
    }
    return states;
  };

  // Returns the chunk whose data a slot holds; -1 if mixed or empty. `slot`: its counts, `ranks` first.
  const ofChunk = (slot, ranks) => {
    const first = slot.findIndex((count, place) => place >= ranks && count > 0);
    return slot.findLastIndex((count, place) => place >= ranks && count > 0) === first && first >= 0 ? first - ranks : -1;
  };

  // Returns which slots hold a value that is still needed, before the first step and after each: live[step][rank][chunk].
  // A send needs its slot, a copy doesn't need what it overwrites, and an addition needs its old value if the sum is needed.
  const live = ({ steps }, wanted) => {
    const needed = [wanted.map((row) => [...row])];
    for (const each of [...steps].reverse().map(singles)) {
      const before = needed.at(-1).map((row) => [...row]);
      for (const { dst, into, combine } of each) if (combine !== REDUCE) before[dst][into] = false;
      for (const { src, chunk } of each) before[src][chunk] = true;
      needed.push(before);
    }
    return needed.reverse();
  };

  // Returns the last transfer into the slot (rank, chunk) before step `before`: [step, transfer], or null.
  const lastWrite = ({ steps }, rank, chunk, before) => {
    for (let number = before - 1; number >= 0; number--) {
      const found = steps[number].findLast(({ dst, into, count }) => dst === rank && into <= chunk && chunk < into + count);
      if (found) return [number, singles([found])[chunk - found.into]];
    }
    return null;
  };

  Object.assign(Lab, { apply, simulate, contributions, ofChunk, live, lastWrite });
})();
