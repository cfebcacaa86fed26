// Two schedules, a machine and a size: both run on one clock in the network view, and the whole curve over sizes is beside it,
// with the sizes at which they cross.
(() => {
  const Lab = globalThis.CollectiveLab, { REDUCE } = Lab;
  const { make } = customElements.get("collective-player");
  const SECONDS = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]], BYTES = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["bytes", 1]];
  const LONGEST = 14, SLOW = 5; // seconds that a race plays, and how much slower at request, as in figures/network.py
  const SMALLEST = 3, LARGEST = 9.5, PER_DECADE = 4; // the curve, from 1 kB to 3 GB
  const WIDE = 560, TALL = 300, EDGES = [16, 34, 64], LETTER = 7.6; // of the curve: top, bottom, left; a letter of a label
  const SWITCH = { name: "one switch: 10 µs, 10 GB/s", link: [1e-5, 1e-10], across: [1e-5, 1e-10], inside: 128, sharing: 1, plain: true };
  const RANKS = [2, 3, 4, 5, 6, 7, 8, 12, 16];

  const number = (value) => (value >= 100 ? Lab.commas(Math.round(value)) : String(Number(value.toPrecision(3))));
  const say = (value, units) => {
    const [name, size] = units.find(([, least]) => value >= least * (1 - 1e-9)) ?? units.at(-1);
    return `${number(value / size)} ${name}`;
  };
  Lab.sayBytes = (value) => say(value, BYTES);
  Lab.saySeconds = (value) => say(value, SECONDS);
  const lcm = (a, b) => {
    const gcd = (x, y) => (y ? gcd(y, x % y) : x);
    return (a / gcd(a, b)) * b;
  };
  const divisors = (ranks) => Array.from({ length: ranks }, (_, less) => ranks - less).filter((size) => ranks % size === 0);

  // The topology of a machine for so many ranks, `inside` of them in a node.
  Lab.machine = ({ link, across, sharing, plain = false, ports = 1 }, ranks, inside) => {
    const overlapped = !plain;
    if (inside === ranks) return Lab.topology(ranks, link, { overlapped, ports });
    if (inside === 1) return Lab.topology(ranks, across, { overlapped, ports });
    return Lab.topology(ranks, link, { across, perNode: inside, perNic: inside % sharing ? (sharing > inside ? inside : 1) : sharing, overlapped, ports });
  };

  // The sizes, in bytes, at which one schedule overtakes the other, between the smallest and the largest of the curve.
  Lab.crossings = (seconds, sizes, unit) => {
    const ahead = (bytes) => Math.sign(seconds[0](bytes) - seconds[1](bytes)), found = [];
    for (let i = 1; i < sizes.length; i++) {
      let [low, high] = [sizes[i - 1], sizes[i]];
      const [before, after] = [ahead(low), ahead(high)];
      if (before === after || !before || !after) continue;
      while (high - low > Math.max(unit, low * 1e-3)) {
        const middle = Math.round(Math.sqrt(low * high) / unit) * unit;
        if (middle <= low || middle >= high) break;
        if (ahead(middle) === before) low = middle;
        else high = middle;
      }
      found.push(high);
    }
    return found;
  };

  Lab.Race = class {
    constructor(lab) {
      this.lab = lab;
      this.machines = [SWITCH, ...lab.machines];
      this.state = { collective: "all_reduce", ranks: 8, first: "ring", second: "binomial tree", machine: 0, inside: 8, bytes: 1e6, own: null };
      this.inputs = make("div", { class: "fields" });
      this.link = make("button", { type: "button", class: "link" }, "Copy a link");
      this.link.onclick = () => lab.attempt(() => lab.copy(lab.address(), "The link is copied.", this.link));
      this.trouble = make("p", { class: "trouble", role: "alert" });
      this.outcome = make("p", { class: "outcome", role: "status" });
      this.everywhere = make("p", { class: "everywhere", role: "status" });
      this.stage = make("div", {});
      this.curve = make("div", { class: "curve" });
      this.table = make("table", {});
      this.element = make("div", { class: "race", hidden: "" }, this.inputs, this.trouble, this.outcome, this.everywhere, this.stage, make("div", { class: "beside" }, this.curve, this.table));
    }

    // Takes the board's schedule along, if it can race. Otherwise the race stays as it was; returns why.
    open() {
      const mine = this.fromBoard(), hindrance = this.hindrance();
      if (mine && mine !== this.mine) {
        Object.assign(this.state, { collective: mine.collective, ranks: mine.ranks, first: "mine", inside: this.nodeOf(mine.ranks) });
      }
      this.mine = mine;
      this.change({});
      return hindrance && `${Lab.upper(hindrance)}.`;
    }

    // Why the board's schedule can't race, or "".
    hindrance() {
      const { schedule: { steps, collective, lengths }, seen: { fault } } = this.lab, dropped = (text) => text.replace(/\.$/, "");
      if (!steps.length) return "";
      if (!collective) return "your schedule has no contract, so it can't race";
      if (lengths) return "your schedule has chunks of given lengths, so it has only one size and can't race";
      return fault ? `your schedule is no ${Lab.prose(collective)} yet, so it can't race: ${dropped(this.lab.told())}. ${dropped(fault.message)}` : "";
    }

    fromBoard() {
      const { schedule } = this.lab;
      return schedule.steps.length && !this.hindrance() ? schedule : null;
    }

    // Refuses a schedule on the board that can't race.
    demand() {
      const hindrance = this.hindrance();
      if (hindrance) Lab.refuse(hindrance);
    }

    // What an address says of a race, and the other way round; see share.js.
    parts() {
      const { collective, ranks, first, second, machine, inside, bytes, own } = this.state;
      return [collective, ranks, first, second, this.machines[machine].name, inside, bytes, ...(own ? [...own.link, ...own.across, own.ports] : [])];
    }

    // Refuses a race that the Lab can't show, before anything changes.
    check([collective, ranks, , , name, inside, bytes, ...own]) {
      const numbers = [ranks, inside, bytes, ...own].map(Number);
      if (!this.machines.some((each) => each.name === name)) Lab.refuse(`the address has the machine ${Lab.short(name ?? null)}; the Lab has ${this.machines.map((each) => each.name).join("; ")}`);
      if (!this.lab.presets.some((each) => each.collective === collective && each.ranks === numbers[0])) Lab.refuse(`the Lab has no algorithm for ${Lab.short(collective)} on ${ranks} ranks`);
      if (numbers.some((value) => !(value >= 0 && value < 1e13)) || ![0, 5].includes(own.length)) Lab.refuse(`the address has the race ${Lab.short([ranks, inside, bytes, ...own].join(", "))}; its numbers must be at least 0`);
    }

    restore([collective, ranks, first, second, name, inside, bytes, ...own]) {
      const machine = this.machines.findIndex((each) => each.name === name), numbers = [ranks, inside, bytes].map(Number);
      const [alpha, beta, farAlpha, farBeta, ports] = own.map(Number), { plain = false, sharing, inside: full } = this.machines[machine];
      this.mine = this.fromBoard();
      Object.assign(this.state, { collective, ranks: numbers[0], first, second, machine, inside: numbers[1], bytes: numbers[2],
        own: own.length ? { plain, sharing, ports, inside: full, link: [alpha, beta], across: [farAlpha, farBeta] } : null });
    }

    nodeOf(ranks) {
      const { inside } = this.machines[this.state.machine];
      return divisors(ranks).find((size) => size <= inside);
    }

    // The ranks of the race if they fill nodes of the machine; otherwise two nodes, if that is offered. A schedule of the reader's keeps its size.
    wholeNodes() {
      const { ranks, first, second, collective, machine } = this.state, two = 2 * this.machines[machine].inside;
      const fixed = first === "mine" || second === "mine" || ranks % (two / 2) === 0;
      return !fixed && this.lab.presets.some((each) => each.collective === collective && each.ranks === two) ? two : ranks;
    }

    // --- what races ---

    offered() {
      const { collective, ranks } = this.state, names = this.lab.presets.filter((each) => each.collective === collective && each.ranks === ranks).map(({ name }) => name);
      return this.mine?.collective === collective && this.mine.ranks === ranks ? ["mine", ...names] : names;
    }

    schedule(name) {
      if (name === "mine") return this.mine;
      const { collective, ranks } = this.state, { chunks, root, steps } = this.lab.presets.find((each) => each.name === name && each.collective === collective && each.ranks === ranks);
      return Lab.parse(steps, { ranks, chunks, collective, root, name });
    }

    // The largest number of ranks, up to that of the race, with an algorithm for its collective.
    largest({ collective, ranks }) {
      return Math.max(2, ...this.lab.presets.filter((each) => each.collective === collective && each.ranks <= ranks).map((each) => each.ranks));
    }

    title(name) {
      return name === "mine" ? "yours" : name;
    }

    change(more) {
      const state = Object.assign(this.state, more), waited = this.waits;
      if (!this.offered().length) state.ranks = this.largest(state); // the reader's own, of a size without algorithms, has left
      const offered = this.offered();
      this.waits = ["first", "second"].find((place) => state[place] === "mine") ?? waited; // the place of the reader's schedule
      if (this.waits && offered.includes("mine")) [state[this.waits], this.waits] = ["mine", null];
      if (!offered.includes(state.first)) state.first = offered[0];
      if (!offered.includes(state.second) || state.second === state.first) state.second = offered.find((name) => name !== state.first) ?? offered[0];
      if (!divisors(state.ranks).includes(state.inside)) state.inside = this.nodeOf(state.ranks);
      if (this.waits && !waited && this.mine) this.lab.say(`Your schedule is for ${Lab.prose(this.mine.collective)} on ${this.mine.ranks} ranks, so ${state[this.waits]} takes its place here. It comes back when you choose these again.`);
      else if (waited && !this.waits) this.lab.say("Your schedule is back.");
      this.form();
      this.run();
      this.lab.keep();
    }

    form() {
      const { state, machines } = this, numbers = state.own ?? machines[state.machine], offered = this.offered(), away = this.mine && !offered.includes("mine") ? [["mine", `your schedule: ${Lab.prose(this.mine.collective)}, ${this.mine.ranks} ranks`, true]] : [];
      const racers = (other) => [...offered.map((name) => [name, name === "mine" ? "your schedule" : name, name === other && offered.length > 1]), ...away];
      const select = (label, options, value, act) => {
        const control = make("select", {}, ...options.map(([each, text, disabled]) => make("option", { value: each, ...(disabled && { disabled: "" }) }, text)));
        control.value = value;
        control.onchange = () => act(control.value);
        return make("label", { class: options.some(([, text]) => String(text).length > 12) ? "field wide" : "field slim" }, make("span", {}, label), control);
      };
      const typed = (label, value, act) => {
        const control = make("input", { type: "number", min: 0, step: "any", value });
        control.onchange = () => act(Number(control.value));
        return make("label", { class: "field slim" }, make("span", {}, label), control);
      };
      const collectives = [...new Set(this.lab.presets.map(({ collective }) => collective))].filter((name) => name !== "barrier").map((name) => [name, Lab.prose(name)]);
      const sizes = Array.from({ length: 19 }, (_, power) => 1000 * 2 ** power).map((_, power) => [1, 2, 5][power % 3] * 10 ** (3 + Math.floor(power / 3))).map((bytes) => [bytes, Lab.sayBytes(bytes)]);
      const own = (more) => this.change({ own: { plain: machines[state.machine].plain ?? false, sharing: numbers.sharing, ports: numbers.ports ?? 1, inside: numbers.inside, link: [...numbers.link], across: [...numbers.across], ...more } });
      const pair = (which, name) => [
        typed(`${name}: alpha, µs`, number(numbers[which][0] * 1e6), (value) => own({ [which]: [value * 1e-6, numbers[which][1]] })),
        typed(`${name}: GB/s`, number(1e-9 / numbers[which][1]), (value) => own({ [which]: [numbers[which][0], value > 0 ? 1e-9 / value : NaN] })),
      ];
      const inNode = state.inside > 1, between = state.inside < state.ranks;
      const had = [...this.inputs.querySelectorAll("select, input")].indexOf(document.activeElement);
      this.inputs.replaceChildren(
        select("collective", collectives, state.collective, (collective) => this.change({ collective })),
        select("ranks", [...new Set([...RANKS, state.ranks])].sort((a, b) => a - b).map((ranks) => [ranks, ranks]), state.ranks, (ranks) => this.change({ ranks: Number(ranks), inside: this.nodeOf(Number(ranks)) })),
        select("first", racers(state.second), state.first, (first) => this.change({ first })),
        select("second", racers(state.first), state.second, (second) => this.change({ second })),
        select("buffer", sizes, state.bytes, (bytes) => this.change({ bytes: Number(bytes) })),
        select("machine", [...machines.map(({ name }, place) => [place, name]), ["own", state.own ? `your own, from ${machines[state.machine].name}` : "your own numbers"]], state.own ? "own" : state.machine, (machine) => {
          if (machine === "own") return own({});
          state.machine = Number(machine);
          const ranks = this.wholeNodes();
          this.change({ own: null, ranks, inside: this.nodeOf(ranks) });
        }),
        select("nodes × ranks", divisors(state.ranks).map((size) => [size, `${state.ranks / size} × ${size}`]), state.inside, (inside) => this.change({ inside: Number(inside) })),
        ...(inNode ? pair("link", between ? "in a node" : "link") : []), ...(between ? pair("across", inNode ? "across" : "link") : []),
        ...(numbers.plain ? [typed("ports", numbers.ports ?? 1, (ports) => own({ ports }))] : []), this.link,
      );
      if (had >= 0) this.inputs.querySelectorAll("select, input")[had]?.focus();
    }

    run() {
      const { state } = this;
      try {
        const numbers = state.own ?? this.machines[state.machine];
        for (const [alpha, beta] of [numbers.link, numbers.across]) if (!(alpha >= 0 && beta >= 0 && alpha < Infinity && beta < Infinity)) Lab.refuse("a link needs an alpha of at least 0 and a bandwidth above 0");
        Lab.whole(numbers.ports ?? 1, 1, 64, "the number of ports");
        const on = Lab.machine(numbers, state.ranks, state.inside), schedules = [this.schedule(state.first), this.schedule(state.second)];
        const unit = lcm(schedules[0].chunks, schedules[1].chunks), bytes = Math.max(unit, Math.round(state.bytes / unit) * unit); // whole chunks
        const titles = [state.first, state.second].map((name) => this.title(name));
        const lanes = schedules.map((schedule, place) => Lab.lane(titles[place], schedule, bytes, on));
        this.trouble.textContent = "";
        this.stage.hidden = this.curve.hidden = this.table.hidden = false;
        this.show(lanes, bytes);
        this.chart(lanes, schedules, unit, bytes, on);
        this.count(lanes);
      } catch (error) {
        if (!(error instanceof Lab.ScheduleError)) throw error;
        this.trouble.textContent = `${Lab.upper(error.message)}.`;
        this.outcome.textContent = this.everywhere.textContent = "";
        this.stage.hidden = this.curve.hidden = this.table.hidden = true;
      }
    }

    look(title) {
      return this.lab.lines[title] ?? this.lab.lines[{ "binomial tree": "tree", "recursive doubling": "doubling", "bidirectional ring": "ring", "recursive halving": "halving-doubling", pairwise: "flat" }[title]] ?? ["#2c9160", "5 2 1 2"];
    }

    // --- the two networks on one clock ---

    show(lanes, bytes) {
      const total = Math.max(...lanes.map(({ cost }) => cost.seconds)), tick = total / Lab.TICKS || 1, [unit, size] = SECONDS.find(([, least]) => total >= least) ?? SECONDS.at(-1);
      const digits = Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(total / size || 1)))), least = total / LONGEST || 1, power = 10 ** Math.floor(Math.log10(least));
      const scale = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= least * (1 - 1e-9)), moments = [...new Set([0, ...lanes.flatMap(({ ends }) => ends.map((end) => Math.round(end / tick)))])].sort((a, b) => a - b);
      const clock = (seconds) => `${(seconds / size).toFixed(digits)} ${unit}`, caption = `${lanes[0].title} against ${lanes[1].title}, ${lanes[0].on.ranks} ranks, ${Lab.sayBytes(bytes)}`;
      const told = moments.map((moment, place) => {
        if (!place) return `Before: ${lanes[0].title} and ${lanes[1].title} start together, with ${Lab.sayBytes(bytes)} on each of ${lanes[0].on.ranks} ranks.`;
        const parts = lanes.map(({ title, ends, cost }) => {
          const done = ends.slice(1).filter((end) => Math.round(end / tick) <= moment).length;
          return `${title} ${done === ends.length - 1 ? `has finished, at ${clock(cost.seconds)}` : `has done ${done} of ${ends.length - 1} steps`}`;
        });
        return `At ${clock(moment * tick)}: ${parts.join("; ")}.`;
      });
      const data = {
        picture: "network", ticks: Lab.TICKS, clock: [unit, digits, total / size], pace: Math.round((total / scale) * 1000) || 1, scale: [scale, scale / SLOW].map((each) => `1 s here = ${Lab.saySeconds(each)}`),
        moments, alarms: [], colours: this.lab.colours.slice(0, lanes[0].on.ranks), lines: lanes.map(({ title }) => this.look(title)[0]), lanes: lanes.map((lane) => Lab.laid(lane, tick)), told: [told],
      };
      const player = make("collective-player", { role: "group", "aria-label": caption }, make("script", { type: "application/json" }, JSON.stringify(data)));
      this.stage.replaceChildren(player);
      const order = [...lanes].sort((a, b) => a.cost.seconds - b.cost.seconds), [first, last] = order.map(({ cost }) => cost.seconds);
      this.outcome.textContent = last <= first * 1.005 ? `A tie: both take ${Lab.saySeconds(last)}.` : `${order[0].title} wins in ${Lab.saySeconds(first)}; ${order[1].title} takes ${number(last / first)} times as long, ${Lab.saySeconds(last)}.`;
    }

    // --- what it costs ---

    count(lanes) {
      const rows = [["finish", ({ seconds }) => Lab.saySeconds(seconds)], ["steps", ({ steps }) => steps], ["messages", ({ messages }) => Lab.commas(messages)],
        ["a rank sends at most", ({ sent }) => Lab.sayBytes(Math.max(...sent))], ["the busiest link carries", ({ onLink }) => {
          const [link, most] = Object.entries(onLink).reduce((one, other) => (other[1] > one[1] ? other : one), ["", 0]);
          return `${Lab.sayBytes(most)}${link ? ` (${link})` : ""}`;
        }]];
      const head = make("tr", {}, make("td", {}), ...lanes.map(({ title }) => make("th", { scope: "col" }, title)));
      this.table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows.map(([name, of]) => make("tr", {}, make("th", { scope: "row" }, name), ...lanes.map(({ cost }) => make("td", {}, String(of(cost))))))));
    }

    // The seconds over all sizes, on logarithmic axes.
    chart(lanes, schedules, unit, bytes, on) {
      const steps = Math.round((LARGEST - SMALLEST) * PER_DECADE), sizes = Array.from({ length: steps + 1 }, (_, i) => Math.max(unit, Math.round(10 ** (SMALLEST + i / PER_DECADE) / unit) * unit));
      const seconds = schedules.map((schedule) => (size) => Lab.price(schedule, size, on).seconds), curves = seconds.map((of) => sizes.map(of));
      const all = curves.flat().filter((value) => value > 0), low = Math.floor(Math.log10(Math.min(...all))), high = Math.ceil(Math.log10(Math.max(...all)));
      const [top, bottom, left] = EDGES, right = 14 + LETTER * Math.max(...lanes.map(({ title }) => title.length));
      const x = (size) => left + ((Math.log10(size) - SMALLEST) / (LARGEST - SMALLEST)) * (WIDE - left - right), y = (value) => top + ((high - Math.log10(value)) / Math.max(1, high - low)) * (TALL - top - bottom);
      const text = (atX, atY, words, more = {}) => make("text", { x: atX, y: atY, "font-size": 13, ...more }, words), nodes = [];
      for (let power = 3; power <= 9; power++) nodes.push(make("path", { class: "grid", d: `M${x(10 ** power)} ${top}V${TALL - bottom}` }), text(x(10 ** power), TALL - bottom + 18, Lab.sayBytes(10 ** power)));
      for (let power = low; power <= high; power++) nodes.push(make("path", { class: "grid", d: `M${left} ${y(10 ** power)}H${WIDE - right}` }), text(left - 6, y(10 ** power) + 4, Lab.saySeconds(10 ** power), { class: "end" }));
      const crossings = Lab.crossings(seconds, sizes, unit), ends = curves.map((curve) => y(curve.at(-1))), near = Math.abs(ends[0] - ends[1]) < 15;
      nodes.push(make("path", { class: "now", d: `M${x(bytes)} ${top}V${TALL - bottom}` }));
      curves.forEach((curve, place) => {
        const [colour, dash] = this.look(lanes[place].title), shift = near ? (ends[place] <= ends[1 - place] && (ends[0] !== ends[1] || place) ? -7 : 8) : 0;
        nodes.push(make("path", { class: "curve", d: `M${curve.map((value, i) => `${x(sizes[i]).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`, style: `stroke:${colour}`, "stroke-dasharray": dash }), text(WIDE - right + 6, ends[place] + 4 + shift, lanes[place].title, { class: "begin", style: "font-weight:700" }));
      });
      for (const size of crossings.slice(0, 3)) nodes.push(make("circle", { class: "cross", cx: x(size), cy: y(seconds[0](size)), r: 5 }), text(x(size), y(seconds[0](size)) - 12, Lab.sayBytes(size), { style: "font-weight:700" }));
      const caption = this.everywhereWords(lanes.map(({ title }) => title), curves, crossings, sizes);
      const svg = make("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": `Time over size. ${caption}` }, ...nodes);
      this.everywhere.textContent = caption;
      this.curve.replaceChildren(svg);
    }

    // Who is faster below the crossing and who above it, or at all sizes of the curve.
    everywhereWords(titles, curves, crossings, sizes) {
      const range = `between ${Lab.sayBytes(sizes[0])} and ${Lab.sayBytes(sizes.at(-1))}`, faster = (place) => titles[curves[0].at(place) < curves[1].at(place) ? 0 : 1];
      if (curves[0].every((value, i) => Math.abs(value - curves[1][i]) < 1e-9 * value)) return "Both take the same time at every size.";
      if (!crossings.length) return `${faster(-1)} is never slower ${range}.`;
      const [below, above] = [faster(curves[0].findIndex((value, i) => value !== curves[1][i])), faster(-1)];
      if (crossings.length === 1) return `Below ${Lab.sayBytes(crossings[0])} ${below} is faster, above it ${above}.`;
      return `They cross at ${Lab.listed(crossings.map(Lab.sayBytes))}: below these sizes ${below} is faster, above them ${above}.`;
    }
  };
})();
