// The picture of timelines: a bar for each span, a row for each lane, all charts on one axis with a cursor.
(() => {
  const Player = customElements.get("collective-player"), { make } = Player;
  const TOP = 20, HEAD = 20, TYPE = 12, LETTER = 0.6, RIGHT = 14;

  const roundStep = (least) => {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least);
  };

  // The micro-batch of a pipeline's bar: "2" of "F2", "I2", "&B2 of stage 7". Other timelines have none.
  const microBatch = (name) => name?.match(/^&?[FBIW](\d+)\b/)?.[1];

  Player.pictures.timeline ??= class {
    constructor(data) {
      this.data = data;
      this.last = data.moments.length;
      this.maxWidth = "none";
      this.pace = Math.max(400, Math.min(1600, 20000 / this.last)); // plays in 20 s, unless a step is then too fast or slow
      this.groups = data.charts.flatMap((chart) => chart.groups);
      const lanes = this.groups.flatMap((group) => group.lanes);
      this.bar = lanes.length > 12 ? 18 : 24;
      this.row = this.bar + 4;
      this.left = Math.max(this.data.unit.length, ...lanes.map((lane) => lane.name.length)) * TYPE * LETTER + 12;
      this.fit(720);
    }

    // The height depends on the width: a narrow chart has its totals below the title.
    fit(width) {
      this.width = width;
      this.perTick = (width - this.left - RIGHT) / this.data.ticks;
      this.nodes = this.followed = null;
      this.height = this.layOut().height;
    }

    x(tick) {
      return this.left + tick * this.perTick;
    }

    text(x, y, text, more = {}) {
      return make("text", { x, y, "font-size": TYPE, ...more }, text);
    }

    // Returns the lines above a chart. The first is [title, totals] if both fit.
    header({ title, totals }) {
      const room = this.width / (TYPE * LETTER);
      if (title.length + totals.length + 4 < room) return [[title, totals]];
      const lines = title ? [[title, ""]] : [];
      let line = "";
      for (const word of totals.split(" ")) {
        if ((line + word).length > room) lines.push([line, ""]), line = "";
        line += word + " ";
      }
      return [...lines, [line, ""]];
    }

    // Returns the y of each chart, group and lane.
    layOut() {
      let y = TOP;
      const charts = this.data.charts.map((chart) => {
        const place = { y, lines: this.header(chart) };
        y += HEAD * place.lines.length;
        place.groups = chart.groups.map((group) => {
          const start = y, top = y + (group.name ? HEAD : 0);
          y = top + group.lanes.length * this.row;
          return { y: start, top };
        });
        y += 10;
        return place;
      });
      return { charts, bottom: y, height: y + 22 };
    }

    // A label has an outline in the bar's colour, so that no pattern runs through the letters.
    span([start, end, kind, name], y) {
      const [, colour, ink, pattern] = this.data.kinds[kind], x = this.x(start);
      const width = Math.max(0.7, (end - start) * this.perTick - 0.8), height = this.bar;
      const strokes = pattern.map(([middle, thickness, dashes]) => make("path", {
        class: "stroke", d: `M${x} ${y + middle * height}h${width}`, stroke: ink, "stroke-width": thickness * height, "stroke-dasharray": dashes }));
      const short = name.match(/[a-z]\d+|\b\d+\b/i)?.[0];  // of "0F2 of stage 7": "F2"
      const shown = [name, name.match(/\S*\d\S*/)?.[0], short, short?.match(/\d+/)[0]].find((text) => text && text.length * TYPE * LETTER < width - 3);
      const label = shown ? [this.text(x + width / 2, y + height / 2, shown, { style: `fill:${ink};stroke:${colour}`, class: "plate" })] : [];
      return make("g", { class: "span", "data-name": name }, make("rect", { x, y, width, height, rx: Math.min(3, width / 4), fill: colour }), ...strokes, ...label);
    }

    exposed(from, until, y, height) {
      const x = this.x(from), width = (until - from) * this.perTick;
      return make("g", { class: "exposed" }, make("rect", { x, y, width, height }), make("path", { d: `M${x} ${y + height}h${width}` }));
    }

    idle(from, until, y, height) {
      let d = "";
      for (let x = this.x(from) + 2; x + height * 0.6 < this.x(until); x += 7) d += `M${x.toFixed(1)} ${y + height}l${height * 0.6} ${-height}`;
      return make("path", { class: "idle", d });
    }

    axis(bottom) {
      const { length, ticks, unit } = this.data, step = roundStep(length / Math.max(2, (this.width - this.left) / 60)), nodes = [];
      for (let time = 0; time <= length * (1 + 1e-9); time += step) {
        const x = this.x((time / length) * ticks);
        nodes.push(make("path", { class: "tick", d: `M${x} ${TOP}V${bottom}` }), this.text(x, bottom + 11, Number(time.toPrecision(6))));
      }
      return [...nodes, this.text(this.left - 8, bottom + 11, unit, { class: "end" })];
    }

    draw() {
      const { charts, bottom } = this.layOut(), marks = [], texts = [], spans = [];
      const bars = [];
      this.data.charts.forEach((chart, c) => {
        const { y, lines, groups } = charts[c];
        lines.forEach(([begin, end], row) => texts.push(
          this.text(0, y + HEAD * (row + 0.5), begin, { class: `begin plate ${begin === chart.title ? "title" : ""}` }),
          this.text(this.width - RIGHT, y + HEAD * (row + 0.5), end, { class: "end plate" })));
        chart.groups.forEach((group, g) => {
          const { y: start, top } = groups[g];
          if (group.name) texts.push(this.text(0, start + HEAD / 2, group.name, { class: "begin" }));
          for (const [from, until] of group.exposed) marks.push(this.exposed(from, until, top - 2, group.lanes.length * this.row));
          group.lanes.forEach((lane, row) => {
            const laneY = top + row * this.row;
            texts.push(this.text(this.left - 8, laneY + this.bar / 2, lane.name, { class: "end" }));
            for (const [from, until] of lane.idle) marks.push(this.idle(from, until, laneY, this.bar));
            for (const bar of lane.bars) {
              const node = this.span(bar, laneY);
              bars.push({ node, from: this.moment(bar[0]), until: this.moment(bar[1]) });
              spans.push(node);
            }
          });
        });
      });
      const time = this.text(0, TOP / 2, "", { class: "time" });
      const cursor = make("g", { class: "cursor" }, make("path", { d: `M0 ${TOP - 3}V${bottom}` }), time);
      return { bars, cursor, time, all: [...this.axis(bottom), ...marks, ...spans, ...texts, cursor] };
    }

    // Returns the number of the moment that a tick belongs to: the last one at or before it.
    moment(tick) {
      return this.data.moments.findLastIndex((moment) => moment <= tick);
    }

    // Step 0 is the whole timeline, without a cursor. Step n is moment n - 1.
    show(svg, at, moving) {
      if (!this.nodes) svg.replaceChildren(...(this.nodes = this.draw()).all);
      const { bars, cursor, time } = this.nodes, x = this.x(this.data.moments[Math.max(0, at - 1)]);
      for (const { node, from, until } of bars) {
        node.classList.toggle("now", at > 0 && from <= at - 1 && at - 1 < until);
        node.classList.toggle("later", at > 0 && from > at - 1);
      }
      cursor.classList.toggle("moving", moving && at > 1);
      cursor.style.transform = `translateX(${x}px)`;
      cursor.style.visibility = at ? "visible" : "hidden";
      time.textContent = this.name(at);
      const half = (this.name(at).length * TYPE * LETTER) / 2; // keeps the time inside the picture
      time.setAttribute("x", Math.max(half - x, Math.min(0, this.width - half - x)));
    }

    name(at) {
      const { moments, ticks, length, unit } = this.data;
      return at ? `${Number(((moments[at - 1] / ticks) * length).toPrecision(3))} ${unit}` : "the whole timeline";
    }

    alarms() {
      return false;
    }

    // Follows the micro-batch of the bar under the pointer over the ranks: all other bars fade.
    hover(target) {
      const number = microBatch(target.closest(".span")?.dataset.name) ?? null;
      if (number === this.followed) return;
      this.followed = number;
      for (const { node } of this.nodes.bars) node.classList.toggle("other", number !== null && microBatch(node.dataset.name) !== number);
    }

    seek(x) {
      return this.moment((x - this.left) / this.perTick) + 1;
    }

    legend() {
      const { data, left, bar: height } = this, ticks = 36 / this.perTick, from = -left / this.perTick; // 36 pixels, at x = 0
      const items = data.kinds.map(([text], kind) => [36, height, [this.span([from, from + ticks, kind, ""], 0)], text]);
      if (data.exposed) items.push([36, height, [this.exposed(from, from + ticks, 0, height)], "communication while nothing computes: exposed"]);
      const idle = this.groups.some((group) => group.lanes.some((lane) => lane.idle.length));
      if (idle) items.push([36, height, [this.idle(from, from + ticks, 0, height)], "idle"]);
      const pipeline = this.groups.some((group) => group.lanes.some((lane) => lane.bars.some(([, , , name]) => microBatch(name))));
      if (pipeline && matchMedia("(hover: hover)").matches) {
        const [followed, other] = [from, from + ticks / 2].map((start) => this.span([start, start + ticks / 2, 0, ""], 0));
        other.classList.add("other");
        items.push([36, height, [followed, other], "point at a bar to follow its micro-batch"]);
      }
      return items;
    }
  };

  Player.startAll();
})();
