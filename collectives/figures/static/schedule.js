// The picture of a schedule: what every slot holds, and what moves in a step. It knows no algorithm.
(() => {
  const Player = customElements.get("collective-player"), { make } = Player;
  const LANE = 11, MOVE_MS = 750, TYPE = 14, HEADER = 22, EDGE = 4, WIDEST = 32, NARROW = 480, SMALL = 10.5;

  // A column for each rank and a row for each chunk, so that most transfers stay in their row.
  Player.pictures.schedule ??= class {
    constructor(data) {
      this.data = data;
      this.side = true;
      this.maxWidth = "none";
      this.last = data.steps.length;
      this.states = [data.first];
      for (const { changed } of data.steps) this.states.push(Object.assign([...this.states.at(-1)], changed));
      this.lanes = Math.max(0, ...data.steps.flatMap((step) => step.moves.map((move) => move[4])));
      this.pip = data.places === 1 ? 22 : data.places <= 4 ? 18 : 12;
      this.fit(640);
      this.least = this.natural(data.columns, 14);
    }

    natural(columns, gap) {
      const { ranks } = this.data;
      return this.left + ranks * (columns * this.pip + 2 * EDGE) + (ranks - 1) * gap + 4;
    }

    // Cells are as big on every page. A narrow one has fewer pips side by side, and only a very wide grid is scaled down.
    fit(width) {
      const { ranks, chunks, places, columns } = this.data;
      const closest = width < NARROW ? 7 : 14;
      this.left = width < NARROW ? 48 : 68;
      this.columns = [columns, 2, 1].find((count) => count <= columns && this.natural(count, closest) <= width) ?? columns;
      this.cell = [this.columns * this.pip + 2 * EDGE, Math.ceil(places / this.columns) * this.pip + 2 * EDGE];
      this.gap = Math.max(closest, Math.min(WIDEST, (width - this.natural(this.columns, 0)) / Math.max(1, ranks - 1)));
      this.pitch = [this.cell[0] + this.gap, this.cell[1] + 10 + this.lanes * LANE];
      const natural = this.natural(this.columns, this.gap);
      this.width = Math.max(width, natural);
      this.start = this.left + (this.width - natural) / 2;
      this.top = 2 * TYPE + 2;
      this.height = this.top + chunks * this.pitch[1] + 6;
      this.narrow = width < NARROW;
    }

    name(at) {
      return at ? `step ${at - 1}` : "before";
    }

    alarms(at) {
      return this.data.alarms.includes(at);
    }

    corner(rank, chunk) {
      return [this.start + rank * this.pitch[0], this.top + (chunk + 1) * this.pitch[1] - this.cell[1]];
    }

    text(x, y, text, size = TYPE, more = {}) {
      return make("text", { x, y, "font-size": size, ...more }, text);
    }

    // Draws the contents of a slot such as "p03". Each rank's pip has its own place, so colour is not the only sign.
    pips(slot) {
      const held = [...slot.slice(1)];
      return [...new Set(held)].map((digit) => {
        const rank = parseInt(digit, 16), place = this.data.places === 1 ? 0 : rank, size = this.pip - 2;
        const x = EDGE + 1 + (place % this.columns) * this.pip, y = EDGE + 1 + Math.floor(place / this.columns) * this.pip;
        const [fill, ink] = this.data.colours[rank], twice = held.filter((other) => other === digit).length > 1;
        return make("g", { class: "pip" },
          make("rect", { x, y, width: size, height: size, rx: 3, fill }),
          this.text(x + size / 2, y + size / 2, twice ? rank + "×2" : rank, size * (twice ? 0.55 : 0.72), { style: `fill:${ink}`, ...(twice && { textLength: size - 1, lengthAdjust: "spacingAndGlyphs" }) }));
      });
    }

    slot(slot, x, y) {
      const [width, height] = this.cell, kind = slot[0];
      const group = make("g", { class: kind, transform: `translate(${x} ${y})` },
        make("rect", { class: "cell", width, height, rx: 5 }), ...this.pips(slot));
      if (kind === "w") group.append(make("circle", { class: "fault", cx: width, r: 8 }), this.text(width, 0, "!", TYPE));
      return group;
    }

    // Returns an arrow's points: straight between neighbours and between rows, else up, along the row's lane, and down.
    route([src, dst, chunk, , lane, , lands]) {
      const [width, height] = this.cell, way = dst > src ? 1 : -1;
      const [from, y] = this.corner(src, chunk), [to, bottom] = this.corner(dst, lands);
      if (lands !== chunk) {
        const length = Math.hypot(to - from, bottom - y), ux = (to - from) / length, uy = (bottom - y) / length;
        const reach = height * 0.5, cx = width / 2 - uy * 5, cy = height / 2 + ux * 5; // shifted, so that opposite arrows don't overlap
        return [[from + cx + ux * reach, y + cy + uy * reach], [to + cx - ux * reach, bottom + cy - uy * reach]];
      }
      if (!lane) {
        const middle = y + height / 2 + (this.twoWay ? -5 * way : 0), side = way > 0 ? [width + 1, -2] : [-1, width + 2];
        return [[from + side[0], middle], [to + side[1], middle]];
      }
      const up = y - 4 - lane * LANE, out = from + width * (0.5 + 0.14 * way), into = to + width * (0.5 - 0.36 * way);
      return [[out, y - 2], [out, up], [into, up], [into, y - 3]];
    }

    arrow(move) {
      const points = this.route(move), [x, y] = points.at(-1), [px, py] = points.at(-2);
      const size = 7 / Math.hypot(x - px, y - py), dx = (x - px) * size, dy = (y - py) * size;
      const head = `M${x} ${y}L${x - dx - dy * 0.6} ${y - dy + dx * 0.6}L${x - dx + dy * 0.6} ${y - dy - dx * 0.6}z`;
      const line = [...points.slice(0, -1), [x - dx, y - dy]];
      const group = make("g", { class: move[5] ? "guilty" : "" },
        make("path", { class: "arrow", d: "M" + line.join("L") }), make("path", { class: "head", d: head }));
      if (move[3]) {
        const long = points.length > 2, [[ax, ay], [bx, by]] = long ? points.slice(1, 3) : points;
        const cx = (ax + bx) / 2, cy = (ay + by) / 2 - (long ? 0 : this.twoWay && bx < ax ? -10 : 10); // above a short arrow, below the lower of two
        group.append(make("circle", { class: "plus", cx, cy, r: 6 }), this.text(cx, cy, "+", 12));
      }
      return group;
    }

    // The copy of a slot's contents that travels along the arrow while a step plays.
    chip(move, slot) {
      const [src, dst, chunk, , , , lands] = move, [width, height] = this.cell;
      const route = this.route(move).map(([x, y]) => [x - width / 2, y - height / 2]);
      const points = [this.corner(src, chunk), ...(move[4] ? route.slice(1, 3) : []), this.corner(dst, lands)];
      const lengths = points.map((point, i) => (i ? Math.hypot(point[0] - points[i - 1][0], point[1] - points[i - 1][1]) : 0));
      const total = lengths.reduce((sum, length) => sum + length);
      let done = 0;
      const path = points.map(([x, y], i) => ({ transform: `translate(${x}px,${y}px)`, offset: Math.min(1, (done += lengths[i]) / total) }));
      const node = make("g", { class: "chip" }, make("rect", { width, height, rx: 5 }), ...this.pips(slot));
      return { node, play: () => node.animate(path, { duration: MOVE_MS, easing: "ease-in-out", fill: "both" }) };
    }

    cells(slots, moves) {
      const { ranks, chunks } = this.data, nodes = [];
      for (let chunk = 0; chunk < chunks; chunk++) for (let place = chunk; place < ranks * chunks; place += chunks) nodes.push(this.slotAt(slots[place], place));
      return [...this.labels(), ...nodes, ...moves.map((move) => this.arrow(move))];
    }

    // The slot in a place of a table, which has the ranks one after the other.
    slotAt(slot, place) {
      const { chunks } = this.data;
      return this.slot(slot, ...this.corner(Math.floor(place / chunks), place % chunks));
    }

    labels() {
      const { ranks, chunks, colours } = this.data, [width, height] = this.cell, nodes = [];
      const labels = this.start - this.left / 2 - 4;
      nodes.push(this.text(labels, TYPE, "rank", this.narrow ? SMALL : TYPE));
      for (let rank = 0; rank < ranks; rank++) {
        const x = this.corner(rank, 0)[0] + width / 2, size = HEADER;
        nodes.push(make("rect", { x: x - size / 2, y: TYPE - size / 2, width: size, height: size, rx: 4, fill: colours[rank][0] }),
          this.text(x, TYPE, rank, TYPE, { style: `fill:${colours[rank][1]};font-weight:700` }));
      }
      for (let chunk = 0; chunk < chunks; chunk++) nodes.push(this.text(labels, this.corner(0, chunk)[1] + height / 2, `chunk ${chunk}`, this.narrow ? SMALL : TYPE));
      return nodes;
    }

    show(svg, at, moving) {
      const moves = at ? this.data.steps[at - 1].moves : [];
      this.at = at;
      const settle = () => svg.replaceChildren(...this.cells(this.states[at], moves));
      if (!moving) return settle();
      svg.replaceChildren(...this.cells(this.states[at - 1], moves));
      this.animate(svg, at, moves, settle);
    }

    // Lets chips travel over what is shown, and settles when they arrive. If the reader goes to another step meanwhile, that step stays.
    animate(svg, at, moves, settle) {
      const before = this.states[at - 1];
      const chips = moves.map((move) => this.chip(move, before[move[0] * this.data.chunks + move[2]]));
      svg.append(...chips.map((chip) => chip.node));
      const ends = chips.map((chip) => chip.play().finished);
      Promise.all(ends).then(() => this.at === at && settle(), () => {});
    }

    legend() {
      const [width, height] = this.cell;
      const find = (kind) => this.states.flat().find((slot) => slot[0] === kind);
      return Object.entries(this.data.kinds).map(([kind, text]) => [width, height, [this.slot(find(kind), 0, 0)], text]);
    }
  };

  Player.startAll();
})();
