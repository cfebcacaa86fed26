// The cost of a schedule in the alpha-beta model, as in collectives/price.py: a message of n bytes takes alpha + n beta
// seconds, plus n gamma if the receiver adds it to its own data. It starts when both its ranks have finished their earlier
// steps and their ports and network cards (NICs) are free.
//
// A topology is {ranks, link, gamma, exceptions, ports, across, perNode, perNic, overlapped}, as collectives/topology.py has
// it: `link` and `across` are [alpha, beta], and `exceptions` a list of [src, dst, alpha, beta].
(() => {
  const Lab = globalThis.CollectiveLab, { REDUCE, refuse } = Lab;

  const topology = (ranks, link, more = {}) => ({ ranks, link, gamma: 0, exceptions: [], ports: 1, across: null, perNode: null, perNic: 1, overlapped: false, ...more });

  const crosses = ({ perNode }, src, dst) => perNode !== null && Math.floor(src / perNode) !== Math.floor(dst / perNode);

  // Returns [alpha, beta] of the link from src to dst.
  const linkOf = (on, src, dst) => {
    const exception = on.exceptions.find(([from, to]) => from === src && to === dst);
    return exception ? exception.slice(2) : crosses(on, src, dst) ? on.across : on.link;
  };

  // Prices a schedule on a buffer of `bytes`, cut between elements of `itemsize` bytes. Returns the seconds, and of each
  // rank when it finishes and the bytes that it sends and receives; the bytes on each link by "src→dst"; and `spans`, the
  // messages of each step with their start, seconds and bytes.
  const price = (schedule, bytes, on, itemsize = 1) => {
    const { ranks, steps, name } = schedule;
    if (on.ranks !== ranks) refuse(`${name} is for ${ranks} ranks, the topology for ${on.ranks}`);
    if (itemsize < 1) refuse(`itemsize must be at least 1 byte, not ${itemsize}`);
    if (bytes < 0 || bytes % itemsize) refuse(`a buffer of ${bytes} bytes is not a whole number of ${itemsize}-byte elements`);
    const ends = Lab.bounds(schedule, bytes / itemsize).map((end) => end * itemsize);
    const zeros = () => new Array(ranks).fill(0), cards = ranks / on.perNic + ranks + 1;
    const clock = { ranks: zeros(), free: [new Array(cards).fill(0), new Array(cards).fill(0)] };
    const sent = zeros(), received = zeros(), onLink = {};
    const spans = steps.map((transfers) => {
      Lab.checkFit(transfers, ends);
      const messages = transfers.map((t) => {
        const moved = ends[t.chunk + t.count] - ends[t.chunk], [alpha, beta] = linkOf(on, t.src, t.dst);
        const move = beta * moved, add = t.combine === REDUCE ? on.gamma * moved : 0;
        return { ...t, bytes: moved, alpha, move, add, seconds: alpha + move + add, start: 0, nics: nicsOf(on, t.src, t.dst) };
      });
      advance(clock, messages, on);
      for (const { src, dst, bytes: moved } of messages) {
        sent[src] += moved;
        received[dst] += moved;
        onLink[`${src}→${dst}`] = (onLink[`${src}→${dst}`] ?? 0) + moved;
      }
      return messages;
    });
    return { seconds: Math.max(...clock.ranks), steps: steps.length, messages: spans.flat().length, finish: clock.ranks, sent, received, onLink, spans };
  };

  // Returns the NICs that a message leaves and enters through, or the ports that its bytes queue at; null where it can't wait.
  const nicsOf = (on, src, dst) => {
    if (!on.overlapped && (on.across === null || (on.perNic === 1 && on.ports === 1))) return null;
    const far = crosses(on, src, dst), first = on.ranks / on.perNic;
    if (!far && !on.overlapped) return null;
    return [src, dst].map((rank) => (far ? Math.floor(rank / on.perNic) : first + rank));
  };

  // Returns the messages in turns, so that within a turn no port or NIC exceeds what it can do at once.
  const turnsOf = (messages, on) => {
    const atOnce = on.overlapped ? messages.length : on.ports, used = new Map(), turns = [];
    for (const message of messages) {
      const { src, dst, nics } = message;
      const needs = [[`send ${src}`, atOnce], [`receive ${dst}`, atOnce], ...(nics ? [[`out ${nics[0]}`, 1], [`in ${nics[1]}`, 1]] : [])];
      const turn = Math.max(...needs.map(([resource, most]) => Math.floor((used.get(resource) ?? 0) / most)));
      for (const [resource, most] of needs) used.set(resource, Math.max(used.get(resource) ?? 0, turn * most) + 1);
      (turns[turn] ??= []).push(message);
    }
    return turns;
  };

  // Advances the clock by a step, and sets the start of each of its messages.
  const advance = (clock, messages, on) => {
    const sender = [...clock.ranks], receiver = [...clock.ranks], [out, into] = clock.free;
    for (const turn of turnsOf(messages, on)) {
      for (const message of turn) {
        const { src, dst, nics } = message;
        const ready = on.overlapped ? Math.max(clock.ranks[src], clock.ranks[dst]) : Math.max(sender[src], receiver[dst]);
        message.start = nics ? Math.max(ready, out[nics[0]], into[nics[1]]) : ready;
      }
      for (const { src, dst, nics, start, move, seconds } of turn) {
        if (nics) out[nics[0]] = into[nics[1]] = start + move;
        sender[src] = Math.max(sender[src], start + seconds);
        receiver[dst] = Math.max(receiver[dst], start + seconds);
      }
    }
    clock.ranks = sender.map((time, rank) => Math.max(time, receiver[rank]));
  };

  Object.assign(Lab, { topology, linkOf, price });
})();
