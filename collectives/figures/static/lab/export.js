// A schedule as the XML of an in-place MSCCL algorithm, as collectives/formats/msccl.py writes it, and its steps as an SVG file.
//
// An algorithm in MSCCL has no steps that all ranks share. Each gpu has threadblocks, which run side by side: one sends to at
// most one peer and receives from at most one, and runs its own steps in order. A step that must wait for one of another
// threadblock names it; `nop`s hold the extra waits of a step that has several.
(() => {
  const Lab = globalThis.CollectiveLab, { REDUCE, refuse, singles, print } = Lab;
  const KNOWN = { all_reduce: ["allreduce", "i"], all_gather: ["allgather", "o"], reduce_scatter: ["reduce_scatter", "i"], all_to_all: ["alltoall", "i"] };
  const MOST_STEPS = 256, MOST_BLOCKS = 32, MOST_COUNT = 71; // MSCCL's own limits

  const escape = (text) => String(text).replace(/[&<>"]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[letter]);
  const open = (tag, fields, end = "") => `<${tag} ${Object.entries(fields).map(([name, value]) => `${name}="${escape(value)}"`).join(" ")}${end}>`;

  const toMscclXml = (schedule, proto = "Simple") => {
    const { ranks, chunks, collective, name, lengths } = Lab.validate(schedule), [coll, buffer] = KNOWN[collective] ?? ["custom", "i"];
    if (lengths) refuse(`${name}: MSCCL cuts buffers evenly; a schedule with lengths of its own can't be written`);
    const head = { name, proto, nchannels: 1, nchunksperloop: chunks, ngpus: ranks, coll, inplace: 1 }, lines = [];
    compiled(schedule).forEach((blocks, id) => {
      const sizes = Object.fromEntries([..."ios"].map((each) => [`${each}_chunks`, each === buffer ? chunks : 0]));
      if (!blocks.length) return lines.push(`  ${open("gpu", { id, ...sizes }, "/")}`);
      lines.push(`  ${open("gpu", { id, ...sizes })}`, ...blocks.flatMap((block) => written(block, buffer)), "  </gpu>");
    });
    return `${open("algo", head)}\n${lines.join("\n")}\n</algo>\n`;
  };

  const written = ({ number, send, recv, operations }, buffer) => {
    const lines = operations.flatMap(({ type, first, there, count, needs, number: s, awaited }) => {
      const waits = needs.length ? needs.map((need) => ({ depid: need.block.number, deps: need.number })) : [{ depid: -1, deps: -1 }];
      const nops = waits.slice(0, -1).map((wait, place) => ({ s: s - waits.length + 1 + place, type: "nop", srcbuf: "i", srcoff: -1, dstbuf: "o", dstoff: -1, cnt: 0, ...wait, hasdep: 0 }));
      const [from, to] = { s: [first, there], r: [there, first], rrc: [first, first] }[type]; // rrc names the local chunks to add to
      return [...nops, { s, type, srcbuf: buffer, srcoff: from, dstbuf: buffer, dstoff: to, cnt: count, ...waits.at(-1), hasdep: Number(awaited) }];
    });
    return [`    ${open("tb", { id: number, send, recv, chan: 0 })}`, ...lines.map((fields) => `      ${open("step", fields, "/")}`), "    </tb>"];
  };

  // Returns the threadblocks of every gpu.
  const compiled = (schedule) => {
    const { ranks, steps, name } = schedule, turns = steps.flatMap((each, number) => turnsOf(each, `${name}, step ${number}`));
    const [sending, receiving] = blocksOf(ranks, turns.flat()), lastWrite = new Map(), reads = new Map();
    const slots = (rank, first, count) => Array.from({ length: count }, (_, n) => `${rank} ${first + n}`);
    const add = (block, operation) => block.operations.push(Object.assign(operation, { block, place: block.operations.length, awaited: false }));
    for (const turn of turns) {
      for (const t of turn) {
        const send = { type: "s", first: t.chunk, there: t.into, count: t.count, needs: [] };
        for (const slot of slots(t.src, t.chunk, t.count)) {
          if (lastWrite.has(slot)) send.needs.push(lastWrite.get(slot));
          reads.set(slot, [...(reads.get(slot) ?? []), send]);
        }
        add(sending.get(`${t.src} ${t.dst}`), send);
      }
      for (const t of turn) {
        const receive = { type: t.combine === REDUCE ? "rrc" : "r", first: t.into, there: t.chunk, count: t.count, needs: [] };
        for (const slot of slots(t.dst, t.into, t.count)) {
          receive.needs.push(...(reads.get(slot) ?? []), ...(lastWrite.has(slot) ? [lastWrite.get(slot)] : []));
          reads.delete(slot);
          lastWrite.set(slot, receive);
        }
        add(receiving.get(`${t.src} ${t.dst}`), receive);
      }
    }
    return Array.from({ length: ranks }, (_, rank) => {
      const mine = [...[...sending].filter(([pair]) => pair.split(" ")[0] === String(rank)), ...[...receiving].filter(([pair]) => pair.split(" ")[1] === String(rank))];
      const blocks = [...new Set(mine.map(([, block]) => block))].sort((a, b) => a.send - b.send || a.recv - b.recv);
      blocks.forEach((block, number) => (block.number = number));
      blocks.forEach(settle);
      checkLimits(blocks, `${name}, rank ${rank}`);
      return blocks;
    });
  };

  // The transfers of a step in turns, each with at most one message per pair of ranks. If a step overwrites chunks that it
  // sends, each chunk becomes a message of its own.
  const turnsOf = (transfers, where) => {
    const read = new Set(singles(transfers).map((t) => `${t.src} ${t.chunk}`)), mixed = transfers.some((t) => t.count > 1) && singles(transfers).some((t) => read.has(`${t.dst} ${t.into}`));
    const turns = [], messages = new Map(), written = new Set();
    for (const t of mixed ? singles(transfers) : transfers) {
      const pair = `${t.src} ${t.dst}`, number = messages.get(pair) ?? 0;
      messages.set(pair, number + 1);
      (turns[number] ??= []).push(t);
    }
    for (const turn of turns) {
      const late = turn.find((t) => singles([t]).some((each) => written.has(`${each.src} ${each.chunk}`)));
      if (late) refuse(`${where}: an earlier message overwrites ${print(late)} on rank ${late.src}, so MSCCL would need scratch memory; split the step in two`);
      for (const each of singles(turn)) written.add(`${each.dst} ${each.into}`);
    }
    return turns;
  };

  // The sending and the receiving threadblock of each pair of ranks. One does both if it never has to send a run of several
  // chunks, which may not fit in its connection, before it can receive.
  const blocksOf = (ranks, transfers) => {
    const key = (src, dst) => `${src} ${dst}`, wide = new Set(transfers.filter((t) => t.count > 1).map((t) => key(t.src, t.dst)));
    const pairs = [...new Map(transfers.map((t) => [key(t.src, t.dst), [t.src, t.dst]])).values()], sending = new Map(), receiving = new Map();
    for (let rank = 0; rank < ranks; rank++) {
      const sends = pairs.filter(([src]) => src === rank), receives = pairs.filter(([, dst]) => dst === rank);
      const free = new Set(receives.filter(([src]) => !wide.has(key(src, rank))).map(([src]) => src)), source = new Map();
      for (const [, dst] of sends) if (free.has(dst) && !wide.has(key(rank, dst))) source.set(dst, dst);
      for (const src of source.values()) free.delete(src);
      for (const [, dst] of sends) {
        if (source.has(dst) || !free.size || wide.has(key(rank, dst))) continue;
        source.set(dst, Math.min(...free));
        free.delete(source.get(dst));
      }
      for (const [, dst] of sends) sending.set(key(rank, dst), { send: dst, recv: source.get(dst) ?? -1, operations: [] });
      const both = new Map([...source].map(([dst, src]) => [src, sending.get(key(rank, dst))]));
      for (const [src] of receives) receiving.set(key(src, rank), both.get(src) ?? { send: -1, recv: src, operations: [] });
    }
    return [sending, receiving];
  };

  // Drops the waits that earlier waits of the threadblock already cover, and numbers its operations and nops.
  const settle = (block) => {
    const waited = new Map([[block, block.operations.length]]);
    let number = 0;
    for (const operation of block.operations) {
      const latest = new Map();
      for (const need of operation.needs) {
        if (need.place > (waited.get(need.block) ?? -1) && need.place >= (latest.get(need.block)?.place ?? 0)) latest.set(need.block, need);
      }
      for (const [each, need] of latest) waited.set(each, need.place);
      operation.needs = [...latest.values()];
      for (const need of operation.needs) need.awaited = true;
      operation.number = number + Math.max(operation.needs.length - 1, 0);
      number = operation.number + 1;
    }
  };

  const checkLimits = (blocks, where) => {
    if (blocks.length > MOST_BLOCKS) refuse(`${where} needs ${blocks.length} threadblocks; MSCCL's limit is ${MOST_BLOCKS} on a channel`);
    for (const { number, count } of blocks.flatMap(({ operations }) => operations)) {
      if (number >= MOST_STEPS) refuse(`${where}: a threadblock has more than ${MOST_STEPS} steps, MSCCL's limit`);
      if (count > MOST_COUNT) refuse(`${where}: a message has ${count} chunks; MSCCL's limit is ${MOST_COUNT}`);
    }
  };

  // What style sheets may say of a node, and SVG's own value for it.
  const LOOK = { fill: "rgb(0, 0, 0)", "fill-opacity": "1", stroke: "none", "stroke-width": "1px", "stroke-opacity": "1", "stroke-dasharray": "none", "stroke-linejoin": "miter",
    opacity: "1", "text-anchor": "start", "dominant-baseline": "auto", "font-weight": "400" };
  const WIDE = 720, TYPE = 15, BELOW = 18;

  // Steps of a schedule as one SVG file, one below the other: what each rank holds before a step, with its transfers, and after
  // the last. `lab` has the schedule, what is `seen` of it, and colours; while its style sheets are read, the picture is in it.
  const toSvg = (lab, numbers) => {
    const Player = customElements.get("collective-player"), { make } = Player;
    const picture = new Player.pictures.schedule(Lab.drawing(lab.seen, lab.colours, lab.kinds)), { steps, ranks, name } = lab.schedule;
    picture.fit(WIDE);
    const tall = picture.height + 2 * TYPE + BELOW, width = picture.width, height = numbers.length * tall;
    const rows = numbers.map((number, row) => {
      const { moves } = picture.data.steps[number] ?? { moves: [] };
      picture.twoWay = moves.some(([src, dst]) => moves.some(([from, to]) => from === dst && to === src));
      const heading = number < steps.length ? `before step ${number}, with its transfers` : steps.length ? `after step ${number - 1}` : "before step 0";
      return make("g", { transform: `translate(0 ${row * tall})` }, make("text", { x: 4, y: TYPE, "font-size": TYPE, style: "text-anchor:start;font-weight:700" }, heading),
        make("g", { transform: `translate(0 ${2 * TYPE})` }, ...picture.cells(picture.states[number], moves)));
    });
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": "sans-serif", role: "img", "aria-label": `${name}, ${ranks} ranks` }, ...rows);
    const shown = make("collective-player", { class: "board" }, make("div", { class: "stage" }, svg));
    lab.append(shown);
    const looks = looksOf(svg);
    shown.remove();
    for (const node of svg.querySelectorAll("*")) for (const [name, value] of looks.get(alike(node))) if (!node.hasAttribute(name)) node.setAttribute(name, value);
    return new XMLSerializer().serializeToString(svg);
  };

  // Nodes of the same tag, class and style in parents of the same tag and class look alike.
  const alike = (node) => [...[node, node.parentNode].map((each) => `${each.tagName} ${each.getAttribute("class")}`), node.getAttribute("style")].join();
  const looksOf = (svg) => {
    const looks = new Map();
    for (const node of svg.querySelectorAll("*")) {
      if (looks.has(alike(node))) continue;
      const look = getComputedStyle(node);
      looks.set(alike(node), Object.entries(LOOK).flatMap(([name, initial]) => (look.getPropertyValue(name) === initial ? [] : [[name, look.getPropertyValue(name)]])));
    }
    return looks;
  };

  // Names a file after what it holds: puzzle-broadcast-4, or all-reduce-ring-8-ranks.
  const fileName = ({ collective, name, ranks }, puzzle) => {
    const word = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
    if (puzzle) return `puzzle-${puzzle.id}`;
    const what = word(collective ?? "schedule"), own = ["schedule", "from the Lab"].includes(name) ? "" : word(word(name).replace(what, ""));
    return [what, own, ranks, "ranks"].filter(Boolean).join("-");
  };

  Object.assign(Lab, { toMscclXml, toSvg, fileName });
})();
