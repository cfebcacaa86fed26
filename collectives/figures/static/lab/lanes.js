// A schedule in time and in space, for the picture of network.js: where ranks and links are, and when each message waits,
// leaves and arrives. As collectives/figures/places.py and traffic.py have it; times are those of price.js.
(() => {
  const Lab = globalThis.CollectiveLab;
  const TICKS = 20000, THICK = 6, SUB_ROWS = 4, ASIDE = 0.09, EDGE = 0.42; // as in traffic.py and places.py
  const MOST_MESSAGES = 1200;

  const short = (number) => Number(number.toFixed(2));
  const path = (points) => `M${points.map(([x, y]) => `${short(x)} ${short(y)}`).join("L")}`;
  const arc = (...points) => "M{}Q{} {}".replace(/{}/g, () => points.shift().map(short).join(" "));
  const bend = (distance) => (Math.abs(distance) < 2 ? 0 : 0.55 + 0.24 * Math.abs(distance));

  // --- places: points, boxes, NICs and rails, the span (left, top, right, bottom), and the way of a link ---

  // The straight line between two points, moved to its right if messages go both ways, as on a road.
  const straight = (start, end, both) => {
    const dx = end[0] - start[0], dy = end[1] - start[1], long = Math.hypot(dx, dy) || 1;
    return path([start, end].map(([x, y]) => [x - (dy / long) * ASIDE * both, y + (dx / long) * ASIDE * both]));
  };

  const circle = (ranks) => {
    const radius = ranks > 1 ? Math.max(0.85, 0.5 / Math.sin(Math.PI / ranks)) : 0;
    const points = Array.from({ length: ranks }, (_, rank) => {
      const turn = (2 * Math.PI * rank) / ranks - (ranks === 2 ? Math.PI / 2 : 0);
      return [radius * Math.sin(turn), -radius * Math.cos(turn)];
    });
    const sides = [Math.min, Math.min, Math.max, Math.max].map((most, side) => most(...points.map((point) => point[side % 2])) + (side < 2 ? -EDGE : EDGE));
    return { points, boxes: [], nics: [], rails: [], span: sides, way: (src, dst, both) => straight(points[src], points[dst], both) };
  };

  // Two boxes side by side. Ranks are columns, and their cards face each other, so that rails run straight across.
  const twoNodes = ({ ranks, perNode, perNic }) => {
    const wide = 1.35 + bend(perNode - 1) / 2, across = 2 * wide + Math.max(2, 0.4 * perNode), cards = perNode / perNic;
    const mirrored = (rank, x) => (rank < perNode ? x : across - x);
    const points = Array.from({ length: ranks }, (_, rank) => [mirrored(rank, wide - 0.75), rank % perNode]);
    const nics = [0, 1].flatMap((node) => Array.from({ length: cards }, (_, card) => [mirrored(node * perNode, wide), card * perNic + (perNic - 1) / 2]));
    const top = -1, tall = perNode + 0.55;
    const way = (src, dst, both) => {
      const start = points[src], end = points[dst];
      if (Math.floor(src / perNode) === Math.floor(dst / perNode)) {
        if (Math.abs(src - dst) === 1) return straight(start, end, both);
        const out = bend(src - dst) + (src > dst ? 2 * ASIDE * both : 0);
        return arc(start, [start[0] + (src < perNode ? -out : out), (start[1] + end[1]) / 2], end);
      }
      const shift = ASIDE * both * (start[0] < end[0] ? 1 : -1);
      return path([start, nics[Math.floor(src / perNic)], nics[Math.floor(dst / perNic)], end].map(([x, y]) => [x, y + shift]));
    };
    return { points, nics, way, boxes: [0, across - wide].map((x) => [x, top, wide, tall]), rails: Array.from({ length: cards }, (_, card) => path([nics[card], nics[cards + card]])),
      span: [-0.1, top - 0.1, across + 0.1, top + tall + 0.1] };
  };

  // Boxes in a row. Cards are on the lower edges, and below them runs a line for each rail.
  const nodesInARow = ({ ranks, perNode, perNic }) => {
    const gap = 0.9, count = ranks / perNode, cards = perNode / perNic;
    const points = Array.from({ length: ranks }, (_, rank) => [rank + gap * Math.floor(rank / perNode), 0]);
    const nics = count > 1 ? Array.from({ length: ranks / perNic }, (_, card) => [points[card * perNic][0] + (perNic - 1) / 2, 0.8]) : [];
    const top = -0.95 - bend(perNode - 1) / 2, boxes = Array.from({ length: count }, (_, node) => [points[node * perNode][0] - 0.6, top, perNode + 0.2, 0.8 - top]);
    const depths = Array.from({ length: cards }, (_, card) => 1.5 + 0.36 * card);
    const way = (src, dst, both) => {
      const start = points[src], end = points[dst];
      if (Math.floor(src / perNode) === Math.floor(dst / perNode)) {
        if (Math.abs(src - dst) === 1) return straight(start, end, both);
        return arc(start, [(start[0] + end[0]) / 2, -bend(src - dst) - (src > dst ? 2 * ASIDE * both : 0)], end);
      }
      const [out, into] = [src, dst].map((rank) => nics[Math.floor(rank / perNic)]), [leave, reach] = [src, dst].map((rank) => depths[Math.floor((rank % perNode) / perNic)]);
      const before = boxes[Math.floor(dst / perNode)][0] + (src < dst ? -gap / 3 : perNode + 0.2 + gap / 3), shift = ASIDE * both * (src < dst ? 1 : -1);
      const turn = leave === reach ? [] : [[before, leave], [before, reach]];
      return path([start, out, [out[0], leave], ...turn, [into[0], reach], into, end].map(([x, y]) => [x + shift, y + shift]));
    };
    return { points, nics, boxes, way, rails: nics.length ? depths.map((y) => path([[points[0][0], y], [points.at(-1)[0], y]])) : [],
      span: [-0.7, top - 0.1, points.at(-1)[0] + 0.7, nics.length ? depths.at(-1) + 0.25 : 0.9] };
  };

  const place = (on) => {
    if (on.perNode === null) return circle(on.ranks);
    return on.ranks === 2 * on.perNode && on.perNode > 1 ? twoNodes(on) : nodesInARow(on);
  };

  // --- time ---

  // How much each rank has of what the contract promises it, in percent, before the first step and after each; -1 for nothing.
  const progress = ({ promise, states, schedule: { ranks, chunks, collective } }) => states.map((state) => state.map((row, rank) => {
    let needs = 0, has = 0;
    for (let chunk = 0; chunk < chunks; chunk++) {
      if (!collective || !promise.wanted[rank][chunk]) continue;
      const right = Lab.ofChunk(row[chunk], ranks) === promise.origin[rank][chunk];
      promise.parts[rank][chunk].forEach((part, from) => {
        needs += part;
        has += right ? Math.min(row[chunk][from], part) : 0;
      });
    }
    return needs ? Math.floor((100 * has) / needs) : -1;
  }));

  // One schedule of a race: what Lane.data in traffic.py returns, but for the times, which `laid` turns into ticks.
  const lane = (title, schedule, bytes, on) => {
    const seen = Lab.analyse(schedule), cost = Lab.price(schedule, bytes, on), after = progress(seen), ready = new Array(schedule.ranks).fill(0);
    const messages = cost.spans.flatMap((span, number) => {
      const state = seen.states[number], arrived = new Map(), waits = [...ready];
      return span.map((t) => {
        const end = t.start + t.seconds, expected = span.filter((other) => other.dst === t.dst).length, came = (arrived.get(t.dst) ?? 0) + 1;
        arrived.set(t.dst, came);
        for (const rank of [t.src, t.dst]) ready[rank] = Math.max(ready[rank], end);
        const held = Array.from({ length: schedule.ranks }, (_, rank) => Number(Array.from({ length: t.count }, (_, n) => state[t.src][t.chunk + n][rank]).some(Boolean)));
        const [before, then] = [after[number][t.dst], after[number + 1][t.dst]];
        return { ...t, number, ready: waits[t.src], end, bits: held.reduce((sum, bit, rank) => sum + bit * 2 ** rank, 0), done: Math.round(before + ((then - before) * came) / expected) };
      });
    });
    if (messages.length > MOST_MESSAGES) Lab.refuse(`${title} has ${Lab.commas(messages.length)} messages; at most ${Lab.commas(MOST_MESSAGES)} can be drawn. Take fewer ranks`);
    const ends = schedule.steps.reduce((sums, _, number) => [...sums, messages.reduce((latest, each) => (each.number === number ? Math.max(latest, each.end) : latest), sums.at(-1))], [0]);
    return { title, schedule, cost, messages, ends, begin: after[0], on };
  };

  // The lane's data with times in ticks of so many seconds.
  const laid = ({ title, schedule, cost, messages, begin, on }, tick) => {
    const { points, boxes, nics, rails, span: [left, top, right, bottom], way } = place(on);
    const pairs = [...new Map(messages.map(({ src, dst }) => [src * on.ranks + dst, [src, dst]])).entries()].sort((a, b) => a[0] - b[0]).map(([, pair]) => pair);
    const has = (src, dst) => pairs.some(([from, to]) => from === src && to === dst), fastest = Math.min(...pairs.map((pair) => Lab.linkOf(on, ...pair)[1]));
    const alike = pairs.every((pair) => Lab.linkOf(on, ...pair)[1] === fastest), width = (pair) => (alike ? 3 : Math.max(1.5, Number(((THICK * fastest) / Lab.linkOf(on, ...pair)[1]).toFixed(1))));
    const sizes = new Map(), rowOf = rows(messages), ticks = (seconds) => Math.round(seconds / tick);
    const steps = schedule.steps.map(() => []);
    for (const each of messages) {
      const size = [each.bytes, Lab.sayBytes(each.bytes), ticks(each.alpha), ticks(each.move), ticks(each.add), each.count], key = size.join();
      if (!sizes.has(key)) sizes.set(key, [sizes.size, size]);
      const link = pairs.findIndex(([src, dst]) => src === each.src && dst === each.dst);
      steps[each.number].push([link, sizes.get(key)[0], ticks(each.start), ticks(each.start) - ticks(each.ready), each.chunk, each.bits, each.done, rowOf.get(each)]);
    }
    return {
      title, points, boxes, nics, rails, begin, steps, names: [], chunks: schedule.chunks, idle: points.map(() => []), finish: ticks(cost.seconds),
      span: [left, top, right - left, bottom - top], links: pairs.map(([src, dst]) => [src, dst, way(src, dst, Number(has(dst, src))), width([src, dst])]), sizes: [...sizes.values()].map(([, size]) => size),
    };
  };

  // The place of each message in its sender's row: 0, or the next that is free at the time.
  const rows = (messages) => {
    const places = new Map(), free = new Map();
    for (const each of [...messages].sort((a, b) => a.start - b.start)) {
      const ends = free.get(each.src) ?? new Array(SUB_ROWS).fill(0), row = ends.findIndex((end) => end <= each.start * (1 + 1e-9)), place = row < 0 ? SUB_ROWS - 1 : row;
      ends[place] = each.end;
      free.set(each.src, ends);
      places.set(each, place);
    }
    return places;
  };

  Object.assign(Lab, { TICKS, lane, laid });
})();
