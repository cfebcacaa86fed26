// The picture of a communication pattern: ranks as points, and arrows for a step. It knows no algorithm.
(() => {
  const Player = customElements.get("collective-player"), { make } = Player;
  const UNIT = 120, EDGE = 34, RADIUS = 14, TYPE = 15, HEAD = 9;

  Player.pictures.network ??= class {
    constructor(data) {
      this.data = data;
      this.last = data.steps.length;
      const [xs, ys] = [0, 1].map((axis) => data.points.map((point) => point[axis] * UNIT));
      this.at = data.points.map((_, rank) => [xs[rank] - Math.min(...xs) + EDGE, ys[rank] - Math.min(...ys) + EDGE]);
      this.width = Math.max(...xs) - Math.min(...xs) + 2 * EDGE + 20; // room for a name beside a point
      this.height = Math.max(...ys) - Math.min(...ys) + 2 * EDGE;
      this.maxWidth = `max(24rem, ${this.width * 1.3}px)`;
    }

    line(kind, [[x, y], [toX, toY]]) {
      return make("path", { class: kind, d: `M${x} ${y}L${toX} ${toY}` });
    }

    // An arrow from the rim of one point to the rim of another.
    arrow(from, to) {
      const [[x, y], [toX, toY]] = [this.at[from], this.at[to]], length = Math.hypot(toX - x, toY - y);
      const dx = (toX - x) / length, dy = (toY - y) / length, tip = [toX - dx * (RADIUS + 2), toY - dy * (RADIUS + 2)];
      const neck = [tip[0] - dx * HEAD, tip[1] - dy * HEAD], aside = [dy * HEAD * 0.6, -dx * HEAD * 0.6];
      const head = [tip, [neck[0] + aside[0], neck[1] + aside[1]], [neck[0] - aside[0], neck[1] - aside[1]]];
      return make("g", {}, this.line("arrow", [[x + dx * RADIUS, y + dy * RADIUS], neck]), make("path", { class: "head", d: `M${head.join("L")}z` }));
    }

    point(rank) {
      const [x, y] = this.at[rank], [fill, ink] = this.data.colours[rank];
      return make("g", {}, make("circle", { cx: x, cy: y, r: RADIUS, fill }),
        make("text", { x, y, "font-size": TYPE, style: `fill:${ink};font-weight:700` }, rank),
        make("text", { class: "name", x: x + RADIUS + 3, y: y - RADIUS, "font-size": TYPE * 0.8 }, this.data.names[rank]));
    }

    show(svg, at, moving) {
      const edges = this.data.edges.map((pair) => this.line("joint", pair.map((rank) => this.at[rank])));
      const arrows = (at ? this.data.steps[at - 1] : []).map(([src, dst]) => this.arrow(src, dst));
      svg.replaceChildren(...edges, ...arrows, ...this.data.points.map((_, rank) => this.point(rank)));
      svg.classList.toggle("moving", moving);
    }

    name(at) {
      return at ? `step ${at - 1}` : "before";
    }

    alarms() {
      return false;
    }

    legend() {
      return [];
    }
  };

  Player.startAll();
})();
