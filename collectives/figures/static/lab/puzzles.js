// Judges a puzzle: a contract to keep, within limits and rules. The puzzles themselves are data, in puzzles.json.
//
// `limits` are steps, sent (chunks that a rank sends in total), and seconds (for `bytes` on the machine `on`). `ports` is how
// many messages a rank may send, and receive, in a step (1 unless the puzzle says otherwise; null for any number). `wires` are
// the pairs of ranks with a cable. `single` allows one chunk a message. `busy` demands that every rank sends and receives in
// every step.
(() => {
  const Lab = globalThis.CollectiveLab;

  const portsOf = ({ ports = 1 }) => ports;

  // Returns why a step breaks the puzzle's rules, in one line; null if it doesn't.
  const stepTrouble = (puzzle, transfers, number) => {
    const ports = portsOf(puzzle), sends = new Map(), gets = new Map();
    const more = (count) => (count === 1 ? "one" : count);
    for (const t of transfers) {
      const { src, dst, count } = t;
      if (puzzle.wires && !puzzle.wires.some(([a, b]) => (a === src && b === dst) || (a === dst && b === src))) return `There is no cable between ranks ${src} and ${dst}.`;
      if (puzzle.single && count > 1) return `${Lab.print(t)} carries ${count} chunks; here a message carries one.`;
      sends.set(src, (sends.get(src) ?? 0) + 1);
      gets.set(dst, (gets.get(dst) ?? 0) + 1);
      if (ports !== null && sends.get(src) > ports) return `In step ${number}, rank ${src} already sends ${more(ports)} message${ports > 1 ? "s" : ""}. Use another step: press “Next step”.`;
      if (ports !== null && gets.get(dst) > ports) return `In step ${number}, rank ${dst} already receives ${more(ports)} message${ports > 1 ? "s" : ""}. Use another step: press “Next step”.`;
    }
    return null;
  };

  // Returns the puzzle's goals, each [text, met or not], after the contract, which comes first.
  const judge = (puzzle, schedule, fault) => {
    const { steps, ranks } = schedule, { limits } = puzzle, goals = [["The contract is met.", !fault]];
    const sent = Array.from({ length: ranks }, (_, rank) => steps.flat().reduce((sum, t) => sum + (t.src === rank ? t.count : 0), 0));
    if (limits.steps) goals.push([`At most ${limits.steps} step${limits.steps > 1 ? "s" : ""} (now ${steps.length})`, steps.length <= limits.steps]);
    if (limits.sent) goals.push([`A rank sends at most ${limits.sent} chunk${limits.sent > 1 ? "s" : ""} (now ${Math.max(...sent)})`, Math.max(...sent) <= limits.sent]);
    if (limits.seconds) {
      const { seconds } = Lab.price(schedule, puzzle.bytes, Lab.topology(ranks, puzzle.on.link, puzzle.on));
      goals.push([`At most ${Math.round(limits.seconds * 1e6)} µs (now ${Math.round(seconds * 1e6)})`, seconds <= limits.seconds]);
    }
    const trouble = steps.map((each, number) => stepTrouble(puzzle, each, number)).find(Boolean);
    if (trouble) goals.push([trouble, false]);
    if (puzzle.busy) {
      const idle = steps.flatMap((each, number) => sent.flatMap((_, rank) => (each.some((t) => t.src === rank) && each.some((t) => t.dst === rank) ? [] : [`rank ${rank} in step ${number}`])));
      goals.push([idle.length ? `No rank is idle (now ${idle[0]}${idle.length > 1 ? ` and ${idle.length - 1} more` : ""})` : "No rank is idle", !idle.length]);
    }
    return goals;
  };

  // The rules in words, for the card.
  const rules = (puzzle) => {
    const ports = portsOf(puzzle), times = ports === 1 ? "one message" : `${ports} messages`;
    return [
      ...(ports === null ? [] : [`In a step, a rank sends at most ${times} and receives at most ${times}.`]),
      ...(puzzle.single ? ["A message carries one chunk."] : []),
      ...(puzzle.wires ? [`Cables: ${puzzle.wires.map(([a, b]) => `${a}–${b}`).join(", ")}.`] : []),
    ];
  };

  // The schedule that a puzzle starts from.
  const startOf = ({ ranks, chunks, contract, root = null, title, start = "" }) => Lab.parse(start, { ranks, chunks, collective: contract, root, name: title });

  Object.assign(Lab, { stepTrouble, judge, rules, startOf });
})();
