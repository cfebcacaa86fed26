// The slots of a schedule as a board to build on: drag from slot to slot, tap one and then another, or use the keyboard.
// It shows what every rank holds before the current step, the step's transfers as arrows, and, faintly, what they will bring.
(() => {
  const Lab = globalThis.CollectiveLab, { COPY, REDUCE } = Lab;
  const Player = customElements.get("collective-player"), { make } = Player;
  const TALL = 430, LEAST = 484, LARGEST = 1.9; // the height and width of a board up to which a small one is enlarged, at most 1.9 times
  const TAP = 8; // pixels that a finger may move in a tap

  Lab.Board = class {
    // `host` has schedule, seen (its analysis), at (the current step), colours, kinds, say(text), lacks(rank, chunk), arrive(), and draw(src, chunk, dst, into).
    constructor(host) {
      this.host = host;
      this.over = make("g", {}); // goals, what arrives, and arrows
      this.svg = make("svg", { "aria-hidden": "true" }, this.over);
      this.hits = make("div", { class: "hits", role: "group" });
      this.stage = make("div", { class: "stage" }, this.svg, this.hits);
      this.element = make("collective-player", { class: "board", "data-step": 0 }, this.stage); // styles of the figures' slots
      this.from = null;
      this.focus = [0, 0];
      this.hits.onpointerdown = (event) => this.down(event);
      this.hits.onpointermove = (event) => this.drag(event);
      this.hits.onpointerup = (event) => this.up(event);
      this.hits.onpointercancel = () => this.release();
      this.hits.onkeydown = (event) => this.key(event);
      this.hits.onclick = (event) => event.detail === 0 && this.pick(this.slotAt(event.target)); // from a screen reader
      new ResizeObserver(() => this.width !== this.hits.clientWidth && this.render()).observe(this.stage);
    }

    // --- drawing ---

    render() {
      const { schedule, seen, at, colours, kinds } = this.host;
      this.width = this.hits.clientWidth;
      if (!this.width) return;
      if (this.seen !== seen) this.picture = new Player.pictures.schedule(Lab.drawing((this.seen = seen), colours, kinds));
      const { picture } = this;
      this.fit(picture);
      const moves = picture.data.steps[at]?.moves ?? [], before = [...picture.states[at]], after = picture.states[at + 1] ?? before, ghosts = new Set();
      picture.twoWay = moves.some(([src, dst]) => moves.some(([from, to]) => from === dst && to === src));
      for (const [, dst, , adds, , , into] of moves) {
        ghosts.add([dst, into].join());
        if (!adds) before[dst * schedule.chunks + into] = "e";
      }
      const arriving = [...ghosts].map((key) => {
        const [rank, chunk] = key.split(",").map(Number), node = picture.slot(after[rank * schedule.chunks + chunk], ...picture.corner(rank, chunk));
        node.classList.add("arriving");
        return node;
      });
      this.line = make("path", { class: "pulling" });
      this.svg.setAttribute("viewBox", `0 0 ${picture.width} ${picture.height}`);
      this.ground(before);
      this.over.replaceChildren(...this.goals(), ...arriving, ...moves.map((move) => picture.arrow(move)), this.line);
      this.place();
    }

    // Draws the slots and their names. A large board has thousands of squares, so what looks as before stays in the page.
    ground(slots) {
      const { picture } = this, { ranks, chunks, places } = picture.data, layout = [ranks, chunks, places, picture.columns, picture.start, ...picture.pitch].join();
      if (this.drawn?.layout === layout) {
        const { nodes, slots: had } = this.drawn;
        slots.forEach((slot, place) => slot !== had[place] && nodes[place].replaceWith((nodes[place] = picture.slotAt(slot, place))));
        this.drawn.slots = slots;
      } else {
        this.drawn = { layout, slots, nodes: slots.map((slot, place) => picture.slotAt(slot, place)) };
        this.svg.replaceChildren(make("g", {}, ...picture.labels(), ...this.drawn.nodes), this.over);
      }
    }

    // A small board is enlarged, as far as the room allows.
    fit(picture) {
      picture.fit(this.width);
      const scale = Math.min(LARGEST, this.width / LEAST, this.width / picture.natural(picture.columns, 32), TALL / picture.height);
      if (scale > 1) picture.fit(this.width / scale);
      if (picture.narrow) picture.left += Math.min(8, picture.start - picture.left); // the names of the rows, clear of the frames
      this.scale = this.width / picture.width;
    }

    // Whether the slots that must end finished are marked: not if all must, or all are.
    marked() {
      const { promise, fault } = this.host.seen;
      return fault && !promise.wanted.flat().every(Boolean);
    }

    goals() {
      const { seen: { promise } } = this.host, [width, height] = this.picture.cell;
      if (!this.marked()) return [];
      return promise.wanted.flatMap((row, rank) => row.flatMap((wanted, chunk) => {
        const [x, y] = this.picture.corner(rank, chunk);
        return wanted ? [make("rect", { class: "goal", x: x - 3, y: y - 3, width: width + 6, height: height + 6, rx: 7 })] : [];
      }));
    }

    // Puts a button over every slot: it takes pointers and the keyboard, and says what the slot holds.
    place() {
      const { schedule: { ranks, chunks }, seen, at } = this.host, { wanted } = seen.promise, marked = this.marked(), [width, height] = this.picture.cell.map((size) => size * this.scale);
      const least = Math.min(24, this.picture.pitch[0] * this.scale);
      this.focus = [Math.min(this.focus[0], ranks - 1), Math.min(this.focus[1], chunks - 1)];
      const had = this.hits.contains(document.activeElement), wide = Math.max(width, least);
      if (this.hits.childElementCount !== ranks * chunks) {
        this.hits.replaceChildren(...Array.from({ length: ranks * chunks }, () => make("button", { type: "button", tabindex: -1 })));
      }
      [...this.hits.children].forEach((button, slot) => {
        const rank = Math.floor(slot / chunks), chunk = slot % chunks, [x, y] = this.picture.corner(rank, chunk).map((corner) => corner * this.scale);
        button.style.cssText = `left:${x - (wide - width) / 2}px;top:${y}px;width:${wide}px;height:${height}px`;
        const label = `rank ${rank}, chunk ${chunk}: ${Lab.holds(seen, at, rank, chunk)}${marked && wanted[rank][chunk] ? ", must end finished" : ""}`;
        if (button.getAttribute("aria-label") !== label) button.setAttribute("aria-label", label);
        button.tabIndex = rank === this.focus[0] && chunk === this.focus[1] ? 0 : -1;
        button.setAttribute("aria-pressed", this.from?.[0] === rank && this.from[1] === chunk);
      });
      this.hits.setAttribute("aria-label", `The slots before step ${at}: ${ranks} ranks with ${chunks} ${chunks > 1 ? "chunks" : "chunk"} each. Arrow keys move; Enter picks the slot to send, and then the slot to write.`);
      if (had) this.buttonAt(...this.focus).focus({ preventScroll: true });
    }

    // Lets the arrows of the current step carry their data, and then calls `done`.
    animate(done) {
      const { at } = this.host, moves = this.picture.data.steps[at]?.moves ?? [];
      if (!moves.length || matchMedia("(prefers-reduced-motion: reduce)").matches) return done();
      this.picture.at = at + 1;
      this.picture.animate(this.over, at + 1, moves, done);
    }

    // --- pointers ---

    buttonAt(rank, chunk) {
      return this.hits.children[rank * this.host.schedule.chunks + chunk];
    }

    // The slot of a button: [rank, chunk], or null.
    slotAt(target) {
      const slot = [...this.hits.children].indexOf(target), { chunks } = this.host.schedule;
      return slot < 0 ? null : [Math.floor(slot / chunks), slot % chunks];
    }

    slotUnder({ clientX, clientY }) {
      return this.slotAt(document.elementsFromPoint(clientX, clientY).find((each) => each.parentElement === this.hits));
    }

    down(event) {
      const slot = this.slotAt(event.target);
      if (!slot || event.button) return;
      this.host.arrive();
      this.pulled = { slot, x: event.clientX, y: event.clientY, far: false };
      this.hits.setPointerCapture(event.pointerId);
    }

    drag(event) {
      if (!this.pulled) return;
      const { slot, x, y } = this.pulled;
      if (!this.pulled.far && Math.hypot(event.clientX - x, event.clientY - y) < TAP) return;
      if (!this.pulled.far) this.mark((this.from = slot));
      this.pulled.far = true;
      const { left, top } = this.svg.getBoundingClientRect(), [width, height] = this.picture.cell, [fromX, fromY] = this.picture.corner(...slot);
      this.line.setAttribute("d", `M${fromX + width / 2} ${fromY + height / 2}L${(event.clientX - left) / this.scale} ${(event.clientY - top) / this.scale}`);
      this.aim(this.slotUnder(event));
    }

    up(event) {
      const { pulled } = this, slot = this.slotUnder(event);
      this.pulled = null;
      if (!pulled) return;
      this.line.removeAttribute("d");
      this.aim(null);
      if (!pulled.far) return this.pick(pulled.slot);
      this.release();
      if (slot && slot.join() !== pulled.slot.join()) this.host.draw(...pulled.slot, ...slot);
    }

    release() {
      this.pulled = null;
      this.line?.removeAttribute("d");
      this.mark((this.from = null));
    }

    // The first slot picked is the source, the second the target.
    pick(slot) {
      if (!slot) return;
      this.host.arrive();
      const { from } = this;
      this.focus = slot;
      if (!from) {
        if (this.host.lacks(...slot)) return;
        this.mark((this.from = slot));
        this.host.say(`Rank ${slot[0]}, chunk ${slot[1]} sends. Now pick the slot to write.`);
      } else {
        if (from.join() === slot.join()) return this.drop();
        this.release();
        this.host.draw(...from, ...slot);
      }
    }

    drop() {
      this.release();
      this.host.say("Nothing picked.");
    }

    mark(slot) {
      for (const button of this.hits.children) button.setAttribute("aria-pressed", slot !== null && button === this.buttonAt(...slot));
    }

    aim(slot) {
      for (const button of this.hits.children) button.classList.toggle("aimed", slot !== null && button === this.buttonAt(...slot));
    }

    // --- the keyboard ---

    key(event) {
      const [rank, chunk] = this.focus, { ranks, chunks } = this.host.schedule, moved = {
        ArrowLeft: [rank - 1, chunk], ArrowRight: [rank + 1, chunk], ArrowUp: [rank, chunk - 1], ArrowDown: [rank, chunk + 1], Home: [0, chunk], End: [ranks - 1, chunk],
      }[event.key];
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (moved) {
        this.focus = [Math.max(0, Math.min(ranks - 1, moved[0])), Math.max(0, Math.min(chunks - 1, moved[1]))];
        for (const button of this.hits.children) button.tabIndex = -1;
        this.buttonAt(...this.focus).tabIndex = 0;
        this.buttonAt(...this.focus).focus();
      } else if (event.key === "Enter" || event.key === " ") this.pick(this.focus);
      else if (event.key === "Escape") this.drop();
      else if (event.key === "PageDown" || event.key === "PageUp") this.host.go(this.host.at + (event.key === "PageDown" ? 1 : -1));
      else if (event.key === "Delete" || event.key === "Backspace") this.host.dropInto(...this.focus);
      else return;
      event.preventDefault();
      event.stopPropagation(); // some pages turn at an arrow key
    }
  };

  // How a transfer combines unless the builder says otherwise, [combine, why]: in a sum it adds, unless what arrives contains all that it
  // would be added to, as a finished sum does.
  Lab.usual = ({ promise, states, have, schedule: { collective, ranks } }, at, src, chunk, dst, into) => {
    if (collective === "barrier") return [REDUCE, ""];
    const [sent, held] = [states[at][src][chunk], states[at][dst][into]].map((slot) => slot.slice(0, ranks));
    if (promise.parts[dst][into].filter(Boolean).length < 2 || !have[at][dst][into]) return [COPY, ""];
    if (held.some((count, from) => count && !sent[from])) return [REDUCE, ""];
    return [COPY, `, because adding would count ${Lab.inWords(held.flatMap((count, from) => (count ? [from] : [])))} twice`];
  };
})();
