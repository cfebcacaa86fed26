// The picture of matrices cut into blocks: a row a rank, a column a matrix or a gate, and boxes to choose a story by.
(() => {
  const Player = customElements.get("collective-player"), { make } = Player;
  const GAP = 22, TYPE = 17, GATE = 26, LETTER = 0.6, WIDE = 400, HIGH = 420;

  Player.pictures.blocks ??= class {
    constructor(data) {
      this.data = data;
      this.last = data.stories[0].scenes.length - 1;
      this.at = null;
      const most = Math.max(...data.shapes.map(([rows]) => rows));
      this.unit = Math.min(30, WIDE / data.shapes.reduce((sum, [, columns]) => sum + columns, 0), HIGH / most / data.ranks);
      this.rows = most * this.unit;
      this.left = 62;
      this.top = TYPE * 2;
      let x = this.left;
      const notes = data.stories.flatMap(({ scenes }) => scenes.map((scene) => scene.notes));
      this.columns = data.shapes.map(([rows, columns], i) => {
        const said = Math.max(...notes.map((note) => note[i].length), ...data.stories.map((story) => story.headings[i].length));
        const room = Math.max(rows ? columns * this.unit : GATE, said * TYPE * LETTER * 0.9);
        const place = { x, room, width: rows ? columns * this.unit : GATE, height: rows * this.unit };
        x += room + GAP;
        return place;
      });
      this.width = x - GAP + 8;
      this.pitch = this.rows + GAP;
      this.height = this.top + data.ranks * this.pitch + TYPE * 1.4;
      this.maxWidth = `max(26rem, ${this.width * 1.5}px)`;
      this.story = data.stories[0];
    }

    text(x, y, text, size = TYPE, more = {}) {
      return make("text", { x, y, "font-size": size, ...more }, text);
    }

    // Where rank `rank`'s matrix of column `i` begins: in the middle of its column's room and of its row.
    corner(rank, i) {
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
      const size = Math.min(TYPE - 2, box.height * 0.9, (box.width / Math.max(1, label.length)) * 1.4);
      if (label && kind !== "a") {
        nodes.push(this.text(box.x + box.width / 2, box.y + box.height / 2, label, size, { style: `fill:${ink};stroke:${fill}`, class: "plate" }));
      }
      return make("g", { class: `block ${kind}` }, ...nodes);
    }

    matrix(i, rank, look) {
      const [x, y] = this.corner(rank, i), { width, height } = this.columns[i];
      return make("g", {}, make("rect", { class: "outline", x, y, width, height, rx: 2 }), ...this.data.looks[look].map((block) => this.block(block, x, y)));
    }

    // A column in which something happens is framed, all ranks together; a gate is a bar through all of them.
    frame(i, note) {
      const { x, room, height } = this.columns[i], bottom = this.top + this.data.ranks * this.pitch - GAP;
      const sends = note && note !== this.data.nothing, gate = !height;
      const [left, width] = gate ? [x + (room - GATE) / 2, GATE] : [x - 7, room + 14], grow = gate ? 0 : 7;
      const frame = make("rect", { class: `${gate ? "gate" : "frame"} ${sends ? "sends" : ""}`, x: left, y: this.top - grow, width, height: bottom - this.top + 2 * grow, rx: 7 });
      const said = this.text(x + room / 2, bottom + TYPE * 1.3, note, TYPE * 0.9, { class: sends ? "note" : "" });
      return gate || sends ? [frame, said] : [said];
    }

    draw(scene) {
      const nodes = [];
      for (let rank = 0; rank < this.data.ranks; rank++) {
        const y = this.top + rank * this.pitch + this.rows / 2, size = TYPE + 8, [fill, ink] = this.data.colours[rank];
        nodes.push(make("rect", { x: 8, y: y - size / 2, width: size, height: size, rx: 4, fill }), this.text(8 + size / 2, y, rank, TYPE, { style: `fill:${ink};font-weight:700` }));
      }
      nodes.push(this.text(8 + (TYPE + 8) / 2, TYPE * 0.7, "rank", TYPE * 0.9));
      this.columns.forEach(({ x, room, height }, i) => {
        nodes.push(this.text(x + room / 2, TYPE * 0.7, this.story.headings[i], TYPE, { "font-weight": 700 }), ...this.frame(i, scene.notes[i]));
        if (height) scene.held[i].forEach((look, rank) => nodes.push(this.matrix(i, rank, look)));
      });
      return nodes;
    }

    show(svg, at, moving) {
      if (this.at === null && this.data.choices.length) this.ask(svg);
      this.at = at;
      svg.replaceChildren(...this.draw(this.story.scenes[at]));
      svg.classList.toggle("moving", moving);
    }

    name(at) {
      return at ? `step ${at}` : "before";
    }

    alarms() {
      return false;
    }

    // The boxes stand above the picture; another choice is another story with words of its own, at the same step.
    ask(svg) {
      const player = svg.closest("collective-player"), { choices, stories } = this.data;
      const boxes = choices.map(([question, answers]) => make("select", { "aria-label": question }, ...answers.map((answer) => make("option", {}, answer))));
      const asked = make("div", { class: "choices" }, ...boxes.map((box, i) => make("label", {}, make("span", {}, choices[i][0]), box)));
      asked.onkeydown = (event) => event.stopPropagation(); // there the arrow keys choose
      asked.onchange = () => {
        this.story = stories[boxes.reduce((place, box) => place * box.length + box.selectedIndex, 0)];
        player.words = this.story.words;
        player.step(this.at);
      };
      const words = stories.flatMap((story) => story.words);
      player.say.lastChild.textContent = words.reduce((a, b) => (b.length > a.length ? b : a)); // it keeps their place
      svg.before(asked);
    }

    legend() {
      const found = this.data.looks.flat(), height = TYPE, width = 26;
      return Object.entries(this.data.legend).filter(([kind]) => found.some((block) => block[5] === kind)).map(([kind, text]) =>
        [width, height, [this.block([0, 0, height / this.unit, width / this.unit, 0, kind, kind === "s" ? "0" : ""], 0, 0)], text]);
    }
  };

  Player.startAll();
})();
