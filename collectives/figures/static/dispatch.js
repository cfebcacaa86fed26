// The picture of tokens and experts: a column for each rank, with its tokens above and its experts below.
(() => {
  const Player = customElements.get("collective-player"), { make } = Player;
  const TYPE = 12, LETTER = 0.6, CELL = 20, ROW = 23, GAP = 8, HEAD = 26, BETWEEN = 34, ARROW = "→";

  Player.pictures.dispatch ??= class {
    constructor(data) {
      this.data = data;
      this.last = data.steps.length - 1;
      this.maxWidth = "46rem";
      this.pace = Math.max(700, Math.min(1600, 30000 / this.last));
      this.states = [];
      for (const [, moves] of data.steps) {
        const state = [...(this.states.at(-1) ?? [])];
        for (const [token, ...place] of moves) state[token] = place;
        this.states.push(state);
      }
      this.experts = HEAD + data.rows * ROW + BETWEEN; // y of the experts' first tokens
      this.height = this.experts + data.depth * ROW + 6;
      this.fit(640);
    }

    fit(width) {
      const ranks = this.data.colours.length;
      this.width = width;
      this.column = (width - 2 - GAP * (ranks - 1)) / ranks; // a margin of 1 for the frames
      this.each = this.column / this.data.share; // width of an expert
      this.nodes = null;
    }

    text(x, y, text, more = {}) {
      return make("text", { x, y, "font-size": TYPE, ...more }, text);
    }

    left(rank) {
      return 1 + rank * (this.column + GAP);
    }

    // Returns a token's place: [x, y, width].
    box(number, [where, slot]) {
      const { tokens, share } = this.data;
      if (where < 0) return [this.left(tokens[number][0]), HEAD + slot * ROW, this.column];
      const x = this.left(Math.floor(where / share)) + (where % share) * this.each;
      return [x + 2, this.experts + slot * ROW, this.each - 4];
    }

    // At home, a token's label includes its expert. At the expert, it doesn't.
    label(number, where, width) {
      const [, name, expert] = this.data.tokens[number], fits = (text) => text.length * TYPE * LETTER < width - 2;
      return [where < 0 && name + ARROW + expert, name].find((text) => text && fits(text)) ?? "";
    }

    token(number) {
      const [, , , dst, dropped] = this.data.tokens[number], [fill, ink] = this.data.colours[dst];
      const rect = make("rect", { height: CELL, ...(dropped ? {} : { fill }) });
      const text = this.text(0, CELL / 2 + 0.5, "", dropped ? {} : { style: `fill:${ink}` });
      return { rect, text, node: make("g", { class: dropped ? "token dropped" : "token" }, rect, text) };
    }

    put({ rect, text, node }, number, [where, slot, answered]) {
      const [x, y, width] = this.box(number, [where, slot]);
      rect.setAttribute("width", width);
      rect.setAttribute("rx", answered ? CELL / 2 : 3);
      text.setAttribute("x", width / 2);
      text.textContent = this.label(number, where, width);
      node.style.transform = `translate(${x}px, ${y}px)`;
    }

    draw() {
      const { colours, tokens, depth, share } = this.data, fixed = [];
      colours.forEach(([fill, ink], rank) => {
        const x = this.left(rank), middle = x + this.column / 2, size = TYPE + 10;
        fixed.push(make("rect", { x: middle - size / 2, y: 1, width: size, height: size - 2, rx: 4, fill }),
          this.text(middle, size / 2, rank, { style: `fill:${ink};font-weight:700` }));
        for (let number = 0; number < share; number++) {
          const expert = rank * share + number, left = x + number * this.each, top = this.experts - 3;
          fixed.push(make("rect", { class: "expert", x: left, y: top, width: this.each, height: depth * ROW + 3, rx: 4, stroke: fill }),
            this.text(left + this.each / 2, top - 11, this.each > 70 ? `expert ${expert}` : `e${expert}`));
        }
      });
      tokens.forEach(([rank], number) => {
        const [x, y, width] = this.box(number, this.states[0][number]);
        fixed.push(make("rect", { class: "seat", x, y, width, height: CELL, rx: 3 }));
      });
      const movers = tokens.map((_, number) => this.token(number));
      return { movers, all: [...fixed, ...movers.map(({ node }) => node)] };
    }

    show(svg, at, moving) {
      if (!this.nodes) svg.replaceChildren(...(this.nodes = this.draw()).all);
      const moved = new Set(at ? this.data.steps[at][1].map(([token]) => token) : []);
      this.nodes.movers.forEach((mover, number) => {
        mover.node.classList.toggle("now", moved.has(number));
        mover.node.classList.toggle("moving", moving);
        this.put(mover, number, this.states[at][number]);
      });
    }

    name(at) {
      return this.data.steps[at][0];
    }

    alarms() {
      return false;
    }

    legend() {
      const { tokens } = this.data, width = 62;
      const first = tokens.findIndex((token) => !token[4]), lost = tokens.findIndex((token) => token[4]);
      const sample = (number, answered, text) => {
        const mover = this.token(number), [, name, expert] = tokens[number];
        mover.rect.setAttribute("width", width);
        mover.rect.setAttribute("rx", answered ? CELL / 2 : 3);
        mover.text.setAttribute("x", width / 2);
        mover.text.textContent = name + ARROW + expert;
        return [width, CELL, [mover.node], text];
      };
      const items = [];
      if (first >= 0) {
        const [rank, name, expert, dst] = tokens[first];
        items.push(sample(first, false, `token ${name.split(".")[1]} of rank ${rank}, for expert ${expert} on rank ${dst}, in that rank's colour`),
          sample(first, true, "its answer"));
      }
      if (lost >= 0) items.push(sample(lost, false, "dropped: it isn't sent"));
      return items;
    }
  };

  Player.startAll();
})();
