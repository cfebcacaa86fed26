// The clock of the network view: a timeline that shares its time, and the texts around it. Times are Python's ticks.
(() => {
  const Player = customElements.get("collective-player"), { make } = Player;
  const HEAD = 26, TYPE = 13, READ_MS = 80;
  const HINTS = ["Drag to move in time; point at a bar or a packet for its name.", "Drag to move in time."];
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

  Player.Clock ??= class {
    constructor(data) {
      this.data = data;
    }

    // Lays it out for a width, below `top`.
    fit(width, top) {
      const { lanes } = this.data, race = lanes.length > 1;
      this.width = width;
      this.clockY = top + TYPE / 2;
      this.hints = HINTS[this.width < 420 || race ? 1 : 0];
      this.rowsTop = top + 2 * HEAD - 4;
      this.rows = race ? lanes.length : lanes[0].points.length;
      this.rowHeight = race ? 24 : clamp(Math.floor(250 / this.rows), 13, 22);
      this.left = race ? Math.max(...lanes.map((lane) => lane.title.length)) * TYPE * 0.6 + 12 : 30;
      this.perTick = (this.width - this.left - 8) / this.data.ticks;
      this.rowsBottom = this.rowsTop + this.rows * this.rowHeight;
      this.height = this.rowsBottom + 22;
    }

    x(tick) {
      return this.left + tick * this.perTick;
    }

    text(x, y, text, more = {}) {
      return make("text", { x, y, "font-size": TYPE, ...more }, text);
    }

    draw(slow) {
      const { data } = this, bars = data.lanes.length > 1 ? this.drawRace() : this.drawRows(data.lanes[0]);
      this.time = this.text(0, this.clockY, "", { class: "begin time" });
      this.scale = this.text(this.width, this.clockY, "", { class: "end quiet" });
      this.hint = this.text(0, this.clockY + HEAD - 6, this.hints, { class: "begin quiet", "font-size": 12 });
      this.veil = make("rect", { class: "veil", y: this.rowsTop - 2, height: this.rowsBottom - this.rowsTop + 4, width: 1e4 });
      this.needle = make("path", { class: "needle" });
      this.knob = make("circle", { class: "needle", cy: this.rowsTop - 6, r: 4 });
      this.slowDown(slow);
      return [this.scale, this.hint, ...bars, ...this.labels];
    }

    // What moves with the time; see Network.draw.
    get moving() {
      return [this.time, this.veil, this.needle, this.knob];
    }

    slowDown(slow) {
      if (this.scale) this.scale.textContent = this.data.scale[Number(slow)];
    }

    axis() {
      const [unit, , total] = this.data.clock, least = total / Math.max(2, (this.width - this.left) / 90);
      const power = 10 ** Math.floor(Math.log10(least)), step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= least);
      const nodes = [this.text(this.left - 8, this.rowsBottom + 12, unit, { class: "end quiet", "font-size": 12 })];
      for (let time = 0; time <= total * (1 + 1e-9); time += step) {
        const x = this.x((time / total) * this.data.ticks);
        nodes.push(this.text(Math.min(x, this.width - 10), this.rowsBottom + 12, Number(time.toPrecision(6)), { class: "quiet", "font-size": 12 }));
      }
      const lines = this.data.moments.map((moment) => `M${this.x(moment).toFixed(1)} ${this.rowsTop}V${this.rowsBottom}`).join("");
      return [make("path", { class: "moments", d: lines }), ...nodes];
    }

    // A row for each rank, with a bar for each message that it sends.
    drawRows(lane) {
      const row = this.rowHeight, tall = row - 5, fills = this.data.colours.map(() => ""), d = { late: "", queue: "", adds: "", takes: "", idle: "" };
      const box = (x, y, w, h) => `M${x.toFixed(1)} ${y.toFixed(1)}h${w.toFixed(1)}v${h.toFixed(1)}h${(-w).toFixed(1)}z`;
      const places = Math.max(...lane.messages.map((message) => message.row)) + 1;
      this.labels = lane.points.map((_, rank) => {
        const y = this.rowsTop + rank * row, [fill, ink] = this.data.colours[rank], size = Math.min(16, row - 1);
        return make("g", {}, make("rect", { x: 4, y: y + (row - size) / 2 - 1, width: size + 4, height: size, rx: 3, fill }),
          this.text(6 + size / 2, y + row / 2 - 1, rank, { "font-size": Math.min(12, size - 2), style: `fill:${ink};font-weight:700` }));
      });
      lane.idle.forEach((gaps, rank) => gaps.forEach(([from, until]) => {
        const bottom = this.rowsTop + rank * row + row - 3;
        for (let x = this.x(from) + 2; x + tall * 0.6 < this.x(until); x += 7) d.idle += `M${x.toFixed(1)} ${bottom}l${tall * 0.6} ${-tall}`;
      }));
      const bars = lane.messages.map((message) => {
        const { src, dst, ready, start, leave, move, arrive, end, held } = message, height = tall / places;
        const y = this.rowsTop + src * row + 1 + message.row * height, width = Math.max(0.6, (arrive - leave) * this.perTick - (move ? 0.7 : 0));
        d.late += box(this.x(start), y, (leave - start) * this.perTick, height);
        if (start > ready) d.queue += `M${this.x(ready).toFixed(1)} ${y + height / 2}H${this.x(start).toFixed(1)}`;
        if (end > arrive) d.adds += box(this.x(arrive), y, (end - arrive) * this.perTick, height);
        held.forEach((rank, place) => (fills[rank] += box(this.x(leave), y + (height * place) / held.length, width, height / held.length)));
        d.takes += box(this.x(start), this.rowsTop + dst * row + row - 3, Math.max(0.6, (end - start) * this.perTick - 0.7), 2);
        message.bar = make("rect", { class: "bar", x: this.x(start), y, width: Math.max(2, (end - start) * this.perTick), height });
        message.bar.message = message;
        return message.bar;
      });
      const paths = Object.entries(d).map(([kind, path]) => make("path", { class: kind, d: path }));
      return [...this.axis(), ...paths, ...fills.map((path, rank) => make("path", { d: path, fill: this.data.colours[rank][0] })), ...bars];
    }

    // Of a race, one bar for each schedule, with a mark where it finishes.
    drawRace() {
      this.finishes = [];
      this.labels = this.data.lanes.map((lane, number) => this.text(this.left - 10, this.rowsTop + (number + 0.5) * this.rowHeight, lane.title, { class: "end title" }));
      const bars = this.data.lanes.map((lane, number) => {
        const y = this.rowsTop + number * this.rowHeight, middle = y + this.rowHeight / 2, x = this.x(lane.finish);
        const line = make("path", { class: "course", d: `M${this.left} ${middle}H${x}`, style: `stroke:${this.data.lines[number]}` });
        const ends = lane.steps.map((step) => Math.max(...step.map(([, size, start]) => start + lane.sizes[size][2] + lane.sizes[size][3] + lane.sizes[size][4])));
        const marks = ends.map((end) => `M${this.x(end).toFixed(1)} ${middle - 5}v10`).join("");
        return make("g", {}, line, make("path", { class: "stops", d: marks }), make("path", { class: "finish", d: `M${x} ${y + 2}v${this.rowHeight - 4}` }));
      });
      return [...this.axis().slice(1), ...bars];
    }

    // While it runs, it is read a few times a second: a text in every frame would cost more than all packets.
    paint(now, runs = false) {
      const [unit] = this.data.clock;
      if (!runs || !(performance.now() - this.read < READ_MS)) this.read = performance.now(), this.time.textContent = `${this.say(now)} ${unit} of ${this.say(this.data.ticks)} ${unit}`;
      const x = this.x(now).toFixed(1); // as attributes: a transform would make the browser build its layers anew
      this.needle.setAttribute("d", `M${x} ${this.rowsTop - 6}V${this.rowsBottom + 3}`);
      this.knob.setAttribute("cx", x);
      this.veil.setAttribute("x", x);
    }

    say(tick) {
      const [, digits, total] = this.data.clock;
      return ((tick / this.data.ticks) * total).toFixed(digits);
    }

    // The tick at a point of the timeline; undefined elsewhere.
    tick(x, y) {
      return y < this.rowsTop - 14 ? undefined : clamp(Math.round((x - this.left) / this.perTick), 0, this.data.ticks);
    }

    // Names a message, or says what the reader can do.
    name(message) {
      this.hint.textContent = message ? this.told(message) : this.hints;
    }

    told({ src, dst, chunk, count, text, start, end }) {
      const chunks = count > 1 ? `chunks ${chunk} to ${chunk + count - 1}` : `chunk ${chunk}`;
      return `rank ${src} → rank ${dst}, ${chunks}, ${text}, ${this.say(start)} to ${this.say(end)} ${this.data.clock[0]}`;
    }
  };
})();
