// The picture of sharded matrices: a row for each rank, a column for each matrix or gate; or a grid of ranks.
(() => {
  const Player = customElements.get("collective-player"), { make } = Player;
  const GAP = 22, TYPE = 17, SMALL = 10, LARGE = 26, GATE = 26, LETTER = 0.6, WIDE = 400, HIGH = 420;
  const LETTERS = 15, NARROW = 416; // on the screen: the height of letters, and the least room
  const PAD = 12, GUTTER = [44, 100]; // in a grid: margin of a cell, gap below it and beside it

  Player.pictures.blocks ??= class {
    constructor(data) {
      this.data = data;
      this.last = data.stories[0].scenes.length - 1;
      this.story = data.stories[0];
      this.draw = data.grid ? this.drawGrid : this.drawRows;
      this.lay = data.grid ? this.layGrid : this.layRows;
      this.fit(720);
    }

    // Lays it out for a width, so that its letters are about as large as the page's. Where letters grow, columns may, too.
    fit(width) {
      this.type = TYPE;
      for (let turn = 0; turn < 3; turn++) {
        this.lay();
        const shown = Math.min(width, this.widest);
        this.type = Math.max(SMALL, Math.min(this.data.grid ? TYPE : LARGE, (LETTERS * this.width) / shown));
      }
      this.lay();
      this.maxWidth = `${this.widest}px`;
    }

    layRows() {
      const { data } = this, most = Math.max(...data.shapes.map(([rows]) => rows));
      this.unit = Math.min(30, WIDE / data.shapes.reduce((sum, [, columns]) => sum + columns, 0), HIGH / most / data.ranks);
      this.rows = most * this.unit;
      this.left = 62;
      this.top = this.type * 2;
      let x = this.left;
      const notes = data.stories.flatMap(({ scenes }) => scenes.map((scene) => scene.notes));
      this.columns = data.shapes.map(([rows, columns], i) => {
        const letters = Math.max(...notes.map((note) => note[i].length), ...data.stories.map((story) => story.headings[i].length));
        const room = Math.max(rows ? columns * this.unit : GATE, letters * this.type * LETTER * 0.9);
        const place = { x, room, width: rows ? columns * this.unit : GATE, height: rows * this.unit };
        x += room + GAP;
        return place;
      });
      this.width = x - GAP + 8;
      this.pitch = this.rows + GAP;
      this.height = this.top + data.ranks * this.pitch + this.type * 1.4;
      this.widest = Math.max(NARROW, this.width * 1.2);
    }

    // Each rank has a cell in its place, with the rank's number and its matrices two by two, each below its heading.
    layGrid() {
      const { shapes, grid } = this.data, [rows, columns] = shapes[0], unit = (this.unit = 18), line = this.type * 1.3;
      const [width, height] = [columns * unit, rows * unit], wide = 2 * width + GAP + 2 * PAD;
      const tall = line + Math.ceil(shapes.length / 2) * (height + line) + 2 * PAD;
      this.columns = shapes.map(() => ({ width, height }));
      this.cells = grid.places.map(([down, across]) => ({ x: 1 + across * (wide + GUTTER[1]), y: 1 + down * (tall + GUTTER[0]), wide, tall }));
      this.corners = this.cells.map(({ x, y }) => shapes.map((_, i) =>
        [x + PAD + (i % 2) * (width + GAP), y + PAD + 2 * line + Math.floor(i / 2) * (height + line)]));
      this.width = Math.max(...this.cells.map(({ x }) => x)) + wide + 1;
      this.height = Math.max(...this.cells.map(({ y }) => y)) + tall + 1;
      this.widest = Math.max(NARROW, this.width);
    }

    text(x, y, text, size = this.type, more = {}) {
      return make("text", { x, y, "font-size": size, ...more }, text);
    }

    // Returns the top left corner of a rank's matrix in column `i`, centred in the column and the row.
    corner(rank, i) {
      if (this.corners) return this.corners[rank][i];
      const { x, room, width, height } = this.columns[i];
      return [x + (room - width) / 2, this.top + rank * this.pitch + (this.rows - height) / 2];
    }

    block([top, left, height, width, rank, kind, label], x, y) {
      const [fill, ink] = this.data.colours[rank], { unit } = this;
      const box = { x: x + left * unit + 0.5, y: y + top * unit + 0.5, width: width * unit - 1, height: height * unit - 1, rx: 2 };
      const nodes = [make("rect", kind === "a" ? box : { ...box, fill })];
      if (kind === "p") {
        const { x: bx, y: by, width: w, height: h } = box, step = 9, lines = [];
        for (let d = step; d < w + h; d += step) {
          lines.push(`M${bx + Math.min(d, w)} ${by + Math.max(0, d - w)}L${bx + Math.max(0, d - h)} ${by + Math.min(d, h)}`);
        }
        nodes.push(make("path", { class: "terms", d: lines.join(""), stroke: ink }));
      }
      const size = Math.min(this.type - 2, box.height * 0.9, (box.width / Math.max(1, label.length)) * 1.4);
      if (label && kind !== "a") {
        nodes.push(this.text(box.x + box.width / 2, box.y + box.height / 2, label, size, { style: `fill:${ink};stroke:${fill}`, class: "plate" }));
      }
      return make("g", { class: `block ${kind}` }, ...nodes);
    }

    matrix(i, rank, look) {
      const [x, y] = this.corner(rank, i), { width, height } = this.columns[i];
      return make("g", {}, make("rect", { class: "outline", x, y, width, height, rx: 2 }), ...this.data.looks[look].map((block) => this.block(block, x, y)));
    }

    // A frame around a column with a collective, across all ranks. A gate is a bar across all ranks.
    frame(i, note) {
      const { x, room, height } = this.columns[i], bottom = this.top + this.data.ranks * this.pitch - GAP;
      const sends = note && note !== this.data.nothing, gate = !height;
      const [left, width] = gate ? [x + (room - GATE) / 2, GATE] : [x - 7, room + 14], grow = gate ? 0 : 7;
      const frame = make("rect", { class: `${gate ? "gate" : "frame"} ${sends ? "sends" : ""}`, x: left, y: this.top - grow, width, height: bottom - this.top + 2 * grow, rx: 7 });
      const label = this.text(x + room / 2, bottom + this.type * 1.3, note, this.type * 0.9, { class: sends ? "note" : "" });
      return gate || sends ? [frame, label] : [label];
    }

    // A rank's number on its colour.
    badge(rank, x, y) {
      const size = this.type + 8, [fill, ink] = this.data.colours[rank];
      return [make("rect", { x, y: y - size / 2, width: size, height: size, rx: 4, fill }), this.text(x + size / 2, y, rank, this.type, { style: `fill:${ink};font-weight:700` })];
    }

    // The line from a cell to the next along an axis, 0 down or 1 across, with the axis's name or the current collective.
    joined({ x, y, wide, tall }, axis, note) {
      const [down, across] = GUTTER, [left, top] = axis ? [x + wide + 5, y + tall / 2] : [x + PAD * 2, y + tall + 5];
      const lines = note ? [note, `along ${this.data.grid.axes[axis]}`] : [this.data.grid.axes[axis]];
      const texts = lines.map((line, row) => {
        const off = note ? (row - 0.5) * this.type * (axis ? 2 : 1.1) : axis ? -this.type * 0.8 : 0;
        const place = axis ? [left + across / 2 - 5, top + off] : [left + 10, top - 5 + down / 2 + off];
        return this.text(...place, line, this.type * 0.9, { class: `${note ? "note" : ""} ${axis ? "" : "begin"}` });
      });
      return [make("path", { class: `joint ${note ? "now" : ""}`, d: `M${left} ${top}${axis ? "h" : "v"}${GUTTER[axis] - 10}` }), ...texts];
    }

    drawGrid(scene) {
      const { axes, places } = this.data.grid, nodes = [], note = scene.notes.find(Boolean);
      this.cells.forEach((cell, rank) => {
        const { x, y, wide, tall } = cell, at = axes.map((axis, i) => `${axis} ${places[rank][i]}`).join(", ");
        nodes.push(make("rect", { class: "home", x, y, width: wide, height: tall, rx: 7 }), ...this.badge(rank, x + PAD, y + PAD + this.type * 0.6));
        nodes.push(this.text(x + wide - PAD, y + PAD + this.type * 0.6, at, this.type * 0.9, { class: "end" }));
        (scene.headings ?? this.story.headings).forEach((heading, i) => {
          const [left, top] = this.corner(rank, i), { width, height } = this.columns[i];
          nodes.push(this.text(left + width / 2, top - this.type * 0.6, heading, this.type, { "font-weight": 700 }), this.matrix(i, rank, scene.held[i][rank]));
          if (scene.notes[i]) nodes.push(make("rect", { class: "frame sends", x: left - 3, y: top - 3, width: width + 6, height: height + 6, rx: 4 }));
        });
        axes.forEach((axis, i) => {
          const next = places.some((place) => place[i] === places[rank][i] + 1 && place[1 - i] === places[rank][1 - i]);
          if (next) nodes.push(...this.joined(cell, i, scene.along === axis && note));
        });
      });
      return nodes;
    }

    drawRows(scene) {
      const nodes = [];
      for (let rank = 0; rank < this.data.ranks; rank++) nodes.push(...this.badge(rank, 8, this.top + rank * this.pitch + this.rows / 2));
      nodes.push(this.text(2, this.type * 0.7, "rank", this.type * 0.9, { class: "begin" }));
      this.columns.forEach(({ x, room, height }, i) => {
        nodes.push(this.text(x + room / 2, this.type * 0.7, this.story.headings[i], this.type, { "font-weight": 700 }), ...this.frame(i, scene.notes[i]));
        if (height) scene.held[i].forEach((look, rank) => nodes.push(this.matrix(i, rank, look)));
      });
      return nodes;
    }

    show(svg, at, moving) {
      svg.replaceChildren(...this.draw(this.story.scenes[at]));
      svg.classList.toggle("moving", moving);
    }

    name(at) {
      return at ? `step ${at}` : "before";
    }

    alarms() {
      return false;
    }

    // Selects the story for another combination of answers.
    pick(number) {
      this.story = this.data.stories[number];
    }

    legend() {
      const blocks = this.data.looks.flat(), height = this.type, width = 26;
      return Object.entries(this.data.legend).filter(([kind]) => blocks.some((block) => block[5] === kind)).map(([kind, text]) =>
        [width, height, [this.block([0, 0, height / this.unit, width / this.unit, 0, kind, kind === "s" ? "0" : ""], 0, 0)], text]);
    }
  };

  Player.startAll();
})();
