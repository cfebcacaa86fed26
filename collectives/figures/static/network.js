// The picture of schedules on their machine: packets move along links, above a timeline on the same clock. Python has
// timed every message and laid out every link; here things only move. It knows no algorithm.
(() => {
  const Player = customElements.get("collective-player"), { make } = Player;
  const UNIT = 124, TALL = 390, STACKED = 230, GAP = 28, HEAD = 26, TYPE = 13, LONGEST = 60, SLOW = 5, SHORTEST = 6;
  const NAME = 28; // room for a rank's name of three digits beside it
  const CROSS_MS = 240; // a packet is seen on its link at least so long, however short its bytes take
  const tenth = (number) => Math.round(number * 10) / 10;
  // Writing the same value again would restyle the node again.
  const set = (node, name, value) => {
    if (node[`${name} was`] !== value) node.setAttribute(name, (node[`${name} was`] = value));
  };
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

  Player.pictures.network ??= class {
    constructor(data) {
      this.data = data;
      this.last = data.moments.length - 1;
      this.now = 0;
      this.clock = data.clock && new Player.Clock(data);
      this.slowDown(false);
      this.maxWidth = "none";
      const [{ span }] = data.lanes;
      this.side = data.lanes.length === 1 && span[2] < 4 * span[3]; // the words have room at the right
      this.most = Math.max(1, ...data.lanes.flatMap((lane) => lane.sizes.map(([bytes]) => bytes)));
      for (const lane of data.lanes) {
        lane.messages = lane.steps.flatMap((step, number) => step.map(([link, size, start, wait, chunk, ranks, done, row, wrong]) => {
          const [bytes, text, alpha, move, add, count] = lane.sizes[size], [src, dst] = lane.links[link];
          const leave = start + alpha, end = leave + move + add;
          const from = Math.max(start, Math.min(leave, end - add - (CROSS_MS / data.pace) * data.ticks));
          const held = data.colours.map((_, rank) => rank).filter((rank) => (ranks >> rank) & 1);
          const twoWay = lane.links.some(([one, other]) => one === dst && other === src);
          return { number, twoWay, link, src, dst, bytes, text, count, start, ready: start - wait, leave, from, move, arrive: end - add, end, chunk, held, done, row, wrong };
        }));
      }
      this.fit(640);
    }

    // --- the layout for a width; a unit of the SVG is then a pixel ---

    fit(width) {
      const { lanes } = this.data, beside = lanes.length > 1 && width >= 560 ? lanes.length : 1;
      this.width = width;
      const room = (width - GAP * (beside - 1)) / beside, top = lanes.length > 1 ? HEAD : 4;
      const tall = lanes.length > beside ? STACKED : TALL;
      this.unit = Math.min(UNIT, ...lanes.map(({ span: [, , w, h], names }) => Math.min((room - 2 * (names.length ? NAME : 2)) / w, tall / h)));
      this.radius = clamp(this.unit * 0.19, 8, 17);
      this.thick = clamp(this.unit * 0.13, 7, 11);
      this.numbered = lanes.length === 1 && lanes[0].chunks > 1 && this.unit > 50;
      let bottom = 0;
      this.origins = lanes.map(({ span: [left, y, w, h] }, number) => {
        const column = number % beside, above = column ? this.row : bottom;
        this.row = above;
        bottom = Math.max(bottom, above + top + h * this.unit + 6);
        const edge = column * (room + GAP);
        return { edge, room, above, x: edge + (room - w * this.unit) / 2 - left * this.unit, y: above + top - y * this.unit };
      });
      this.clock?.fit(width, bottom + 8);
      this.height = this.clock?.height ?? bottom;
      this.nodes = null;
    }

    at([x, y], lane) {
      const { x: left, y: top } = this.origins[lane];
      return [left + x * this.unit, top + y * this.unit];
    }

    // A path of Python's in pixels: its points, a bend in many, and its length up to each of them.
    trace(d, lane) {
      const numbers = d.match(/-?[\d.]+/g).map(Number), points = [];
      for (let i = 0; i < numbers.length; i += 2) points.push(this.at(numbers.slice(i, i + 2), lane));
      if (d.includes("Q")) {
        const [[ax, ay], [bx, by], [cx, cy]] = points.splice(0);
        for (let t = 0; t <= 1; t += 1 / 16) points.push([(1 - t) ** 2 * ax + 2 * t * (1 - t) * bx + t * t * cx, (1 - t) ** 2 * ay + 2 * t * (1 - t) * by + t * t * cy]);
      }
      let total = 0;
      const lengths = points.map(([x, y], i) => (i ? (total += Math.hypot(x - points[i - 1][0], y - points[i - 1][1])) : 0));
      return { points, lengths, total, d: `M${points.map((point) => point.map((number) => number.toFixed(1))).join("L")}` };
    }

    // The point at a length of a path, and the direction there.
    along({ points, lengths }, length) {
      const i = Math.max(1, lengths.findIndex((each) => each >= length));
      const [[ax, ay], [bx, by]] = [points[i - 1], points[i]], part = (length - lengths[i - 1]) / (lengths[i] - lengths[i - 1] || 1);
      return { x: ax + (bx - ax) * part, y: ay + (by - ay) * part, turn: Math.atan2(by - ay, bx - ax) };
    }

    text(x, y, text, more = {}) {
      return make("text", { x, y, "font-size": TYPE, ...more }, text);
    }

    // --- what stays ---

    draw() {
      this.parts = this.data.lanes.map((lane, number) => this.drawLane(lane, number));
      const nodes = [...this.parts.map((part) => part.all), ...(this.clock?.draw(this.slow) ?? [])], clock = this.clock?.moving ?? [];
      const layer = (name, more) => make("svg", { viewBox: `0 0 ${this.width} ${this.height}` }, ...this.parts.flatMap((part) => part[name]), ...more);
      this.over.replaceChildren(layer("moving", clock), layer("above", []));
      this.over.style.aspectRatio = `${this.width} / ${this.height}`;
      return nodes;
    }

    drawLane(lane, number) {
      const { unit, radius } = this, part = { loads: [], shown: [], totals: lane.links.map(() => 0) };
      for (const { link, bytes } of lane.messages) part.totals[link] += bytes;
      const boxes = lane.boxes.map(([x, y, w, h], box) => {
        const [left, top] = this.at([x, y], number);
        return make("g", {}, make("rect", { class: "box", x: left, y: top, width: w * unit, height: h * unit, rx: 8 }),
          ...(unit > 26 ? [this.text(left + 10, top + 13, `node ${box}`, { class: "begin quiet", "font-size": 12 })] : []));
      });
      const rails = lane.rails.map((d) => make("path", { class: "rail", d: this.trace(d, number).d }));
      part.ways = lane.links.map(([, , d]) => this.trace(d, number));
      const links = lane.links.map(([, , , width], link) => {
        const shape = { d: part.ways[link].d, "stroke-width": width };
        part.loads.push(make("path", { class: "load", ...shape }));
        return make("path", { class: lane.names.length ? "link faint" : "link", ...shape });
      });
      const shortest = Math.min(...part.ways.map((way) => way.total)) - 2 * (radius + 4);
      part.longest = clamp(shortest * 0.55, SHORTEST, LONGEST);
      const side = Math.max(8, unit * 0.26);
      const nics = lane.nics.map((nic) => {
        const [x, y] = this.at(nic, number);
        return make("rect", { class: "nic", x: x - side / 2, y: y - side / 2, width: side, height: side, rx: 2 });
      });
      part.most = Math.max(1, ...part.totals);
      part.moving = [...part.loads, this.drawPackets(part, Math.max(1, ...lane.messages.flatMap(({ held }) => held.map((rank) => rank + 1))))];
      part.rings = [];
      const ranks = lane.points.map((point, rank) => this.drawRank(part, this.at(point, number), rank, lane));
      const { edge, room, above } = this.origins[number];
      part.title = this.text(edge + room / 2, above + HEAD / 2, lane.title, { class: "title", "font-size": 15 });
      part.above = [...nics, ...ranks];
      part.all = make("g", { class: "lane" }, ...boxes, ...rails, ...links, ...(lane.title ? [part.title] : []));
      return part;
    }

    drawRank(part, [cx, cy], rank, lane) {
      const [fill, ink] = this.data.colours[rank], r = this.radius + 3;
      const ring = make("path", { class: "done", d: `M${cx} ${cy - r}a${r} ${r} 0 1 1 0 ${2 * r}a${r} ${r} 0 1 1 0 ${-2 * r}`, pathLength: 100 });
      part.rings.push(ring);
      const needs = lane.begin[rank] >= 0 ? [make("circle", { class: "needs", cx, cy, r }), ring] : [];
      const name = lane.names[rank] ? [this.text(cx + r + 2, cy - r, lane.names[rank], { class: "name" })] : [];
      return make("g", {}, make("circle", { class: "ground", cx, cy, r: r + 1.5 }), ...needs, make("circle", { cx, cy, r: this.radius - 1, fill }),
        this.text(cx, cy, rank, { "font-size": clamp(this.radius, 10, 14), style: `fill:${ink};font-weight:700` }), ...name);
    }

    // --- what moves ---

    show(svg, at, moving) {
      if (!this.nodes) svg.replaceChildren(...(this.nodes = this.draw()));
      cancelAnimationFrame(this.frame);
      this.svg = svg;
      this.frame = null;
      if (moving && at) this.now = Math.max(this.now, this.data.moments[at - 1]); // a motion that is overtaken ends at once
      const from = this.now, to = this.data.moments[at], begun = performance.now(), lasts = this.lasts(at), held = this.held;
      this.held = undefined;
      this.rest = moving || held !== undefined ? 0 : at;
      if (held !== undefined) return this.paint(held);
      if (!moving || lasts <= 0) return this.paint(to);
      const tick = () => {
        const part = Math.min(1, (performance.now() - begun) / lasts);
        this.rest = part === 1 ? at : 0;
        this.paint(from + (to - from) * part, part < 1);
        this.frame = part < 1 ? requestAnimationFrame(tick) : null;
        if (part === 1) this.arrived();
      };
      this.frame = requestAnimationFrame(tick);
    }

    halt() {
      cancelAnimationFrame(this.frame);
      this.frame = null;
      if (this.nodes) this.clock?.paint(this.now);
    }

    // The milliseconds from now to the end of a step.
    lasts(at) {
      return ((this.data.moments[at] - this.now) / this.data.ticks) * this.pace;
    }

    slowDown(slow) {
      this.slow = slow;
      this.pace = this.data.pace * (slow ? SLOW : 1);
      this.held = this.now;
      this.clock?.slowDown(slow);
    }

    // The last moment of a race that has passed. A single schedule is in the step whose words are shown.
    passed() {
      if (this.data.lanes.length > 1) return this.data.moments.findLastIndex((moment) => moment <= this.now + 1);
    }

    // The words of the last moment of a race, at the time of the clock: until the next moment, nothing else changes.
    retold(words) {
      const at = this.passed(), time = `At ${this.name()}:`;
      if (!(this.now > this.data.moments[at] + 1)) return words;
      return at ? words.replace(/^At [^:]+:/, time) : `${time} no step is done yet.`;
    }

    // Whether a step has been stopped before its end.
    late(at) {
      return !this.frame && this.now < this.data.moments[at] - 1;
    }

    // Shows the moment `now`. At rest after a step, arrows show what it moved.
    paint(now, runs) {
      this.now = now;
      this.data.lanes.forEach((lane, number) => this.paintLane(lane, this.parts[number], now));
      this.clock?.paint(now, runs);
    }

    paintLane(lane, part, now) {
      const loads = lane.links.map(() => 0), done = [...lane.begin], parked = lane.links.map(() => 0), ended = new Map();
      part.shown = [];
      for (const message of lane.messages) {
        if (message.ready > now) continue;
        const { link, dst, bytes, ready, start, leave, move, end } = message;
        loads[link] += bytes * (move ? clamp((now - leave) / move, 0, 1) : now >= end);
        if (now >= end && end >= (ended.get(dst) ?? 0)) ended.set(dst, end), (done[dst] = message.done);
        const trail = this.rest && lane.title === "" && message.number === this.rest - 1;
        const shown = trail || (now > ready && now < end) || (now === ready && now === start && now > 0 && !this.rest && now < end);
        if (shown) part.shown.push(this.place(part, message, now, now <= start ? parked[link]++ : 0, trail));
      }
      this.paintPackets(part);
      if (this.data.clock) part.loads.forEach((load, link) => set(load, "style", `stroke-opacity:${((0.65 * loads[link]) / part.most).toFixed(2)}`));
      part.rings.forEach((ring, rank) => {
        if (part.done?.[rank] === done[rank]) return;
        ring.setAttribute("stroke-dasharray", `${Math.max(0, done[rank])} 100`);
        ring.classList.toggle("whole", done[rank] >= 100);
      });
      part.done = done;
      const title = lane.title && now >= lane.finish ? `${lane.title}: ${this.clock.say(lane.finish)} ${this.data.clock[0]}` : lane.title;
      if (part.title.textContent !== title) part.title.textContent = title; // writing the same text lays it out again
    }

    // Where a packet is: at its sender while it waits, with a thread that grows during the latency; then on its way. A trail
    // is a packet that has arrived, shown on its way with an arrow; not half-way, where long links cross.
    place(part, message, now, queued, trail) {
      const long = Math.max(SHORTEST, (part.longest * message.bytes) / this.most), rim = this.radius + 6;
      const way = part.ways[message.link], free = way.total - 2 * rim, waits = !trail && now < message.from;
      const gone = trail ? (message.twoWay ? 0.75 : 0.38) : clamp((now - message.from) / Math.max(1, message.arrive - message.from), 0, 1);
      const thread = waits ? free * clamp((now - message.start) / Math.max(1, message.leave - message.start), 0, 1) : free - (trail ? 7 : 0);
      return { message, long, way, rim, waits, trail, thread, ...this.along(way, rim + long / 2 + gone * (free - long) + Math.min(queued * 5, free / 2)) };
    }

    // All packets of a lane are a few paths, so that a frame changes few nodes however many packets move: the threads and
    // arrowheads; then, of the packets that wait and of those on their way, the hulls and the wagons of each rank.
    drawPackets(part, ranks) {
      const path = (kind, more = {}) => make("path", { class: kind, ...more }), edge = this.thick > 9 ? 3 : 2;
      const hull = (kind) => path(`hull ${kind}`, { "stroke-width": this.thick + edge });
      part.paths = { thread: path("thread"), wrongThread: path("thread wrong"), tip: path("tip"), wrongTip: path("tip wrong") };
      part.trains = [true, false].map((waits) => ({ hull: hull(""), hot: hull("hot"), wrongHot: hull("hot wrong"),
        ...Object.fromEntries(this.data.colours.slice(0, ranks).map(([stroke], rank) => [`of ${rank}`, path("wagon", { stroke, "stroke-width": this.thick })])) }));
      const groups = part.trains.map((train, place) => make("g", { class: place ? "" : "waits" }, ...Object.values(train)));
      part.numbers = make("g", {});
      return make("g", { class: "packets" }, ...Object.values(part.paths), ...groups, part.numbers);
    }

    paintPackets(part) {
      const d = {}, trains = [{}, {}], add = (all, name, path) => (all[name] = (all[name] ?? "") + path);
      for (const { message, long, way, rim, waits, trail, thread, x, y, turn } of part.shown) {
        const cos = Math.cos(turn), sin = Math.sin(turn), hot = message === this.hot, wrong = message.wrong, train = trains[Number(!waits)], share = long / message.held.length;
        const line = (from, to) => `M${tenth(x + cos * from)} ${tenth(y + sin * from)}L${tenth(x + cos * to)} ${tenth(y + sin * to)}`, edge = this.thick > 9 ? 1.5 : 1;
        add(train, hot ? (wrong ? "wrongHot" : "hot") : "hull", line(-long / 2 - edge, long / 2 + edge));
        message.held.forEach((rank, place) => add(train, `of ${rank}`, line(place * share - long / 2, (place + 1) * share - long / 2)));
        if (thread) add(d, wrong ? "wrongThread" : "thread", this.cut(way, rim, rim + thread));
        if (trail) add(d, wrong ? "wrongTip" : "tip", this.tip(this.along(way, way.total - rim)));
      }
      for (const name in part.paths) set(part.paths[name], "d", d[name] ?? "");
      part.trains.forEach((train, place) => {
        for (const name in train) set(train[name], "d", trains[place][name] ?? "");
      });
      if (this.numbered) this.paintNumbers(part);
    }

    paintNumbers({ numbers, shown }) {
      while (numbers.childElementCount > shown.length) numbers.lastChild.remove();
      while (numbers.childElementCount < shown.length) numbers.append(this.text(0, 0, "", { class: "label", "font-size": 12 }));
      shown.forEach(({ message: { chunk, count, twoWay, link }, waits, x, y, turn }, place) => {
        const node = numbers.children[place], number = count > 1 ? `${chunk}–${chunk + count - 1}` : String(chunk);
        const near = shown.slice(0, place).some((each) => each.message.link === link && Math.hypot(each.x - x, each.y - y) < 14);
        const aside = (this.thick / 2 + 9) * (twoWay !== near ? -1 : 1); // away from the opposite way, and from the number of one beside it
        if (node.textContent !== number) node.textContent = number;
        for (const [name, value] of Object.entries({ x: tenth(x + Math.sin(turn) * aside), y: tenth(y - Math.cos(turn) * aside), opacity: waits ? 0.5 : 1 })) set(node, name, value);
      });
    }

    // The part of a path between two of its lengths.
    cut(way, from, to) {
      const inner = way.points.filter((_, i) => way.lengths[i] > from && way.lengths[i] < to), ends = [from, to].map((length) => this.along(way, length));
      return `M${[[ends[0].x, ends[0].y], ...inner, [ends[1].x, ends[1].y]].map((point) => point.map(tenth)).join("L")}`;
    }

    // An arrowhead.
    tip({ x, y, turn }) {
      const [dx, dy] = [Math.cos(turn) * 9, Math.sin(turn) * 9], [px, py] = [x - dx, y - dy];
      return `M${x} ${y}L${px - dy * 0.55} ${py + dx * 0.55}L${px + dy * 0.55} ${py - dx * 0.55}z`;
    }

    // --- the pointer ---

    // Returns the step at a point of the timeline, and moves the clock there; undefined elsewhere.
    seek(x, y) {
      const now = this.clock?.tick(x, y), { moments } = this.data;
      if (now === undefined) return undefined;
      this.held = now;
      if (this.data.lanes.length > 1) return moments.findLastIndex((moment) => moment <= now);
      const at = moments.findIndex((moment) => moment >= now - 1);
      return at < 0 ? this.last : at;
    }

    // Names the message under the pointer, and marks its packet, its link and its bar.
    hover(target, x, y) {
      const over = this.parts?.flatMap(({ shown }) => shown).find((packet) => this.covers(packet, x, y))?.message, message = target.closest?.(".bar")?.message ?? over;
      if (message === this.hot || !this.clock) return;
      for (const each of [this.hot, message].filter(Boolean)) {
        each.bar?.classList.toggle("hot", each === message);
        this.data.lanes.forEach(({ messages }, lane) => messages.includes(each) && this.parts[lane].loads[each.link].classList.toggle("hot", each === message));
      }
      this.svg.style.cursor = over ? "help" : "";
      this.hot = message;
      this.parts.forEach((part) => this.paintPackets(part));
      this.clock.name(message);
    }

    // Whether a packet is at a point.
    covers({ x, y, turn, long }, atX, atY) {
      const cos = Math.cos(turn), sin = Math.sin(turn), dx = atX - x, dy = atY - y;
      return Math.abs(dx * cos + dy * sin) <= long / 2 + 2 && Math.abs(dy * cos - dx * sin) <= this.thick / 2 + 2;
    }

    name(at) {
      if (this.data.lanes.length > 1) return `${this.clock.say(this.now)} ${this.data.clock[0]}`;
      return at ? `step ${at - 1}` : "before";
    }

    alarms(at) {
      return this.data.alarms.includes(at);
    }

    legend() {
      const { lanes, colours, clock } = this.data, messages = lanes.flatMap((lane) => lane.messages), shown = colours.slice(0, 3);
      const line = (kind, d, more = {}) => make("path", { class: kind, d, ...more }), rect = (x, y, width, height, more) => make("rect", { x, y, width, height, ...more });
      const packet = [rect(2, 2, 36, 14, { fill: "currentColor" }), ...shown.map(([fill], rank) => rect(3.5 + rank * 11, 3.5, 11, 11, { fill }))];
      const items = [[40, 18, packet, "a packet, as long as its bytes, in the colours of the ranks whose data it carries"]];
      if (lanes.some((lane) => lane.begin.some((part) => part >= 0))) {
        items.push([40, 18, [make("circle", { class: "needs", cx: 20, cy: 9, r: 7 }), line("done", "M20 2a7 7 0 1 1 -7 7")], "how much a rank has of its result"]);
      }
      if (lanes[0].nics.length) items.push([40, 18, [make("rect", { class: "nic", x: 12, y: 1, width: 16, height: 16, rx: 2 })], "a network card (NIC)"]);
      if (!clock) return items;
      items.push([40, 18, [line("link", "M0 5h40", { "stroke-width": 2 }), line("load", "M0 13h40", { "stroke-width": 5, style: "stroke-opacity:.65" })], "a link: thicker with bandwidth, stronger with its load so far"]);
      if (lanes.length > 1) return items;
      items.push([40, 18, [line("late", "M2 3h12v12h-12z"), line("", "M14 3h24v12h-24z", { fill: colours[0][0] })], "sending: grey while it starts up (alpha)"]);
      if (messages.some(({ start, ready }) => start > ready)) items.push([40, 18, [line("queue", "M2 9h36")], "waiting for a port or a card"]);
      items.push([40, 18, [line("takes", "M2 8h36v2h-36z")], "receiving"]);
      if (lanes[0].idle.some((gaps) => gaps.length)) items.push([40, 18, [line("idle", "M4 15l6 -12M12 15l6 -12M20 15l6 -12M28 15l6 -12")], "idle"]);
      return items;
    }
  };

  Player.startAll();
})();
