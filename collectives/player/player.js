// Steps through one figure. All it shows is the JSON and the list of words that Python wrote into the element. Every
// figure carries this script, and the one of its own kind that draws; the first to run defines the element.
//
// A picture is a class of data, in Player.pictures: width, height and maxWidth of its SVG, the number of its `last` step,
// show(svg, at, moving), name(at), alarms(at), legend() as [width, height, nodes, text], and where it can be laid out
// anew, fit(width), seek(x), the step that lies at x, and pace, the milliseconds from step to step while it plays.
(() => {
  if (customElements.get("collective-player")) return;
  const PLAY_MS = 2400;

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

  class CollectivePlayer extends HTMLElement {
    static make = make;
    static pictures = {};

    // Each picture's script calls this once its class is there.
    static startAll() {
      for (const player of document.querySelectorAll("collective-player")) player.start();
    }

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
      const data = JSON.parse(source.textContent), Picture = CollectivePlayer.pictures[data.picture];
      if (!Picture) return;
      this.querySelector(":scope > .stage")?.remove(); // left behind where a page was saved while it played
      this.words = [...this.querySelectorAll(".still li")].map((item) => item.textContent);
      const still = this.querySelector(".still img"); // set in line, it prints in the page's own ink
      if (still) still.outerHTML = decodeURIComponent(still.src.slice(still.src.indexOf(",") + 1));
      this.picture = new Picture(data);
      this.last = this.picture.last;
      this.build();
      this.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take the arrow keys for its cells
      this.addEventListener("keydown", (event) => this.onKey(event));
      this.go(0);
    }

    build() {
      const { picture } = this;
      this.svg = make("svg", { role: "img", viewBox: `0 0 ${picture.width} ${picture.height}` });
      this.buttons = Object.fromEntries(Object.entries(BUTTONS).map(([name, [label, d]]) => [name,
        make("button", { type: "button", "aria-label": label, title: label }, make("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, make("path", { d })))]));
      this.slider = make("input", { type: "range", min: 0, max: this.last, value: 0, "aria-label": "Step" });
      this.live = make("p", { "aria-live": "polite" });
      const longest = this.words.reduce((a, b) => (b.length > a.length ? b : a));
      this.say = make("div", { class: "say" }, this.live, make("p", { "aria-hidden": "true" }, longest));
      this.stage = make("div", { class: "stage" }, make("strong", {}, this.getAttribute("aria-label")), this.svg,
        make("div", { class: "controls" }, ...Object.values(this.buttons), this.slider), this.say, this.legend());
      this.stage.style.maxWidth = picture.maxWidth;
      this.append(this.stage);
      if (picture.fit) new ResizeObserver(() => this.fit()).observe(this.stage);
      if (picture.seek) this.svg.onpointerdown = this.svg.onpointermove = (event) => this.seek(event);
      const { first, back, play, forward, last } = this.buttons;
      first.onclick = () => this.step(0);
      back.onclick = () => this.step(this.at - 1);
      play.onclick = () => (this.timer ? this.pause() : this.play());
      forward.onclick = () => this.step(this.at + 1);
      last.onclick = () => this.step(this.last);
      this.slider.oninput = () => this.step(Number(this.slider.value));
    }

    legend() {
      const items = this.picture.legend().map(([width, height, nodes, text]) =>
        make("li", {}, make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...nodes), text));
      return make("ul", { class: "legend" }, ...items);
    }

    // A picture that is laid out for its width: a unit of its SVG is a pixel then.
    fit() {
      const width = Math.round(this.stage.clientWidth);
      if (!width || width === this.picture.width) return;
      this.picture.fit(width);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${this.picture.height}`);
      this.picture.show(this.svg, this.at, false);
    }

    seek(event) {
      if (event.type === "pointermove" && !(event.buttons & 1)) return;
      const { left, width } = this.svg.getBoundingClientRect();
      this.step(this.picture.seek(((event.clientX - left) / width) * this.picture.width));
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
      this.timer = setInterval(() => (this.at < this.last ? this.go(this.at + 1) : this.pause()), this.picture.pace ?? PLAY_MS);
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
      this.slider.setAttribute("aria-valuetext", this.picture.name(at));
      this.live.textContent = this.words[at];
      this.svg.setAttribute("aria-label", this.words[at]);
      this.say.classList.toggle("guilty", this.picture.alarms(at));
      this.picture.show(this.svg, at, forward && !matchMedia("(prefers-reduced-motion: reduce)").matches);
    }
  }

  customElements.define("collective-player", CollectivePlayer);
})();
