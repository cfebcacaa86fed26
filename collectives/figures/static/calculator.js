// Shows the results of a formula for the values that the reader picks. The formula is data, written by `Program` in
// formula.py; nothing is evaluated as code. Every calculator carries this script; the first copy to run defines the
// element.
(() => {
  const RULES = {
    "+": (a, b) => a + b,
    "-": (a, b) => a - b,
    "*": (a, b) => a * b,
    "/": (a, b) => a / b,
    "//": (a, b) => Math.floor(a / b),
    "%": (a, b) => a - b * Math.floor(a / b),
    "**": (a, b) => a ** b,
    "<": (a, b) => Number(a < b),
    "<=": (a, b) => Number(a <= b),
    "==": (a, b) => Number(a === b),
    "!=": (a, b) => Number(a !== b),
    "?": (condition, yes, no) => (condition ? yes : no),
    ...Object.fromEntries(["min", "max", "floor", "ceil", "abs", "log2"].map((name) => [name, Math[name]])),
  };
  const RADIOS = 4, LETTERS = 60; // up to 4 choices, of 60 letters together, get radio buttons
  const QUIET_MS = 700; // announces the results after a pause of 700 ms
  const TALL = 242, EDGES = [24, 24, 34, 68]; // of a chart: top, right, bottom, left
  const LETTER = 6.4, ROW = 15; // of the names of its lines: a letter's width, and a line's height
  let calculators = 0;

  const make = (name, attributes = {}, ...children) => {
    const svg = /^(svg|path|circle|text|tspan|line)$/.test(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  // The same as `say` and `_number` in calculator.py.
  const number = (value) => {
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
    const size = Math.abs(value), sign = value < 0 ? "-" : "";
    if (size && (size < 1e-4 || size >= 1e15)) return sign + size.toExponential(2);
    const text = size >= 100 ? String(Math.round(size)) : String(Number(size.toPrecision(3)));
    return sign + (size >= 100 ? text.replace(/\B(?=(\d{3})+$)/g, ",") : text);
  };
  const fits = (value, unit) => unit.find((each) => Math.abs(value) >= each[1]) ?? unit.at(-1);
  const say = (value, unit) => Number.isNaN(value) ? "—" : `${number(value / fits(value, unit)[1])} ${fits(value, unit)[0]}`.trim();

  // The class that draws timelines; undefined until its script has run.
  const timelines = () => customElements.get("collective-player")?.pictures.timeline;

  // Returns a round length of an axis that leaves about a third free beyond `value`.
  const roomy = (value) => {
    const power = 10 ** Math.floor(Math.log10(value * 1.5));
    return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((times) => times * power).find((length) => length >= value * 1.5);
  };

  // Returns an axis's marks: 1, 3 or 1, 2, 5 times powers of ten if it is logarithmic, else multiples of a round step.
  const marks = (low, high, log, most) => {
    const all = [];
    if (log) {
      for (const steps of [[1], [1, 3], [1, 2, 5]]) {
        all.length = 0;
        for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
          for (const step of steps) all.push(Number(`${step}e${power}`));
        }
        if (all.filter((mark) => mark >= low && mark <= high).length >= 3) break;
      }
    } else {
      const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
      const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
      for (let mark = Math.ceil(low / step); mark <= high / step; mark++) all.push(mark * step);
    }
    const inside = all.filter((mark) => mark >= low && mark <= high);
    return inside.filter((_, index) => index % Math.ceil(inside.length / most) === 0);
  };

  class CollectiveCalculator extends HTMLElement {
    // While the page loads, the element has no children yet. When an element is moved later, they are there.
    connectedCallback() {
      if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => this.start());
      else this.start();
    }

    disconnectedCallback() {
      clearTimeout(this.timer);
    }

    start() {
      const source = this.querySelector(":scope > script[type='application/json']");
      if (this.live || !source) return;
      this.data = JSON.parse(source.textContent);
      if (this.data.timeline && !timelines()) return; // this script runs again after the script that draws them
      this.still = this.querySelector(":scope > .still");
      for (const old of this.querySelectorAll(":scope > .live, .still > :is(.picture, .plot)")) old.remove(); // left over if the page was saved while in use
      this.places = this.data.inputs.map((input) => input.at);
      this.build();
      setTimeout(() => this.finish()); // a task of its own, so that the page can scroll in between
    }

    // Shows the first values in place of the still picture.
    finish() {
      this.append(this.live);
      this.update();
      for (const drawn of [this.picture, this.plot]) if (drawn) this.still.append(drawn.cloneNode(true)); // the starting state, for paper
      const still = this.still.querySelector("img"); // inline SVG prints in the page's text colour
      if (still) still.outerHTML = decodeURIComponent(still.src.slice(still.src.indexOf(",") + 1));
      this.dataset.ready = "";
      this.dataset.lmSuppressShortcuts = "true"; // or JupyterLab handles the arrow keys as commands for its cells
      this.addEventListener("keydown", (event) => event.key.startsWith("Arrow") && event.stopPropagation()); // some pages turn at an arrow key
      if (this.plot) new ResizeObserver(() => this.draw()).observe(this.plot);
      if (this.lanes) new ResizeObserver(() => this.lay()).observe(this.lanes);
    }

    build() {
      const { inputs, outputs, bars } = this.data, group = `calculator-${++calculators}-${Date.now()}`;
      this.shows = []; // for each input, a function that shows its value
      const controls = inputs.map((input, index) => {
        if (input.stops) return this.slider(input, index);
        const brief = input.choices.length <= RADIOS && input.choices.join("").length <= LETTERS;
        return brief ? this.radios(input, index, group) : this.menu(input, index);
      });
      this.found = this.still.querySelector(".found").cloneNode(true);
      this.cells = [...this.found.querySelectorAll("td")];
      this.listed = [...outputs.keys()].filter((output) => outputs[output].listed);
      this.tracks = bars.map((bar) => ({ parts: bar.parts.map((part) => this.tinted(part, "i")), total: make("b") }));
      this.mark = make("p", { class: "threshold" }, make("span"));
      this.picture = make("div", { class: "picture" }, ...bars.map((bar, index) =>
        make("div", { class: "bar" }, make("p", {}, bar.label, this.tracks[index].total),
          make("div", { class: "track", "aria-hidden": "true" }, ...this.tracks[index].parts))));
      if (bars.length && this.data.limit !== null) this.picture.append(this.mark);
      this.legend(bars.flatMap((bar) => bar.parts));
      if (this.data.chart) this.plot = make("div", { class: "plot" });
      const scales = this.data.chart?.scales ? [this.scales(group)] : [];
      if (this.data.timeline) this.lanes = make("div", { class: "lanes" }, make("svg", { role: "img" }), make("ul", { class: "legend" }));
      this.status = make("p", { role: "status", class: "unseen" });
      this.live = make("div", { class: "live" }, make("strong", {}, this.getAttribute("aria-label")),
        make("div", { class: "inputs" }, ...controls), this.picture, ...(this.lanes ? [this.lanes] : []),
        ...(this.plot ? [make("div", { class: "charted" }, ...scales, this.plot)] : []), this.found, this.status);
      this.live.classList.toggle("beside", Boolean(this.plot) && !bars.length && !this.lanes);
    }

    // The switch between the chart's own axes and linear ones.
    scales(group) {
      const pick = (linear) => {
        this.linear = linear;
        this.draw();
      };
      return make("fieldset", { class: "scales" }, make("legend", {}, "axes"), ...["logarithmic", "linear"].map((name, place) => {
        const radio = make("input", { type: "radio", name: `${group}-axes` });
        radio.checked = place === 0;
        radio.onchange = () => pick(place === 1);
        return make("label", {}, radio, name);
      }));
    }

    lists(parts) {
      return parts.every((part) => this.data.outputs[part].listed);
    }

    // A legend for the colours of parts that have no row of their own.
    legend(parts) {
      const named = new Map(parts.map((part) => [this.data.outputs[part].label, part]));
      if (this.lists(parts)) return;
      this.picture.prepend(make("p", { class: "legend" }, ...[...named].map(([label, part]) => make("span", {}, this.tinted(part, "i"), label))));
    }

    // A node in the colour of an output.
    tinted(output, ...parts) {
      const node = make(...parts);
      node.style.setProperty("--part", this.data.colours[output]);
      return node;
    }

    slider(input, index) {
      const value = make("b"), range = make("input", { type: "range", min: 0, max: input.stops.length - 1, "aria-label": input.label });
      range.value = input.at;
      range.oninput = () => this.move(index, Number(range.value));
      this.shows[index] = () => {
        value.textContent = say(input.stops[this.places[index]], input.unit);
        range.setAttribute("aria-valuetext", value.textContent);
      };
      return make("div", {}, make("p", { "aria-hidden": "true" }, input.label, value), range);
    }

    menu(input, index) {
      const select = make("select", {}, ...input.choices.map((choice) => make("option", {}, choice)));
      select.selectedIndex = input.at;
      select.onchange = () => this.move(index, select.selectedIndex);
      return make("label", {}, make("p", {}, input.label), select);
    }

    radios(input, index, group) {
      return make("fieldset", {}, make("legend", {}, input.label), ...input.choices.map((choice, place) => {
        const radio = make("input", { type: "radio", name: `${group}-${index}` });
        radio.checked = place === input.at;
        radio.onchange = () => this.move(index, place);
        return make("label", {}, radio, choice);
      }));
    }

    move(index, place) {
      this.places[index] = place;
      this.update();
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        const rows = [...this.found.rows].map((row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`);
        const alone = this.data.bars.map((bar, at) => !this.lists(bar.parts) && `${bar.label} ${this.tracks[at].total.textContent}`);
        const step = this.lanes ? [this.lanes.firstChild.getAttribute("aria-label")] : [];
        this.status.textContent = [...step, ...alone.filter(Boolean), ...rows].join(", ");
      }, QUIET_MS);
    }

    // Returns the outputs for the inputs at these places.
    results(places) {
      const [row, known] = this.run(places);
      return this.data.results[row].map((place) => known[place]);
    }

    // Returns the number of the combination of choices, and the program's value at each place.
    run(places) {
      const { inputs, lines } = this.data, known = [];
      let row = 0;
      inputs.forEach((input, index) => {
        if (input.tabulated) row = row * (input.stops ?? input.choices).length + places[index];
        else known.push(input.stops[places[index]]);
      });
      for (const line of lines) {
        known.push(Array.isArray(line) ? RULES[line[0]](...line.slice(1).map((place) => known[place])) : line ?? NaN);
      }
      return [row, known];
    }

    update() {
      const { outputs } = this.data, values = this.results(this.places);
      for (const show of this.shows) show?.();
      this.listed.forEach((output, row) => (this.cells[row].textContent = say(values[output], outputs[output].unit)));
      this.values = values;
      this.weigh(values);
      this.lay();
      this.draw();
    }

    // Draws the timeline: turns the program's values into data for the picture of timelines, which lays it out.
    lay() {
      if (!this.lanes) return;
      const { timeline } = this.data, [row, known] = this.run(this.places), [shape, places] = timeline.drawn[row];
      const [seconds = NaN, exposed = NaN, communicating = NaN, ...ends] = places.map((place) => known[place]);
      const values = { seconds, exposed, communicating }, [svg, legend] = this.lanes.children;
      const words = timeline.said.replace(/{(\w+)}/g, (_, name) => say(values[name], timeline.unit));
      svg.setAttribute("aria-label", words);
      if (!(seconds > 0 && seconds < Infinity)) return svg.replaceChildren();
      this.axis ??= { length: roomy(seconds), first: seconds };
      const axis = this.axis.length * 2 ** Math.ceil(Math.log2(seconds / this.axis.length)), ticks = 1e5; // a power of two times the first length
      const next = () => [(ends.shift() / axis) * ticks, (ends.shift() / axis) * ticks], lasting = ([from, until]) => until > from;
      const lanes = timeline.shapes[shape].map(([name, bars]) => ({ name, idle: [], bars: bars.map((bar) => [...next(), ...bar]).filter(lasting) }));
      const gaps = [];
      while (ends.length) gaps.push(next());
      const [unit, size] = fits(axis, timeline.unit), groups = [{ name: "", exposed: gaps.filter(lasting), lanes }];
      const charts = [{ title: timeline.title, totals: words, groups }];
      const picture = new (timelines())({ ticks, length: axis / size, unit, moments: [0], kinds: timeline.kinds, exposed: true, charts });
      picture.fit(Math.max(260, this.lanes.clientWidth || 640));
      svg.setAttribute("viewBox", `0 0 ${picture.width} ${picture.height}`);
      picture.show(svg, 0, false);
      this.begun(picture, svg, (this.axis.first / axis) * ticks);
      if (!legend.firstChild) legend.append(...picture.legend().map(([width, height, nodes, text]) =>
        make("li", {}, make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...nodes), text)));
    }

    // Marks the end of the step in the starting state, on the current axis.
    begun(picture, svg, tick) {
      const x = picture.x(tick), beyond = x > picture.width; // the axis is too short: an arrow points to the mark
      const text = `at first: ${say(this.axis.first, this.data.timeline.unit)}${beyond ? " →" : ""}`, half = text.length * 3.4;
      svg.prepend(picture.text(Math.min(x, picture.width - half), 7, text));
      if (!beyond) svg.prepend(make("path", { class: "first", d: `M${x} 14V${picture.height - 22}` }));
    }

    // Draws the bars on one scale: the longest bar, or the limit, takes the whole width. An undefined part has no length.
    weigh(values) {
      const { bars, limit, outputs } = this.data, sum = (parts) => parts.reduce((total, part) => total + (values[part] || 0), 0);
      const defined = (parts) => parts.some((part) => !Number.isNaN(values[part])) ? sum(parts) : NaN;
      const most = limit === null ? 0 : values[limit] || 0, whole = Math.max(most, ...bars.map((bar) => sum(bar.parts))) || 1;
      bars.forEach(({ parts }, index) => {
        const { total, parts: shown } = this.tracks[index], over = limit !== null && sum(parts) > most;
        parts.forEach((part, place) => (shown[place].style.width = `${(100 * (values[part] || 0)) / whole}%`));
        total.textContent = say(defined(parts), outputs[parts[0]].unit) + (over ? ": over the limit" : "");
        shown[0].parentNode.parentNode.classList.toggle("over", over);
      });
      if (limit === null) return;
      const share = (100 * most) / whole;
      this.picture.style.setProperty("--limit", `${share}%`);
      this.mark.classList.toggle("before", share > 50);
      this.mark.firstChild.textContent = `${outputs[limit].label}: ${say(values[limit], outputs[limit].unit)}`;
    }

    // The names of lines that end at the heights `end`, one below the other without touching.
    names(of, end, x) {
      const ends = of.map((output) => [end(output), output]).filter(([at]) => Number.isFinite(at)).sort(([a], [b]) => a - b);
      ends.forEach((each, place) => (each[0] = Math.max(each[0], place ? ends[place - 1][0] + ROW : 0)));
      return ends.map(([at, output]) => make("text", { x, y: at, class: "after" },
        this.tinted(output, "tspan", {}, "● "), this.data.outputs[output].label));
    }

    draw() {
      if (!this.plot) return;
      const { inputs, outputs, limit } = this.data, input = { ...inputs[this.data.chart.over] }, chart = { ...this.data.chart };
      const wide = Math.max(260, this.plot.clientWidth || 640), [top, , bottom, left] = EDGES;
      const turn = chart.mark === undefined ? NaN : this.values[chart.mark];
      if (this.linear) { // a linear axis ends where there is still something to see
        input.log = chart.log = false;
        const most = 4 * Math.max(input.stops[this.places[chart.over]], turn < input.stops.at(-1) ? turn : 0);
        input.stops = input.stops.filter((_, place, stops) => !(stops[place - 1] >= most));
      }
      const room = 14 + LETTER * Math.max(...chart.of.map((output) => outputs[output].label.length));
      const named = chart.of.length > 1 && room < 0.28 * wide, right = named ? room : EDGES[1]; // else the table names the colours
      const table = input.stops.map((_, place) => this.results(this.places.with(chart.over, place)));
      const level = limit === null ? [] : [this.values[limit]];
      const values = [...table.flatMap((row) => chart.of.map((output) => row[output])), ...level];
      const all = values.filter((value) => Number.isFinite(value) && (value > 0 || !chart.log));
      const unit = outputs[chart.of[0]].unit, size = fits(Math.max(...all), unit)[1];
      const most = Math.max(...all) * 1.3; // a logarithmic axis spans at least a factor of ten, to have marks
      const [low, high] = chart.log ? [Math.min(Math.min(...all) / 1.3, most / 10), most] : [Math.min(0, ...all), Math.max(0, ...all) * 1.05 || 1];
      const scale = (from, to, log, start, end) => (value) => {
        const along = log ? Math.log(value / from) / Math.log(to / from) : (value - from) / (to - from);
        return Number((start + along * (end - start)).toFixed(1));
      };
      const x = scale(input.stops[0], input.stops.at(-1), input.log, left, wide - right), y = scale(low, high, chart.log, TALL - bottom, top);
      const line = (output) => {
        let pen = "M";
        return table.map((row, place) => {
          const at = y(row[output]), drawn = Number.isFinite(at) ? `${pen}${x(input.stops[place])} ${at}` : "";
          pen = drawn ? "L" : "M";
          return drawn;
        }).join("");
      };
      const across = (kind, at) => make("line", { class: kind, x1: left, x2: wide - right, y1: at, y2: at });
      const few = input.stops.length <= 12 && !this.linear, here = x(input.stops[this.places[chart.over]]), nodes = [];
      const along = few ? input.stops.filter((_, place) => place % Math.ceil((input.stops.length * 56) / (wide - left - right)) === 0)
        : marks(input.stops[0], input.stops.at(-1), input.log, Math.floor((wide - left - right) / 64));
      for (const mark of along) {
        const words = say(mark, input.unit), last = x(mark) + 3.5 * words.length > wide; // aligned with the picture's right edge
        nodes.push(make("text", { x: last ? wide : x(mark), y: TALL - bottom + 14, class: last ? "side" : "" }, words));
      }
      for (const mark of marks(low / size, high / size, chart.log, 6)) {
        const at = y(mark * size);
        nodes.push(across("rule", at), make("text", { x: left - 6, y: at, class: "side" }, say(mark * size, unit)));
      }
      nodes.push(make("text", { x: (left + wide - right) / 2, y: TALL - 6 }, input.label));
      for (const at of level.map(y).filter(Number.isFinite)) {
        nodes.push(across("limit", at), make("text", { x: wide - right, y: at - 9, class: "side" }, outputs[limit].label));
      }
      if (turn >= input.stops[0] && turn <= input.stops.at(-1)) {
        const at = x(turn), left = at > wide / 2; // the label goes to the wider side
        nodes.push(make("line", { class: "mark", x1: at, x2: at, y1: top, y2: TALL - bottom }),
          make("text", { x: at + (left ? -6 : 6), y: top - 10, class: left ? "side" : "after" }, `${outputs[chart.mark].label}: ${say(turn, outputs[chart.mark].unit)}`));
      }
      nodes.push(make("line", { class: "here", x1: here, x2: here, y1: top, y2: TALL - bottom }));
      for (const output of chart.of) {
        nodes.push(this.tinted(output, "path", { class: "curve", d: line(output), "stroke-dasharray": this.data.dashes[output] ?? "" }));
        const at = y(this.values[output]);
        if (Number.isFinite(at)) nodes.push(this.tinted(output, "circle", { cx: here, cy: at, r: 5 }));
      }
      if (named) nodes.push(...this.names(chart.of, (output) => y(table.at(-1)[output]), wide - right + 6));
      const label = `${chart.of.map((output) => outputs[output].label).join(", ")} over ${input.label}`;
      this.plot.replaceChildren(make("svg", { viewBox: `0 0 ${wide} ${TALL}`, role: "img", "aria-label": label }, ...nodes));
    }
  }

  if (!customElements.get("collective-calculator")) customElements.define("collective-calculator", CollectiveCalculator);
  for (const calculator of document.querySelectorAll("collective-calculator")) calculator.start?.();
})();
