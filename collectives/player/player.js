// Steps through one schedule. All it shows is the JSON and the list of words that Python wrote into the element:
// nothing here knows an algorithm. Every figure carries this script; the first one to run defines the element.
(() => {
  const LANE = 11, MOVE_MS = 750, PLAY_MS = 2400;

  const make = (name, attributes = {}, ...children) => {
    const svg = /^(svg|g|path|rect|circle|text)$/.test(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  // The icons of the buttons, on a field of 20 by 20, and what screen readers call them.
  const BUTTONS = {
    first: ["First", "M4 4h2.5v12H4zM16 4v12L7.5 10z"],
    back: ["Back", "M14.5 4v12L6 10z"],
    play: ["Play", "M5 3.5v13L16 10z"],
    forward: ["Forward", "M5.5 4v12L14 10z"],
    last: ["Last", "M4 4v12L12.5 10zM13.5 4H16v12h-2.5z"],
  };
  const PAUSE = "M5 4h3.5v12H5zM11.5 4H15v12h-3.5z";

  // One machine's picture: a column a rank, a row a chunk, so that a transfer never leaves its row.
  class Picture {
    constructor(data) {
      this.data = data;
      this.columns = data.columns;
      this.pip = data.places === 1 ? 24 : 18;
      this.cell = [this.columns * this.pip + 10, Math.ceil(data.places / data.columns) * this.pip + 10];
      this.gap = data.ranks > 5 ? 24 : 30;
      const grid = data.ranks * (this.cell[0] + this.gap);
      this.type = Math.max(15, Math.min(26, grid / 40)); // a wide grid is shown smaller, so its letters are larger
      this.left = this.type * 4.9;
      this.top = this.type * 2;
      const lanes = Math.max(0, ...data.steps.flatMap((step) => step.moves.map((move) => move[4])));
      this.pitch = [this.cell[0] + this.gap, this.cell[1] + 10 + lanes * LANE];
      this.width = this.left + data.ranks * this.pitch[0] - this.gap + 12;
      this.height = this.top + data.chunks * this.pitch[1] + 6;
    }

    corner(rank, chunk) {
      return [this.left + rank * this.pitch[0], this.top + (chunk + 1) * this.pitch[1] - this.cell[1]];
    }

    text(x, y, text, size = this.type, more = {}) {
      return make("text", { x, y, "font-size": size, ...more }, text);
    }

    // The contents of a slot such as "p03": each rank's pip has its own place, so colour is not the only sign.
    pips(slot) {
      const held = [...slot.slice(1)];
      return [...new Set(held)].map((digit) => {
        const rank = parseInt(digit, 16), place = this.data.places === 1 ? 0 : rank, size = this.pip - 2;
        const x = 6 + (place % this.columns) * this.pip, y = 6 + Math.floor(place / this.columns) * this.pip;
        const [fill, ink] = this.data.colours[rank], twice = held.filter((other) => other === digit).length > 1;
        return make("g", { class: "pip" },
          make("rect", { x, y, width: size, height: size, rx: 3, fill }),
          this.text(x + size / 2, y + size / 2, twice ? rank + "×2" : rank, size * (twice ? 0.55 : 0.72), { style: `fill:${ink}` }));
      });
    }

    slot(slot, x, y) {
      const [width, height] = this.cell, kind = slot[0];
      const group = make("g", { class: kind, transform: `translate(${x} ${y})` },
        make("rect", { class: "cell", width, height, rx: 5 }), ...this.pips(slot));
      if (kind === "s") {
        group.append(make("path", { class: "hatch", d: `M0 0L${width} ${height}M${width} 0L0 ${height}` }));
      }
      if (kind === "w") group.append(make("circle", { class: "badge", cx: width, r: 9 }), this.text(width, 0, "!", 15));
      return group;
    }

    // From side to side between neighbours; further away up, along the lane above the row, and down; straight between rows.
    route([src, dst, chunk, , lane, , lands]) {
      const [width, height] = this.cell, way = dst > src ? 1 : -1;
      const [from, y] = this.corner(src, chunk), [to, bottom] = this.corner(dst, lands);
      if (lands !== chunk) {
        const length = Math.hypot(to - from, bottom - y), ux = (to - from) / length, uy = (bottom - y) / length;
        const reach = height * 0.5, cx = width / 2 - uy * 5, cy = height / 2 + ux * 5; // aside: two ways stay apart
        return [[from + cx + ux * reach, y + cy + uy * reach], [to + cx - ux * reach, bottom + cy - uy * reach]];
      }
      if (!lane) {
        const middle = y + height * (0.5 - 0.14 * way), side = way > 0 ? [width + 2, -3] : [-2, width + 3];
        return [[from + side[0], middle], [to + side[1], middle]];
      }
      const up = y - 4 - lane * LANE, out = from + width * (0.5 + 0.14 * way), into = to + width * (0.5 - 0.36 * way);
      return [[out, y - 2], [out, up], [into, up], [into, y - 3]];
    }

    arrow(move) {
      const points = this.route(move), [x, y] = points.at(-1), [px, py] = points.at(-2);
      const size = 9 / Math.hypot(x - px, y - py), dx = (x - px) * size, dy = (y - py) * size;
      const head = `M${x} ${y}L${x - dx - dy * 0.6} ${y - dy + dx * 0.6}L${x - dx + dy * 0.6} ${y - dy - dx * 0.6}z`;
      const line = [...points.slice(0, -1), [x - dx, y - dy]];
      const group = make("g", { class: move[5] ? "guilty" : "" },
        make("path", { class: "arrow", d: "M" + line.join("L") }), make("path", { class: "head", d: head }));
      if (move[3]) {
        const [[ax, ay], [bx, by]] = points.length > 2 ? points.slice(1, 3) : points;
        const cx = points.length > 2 ? (ax + bx) / 2 : ax + (bx - ax) * 0.36, cy = (ay + by) / 2;
        group.append(make("circle", { class: "plus", cx, cy, r: 7 }), this.text(cx, cy, "+", 14));
      }
      return group;
    }

    // What travels while a step plays: a copy of the contents, from cell to cell along the arrow.
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

    show(slots, moves) {
      const { ranks, chunks, colours } = this.data, [width, height] = this.cell, nodes = [];
      nodes.push(this.text(this.left / 2 - 6, this.type, "rank"));
      for (let rank = 0; rank < ranks; rank++) {
        const x = this.corner(rank, 0)[0] + width / 2, size = this.type + 8;
        nodes.push(make("rect", { x: x - size / 2, y: this.type - size / 2, width: size, height: size, rx: 4, fill: colours[rank][0] }),
          this.text(x, this.type, rank, this.type, { style: `fill:${colours[rank][1]};font-weight:700` }));
      }
      for (let chunk = 0; chunk < chunks; chunk++) {
        nodes.push(this.text(this.left / 2 - 6, this.corner(0, chunk)[1] + height / 2, `chunk ${chunk}`));
        for (let rank = 0; rank < ranks; rank++) nodes.push(this.slot(slots[rank * chunks + chunk], ...this.corner(rank, chunk)));
      }
      return [...nodes, ...moves.map((move) => this.arrow(move))];
    }
  }

  class CollectivePlayer extends HTMLElement {
    // While the page is still being read the children are not there yet; moved about later, all is ready.
    connectedCallback() {
      if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => this.start());
      else this.start();
    }

    disconnectedCallback() {
      this.pause();
    }

    start() {
      const source = this.querySelector(":scope > script[type='application/json']");
      if (this.stage || !source) return;
      this.querySelector(":scope > .stage")?.remove(); // left behind where a page was saved while it played
      this.data = JSON.parse(source.textContent);
      this.words = [...this.querySelectorAll(".still li")].map((item) => item.textContent);
      const still = this.querySelector(".still img"); // set in line, it prints in the page's own ink
      if (still) still.outerHTML = decodeURIComponent(still.src.slice(still.src.indexOf(",") + 1));
      this.last = this.data.steps.length;
      this.states = [this.data.first];
      for (const { changed } of this.data.steps) this.states.push(Object.assign([...this.states.at(-1)], changed));
      this.picture = new Picture(this.data);
      this.build();
      this.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take the arrow keys for its cells
      this.addEventListener("keydown", (event) => this.onKey(event));
      this.go(0);
    }

    build() {
      const { width, height } = this.picture;
      this.svg = make("svg", { role: "img", viewBox: `0 0 ${width} ${height}`});
      this.buttons = Object.fromEntries(Object.entries(BUTTONS).map(([name, [label, d]]) => [name,
        make("button", { type: "button", "aria-label": label, title: label }, make("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, make("path", { d })))]));
      this.slider = make("input", { type: "range", min: 0, max: this.last, value: 0, "aria-label": "Step" });
      this.live = make("p", { "aria-live": "polite" });
      const longest = this.words.reduce((a, b) => (b.length > a.length ? b : a));
      this.say = make("div", { class: "say" }, this.live, make("p", { "aria-hidden": "true" }, longest));
      this.stage = make("div", { class: "stage" }, make("strong", {}, this.getAttribute("aria-label")), this.svg,
        make("div", { class: "controls" }, ...Object.values(this.buttons), this.slider), this.say, this.legend());
      this.stage.style.maxWidth = `max(30rem, ${width * 1.3}px)`; // few ranks must not be blown up
      this.append(this.stage);
      const { first, back, play, forward, last } = this.buttons;
      first.onclick = () => this.step(0);
      back.onclick = () => this.step(this.at - 1);
      play.onclick = () => (this.timer ? this.pause() : this.play());
      forward.onclick = () => this.step(this.at + 1);
      last.onclick = () => this.step(this.last);
      this.slider.oninput = () => this.step(Number(this.slider.value));
    }

    legend() {
      const [width, height] = this.picture.cell;
      const sample = (...nodes) => make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...nodes);
      const find = (kind) => this.states.flat().find((slot) => slot[0] === kind);
      const items = Object.entries(this.data.kinds).map(([kind, text]) => make("li", {}, sample(this.picture.slot(find(kind), 0, 0)), text));
      return make("ul", { class: "legend" }, ...items);
    }

    onKey(event) {
      const steps = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: this.last };
      const onButton = event.target instanceof HTMLButtonElement; // there the space bar presses it, as everywhere
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in steps) this.step(steps[event.key]);
      else if (event.key === " " && !onButton) this.buttons.play.click();
      else return;
      event.preventDefault();
      event.stopPropagation(); // some pages turn over at an arrow key
    }

    play() {
      if (this.at === this.last) this.go(0);
      this.timer = setInterval(() => (this.at < this.last ? this.go(this.at + 1) : this.pause()), PLAY_MS);
      this.showPlaying();
      this.go(this.at + 1);
    }

    pause() {
      clearInterval(this.timer);
      this.timer = null;
      if (this.stage) this.showPlaying();
    }

    showPlaying() {
      const [label, icon] = this.timer ? ["Pause", PAUSE] : BUTTONS.play;
      this.buttons.play.setAttribute("aria-label", label);
      this.buttons.play.title = label;
      this.buttons.play.querySelector("path").setAttribute("d", icon);
    }

    // A step asked for by hand ends the playing.
    step(to) {
      this.pause();
      this.go(to);
    }

    go(to) {
      const at = Math.max(0, Math.min(this.last, to)), forward = at === this.at + 1;
      this.at = at;
      this.dataset.step = at;
      this.slider.value = at;
      this.slider.setAttribute("aria-valuetext", at ? `step ${at - 1}` : "before");
      this.live.textContent = this.words[at];
      this.svg.setAttribute("aria-label", this.words[at]);
      this.say.classList.toggle("guilty", this.data.alarms.includes(at));
      const moves = at ? this.data.steps[at - 1].moves : [];
      const settle = () => this.svg.replaceChildren(...this.picture.show(this.states[at], moves));
      if (forward && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.animate(moves, settle);
      else settle();
    }

    // The old state stays until the chips have arrived; asked for another step meanwhile, that one is shown.
    animate(moves, settle) {
      const { at, data, picture } = this, before = this.states[at - 1];
      const chips = moves.map((move) => picture.chip(move, before[move[0] * data.chunks + move[2]]));
      this.svg.replaceChildren(...picture.show(before, moves), ...chips.map((chip) => chip.node));
      const ends = chips.map((chip) => chip.play().finished);
      Promise.all(ends).then(() => this.at === at && settle(), () => {});
    }
  }

  if (!customElements.get("collective-player")) customElements.define("collective-player", CollectivePlayer);
  for (const player of document.querySelectorAll("collective-player")) player.start?.();
})();
