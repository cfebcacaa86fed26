// Steps through one figure. It shows only the JSON and the list of texts that Python wrote into the element. Every figure
// carries this script and the script that draws its own kind; the first copy to run defines the element.
//
// A picture is a class in Player.pictures, constructed with the data. It has the width, height and maxWidth of its SVG,
// the number of its `last` step, show(svg, at, moving), name(at), alarms(at) and legend(), which returns [width, height,
// nodes, text] for each item. Optional: fit(width) lays the picture out for a width. seek(x, y) returns the step at a point
// of an axis, and undefined elsewhere. lasts(at) is the milliseconds of the motion to a step, halt() stops it, and
// late(at) says whether it has been stopped. passed() is the last step that a moving picture has reached, and retold(words)
// says where it is since then; it calls arrived() when the motion has ended. slowDown(slow) sets its pace. hover(element, x, y) names
// what is under the pointer. `over` is an element on top of the SVG, for what moves: the browser then draws the rest once. With `side`, a wide page has the words at the right of the picture, unless its `least` width leaves no room.
//
// With choices, each combination of answers has its own figure, or its own story of one figure, which pick(number) selects.
// A figure may have several views of the same steps, each with a picture.
(() => {
  if (customElements.get("collective-player")) return;
  const PLAY_MS = 2400, SWIPE = 40, WIDE = 760, SIDE = 256; // pixels
  const LETTERS = 30; // answers of at most 30 letters together get buttons, longer ones a box

  const make = (name, attributes = {}, ...children) => {
    const svg = /^(svg|g|path|rect|circle|text)$/.test(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  // The buttons: label for screen readers, and icon on a field of 20 by 20.
  const BUTTONS = {
    first: ["First", "M4 4h2.5v12H4zM16 4v12L7.5 10z"],
    back: ["Back", "M14.5 4v12L6 10z"],
    play: ["Play", "M5 3.5v13L16 10z"],
    forward: ["Forward", "M5.5 4v12L14 10z"],
    last: ["Last", "M4 4v12L12.5 10zM13.5 4H16v12h-2.5z"],
  };
  const PAUSE = "M5 4h3.5v12H5zM11.5 4H15v12h-3.5z";

  // The picture for inputs that the function refuses: none; the text gives the reason.
  const NOTHING = { width: 1, height: 0, last: 0, show: (svg) => svg.replaceChildren(), name: () => "before", alarms: () => true, legend: () => [] };
  let questions = 0; // on the page, so that each group of radio buttons has its own name

  // The pictures that some data need.
  const pictures = ({ picture, figures, views }) =>
    figures ? figures.filter(Boolean).flatMap(pictures) : views ? views.flatMap(([, view]) => pictures(view)) : [picture];

  // A page builds its figures one by one, so that it can scroll in between.
  const waiting = new Set();
  const startNext = () => {
    const [player] = waiting;
    waiting.delete(player);
    if (waiting.size) setTimeout(startNext);
    player.start();
  };
  const startLater = (player) => {
    if (!waiting.size) setTimeout(startNext);
    waiting.add(player);
  };

  class CollectivePlayer extends HTMLElement {
    static make = make;
    static pictures = {};

    // Each picture's script calls this after it defines its class.
    static startAll() {
      for (const player of document.querySelectorAll("collective-player")) startLater(player);
    }

    // While the page loads, the element has no children yet. When an element is moved later, they are there.
    connectedCallback() {
      if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => startLater(this));
      else startLater(this);
    }

    disconnectedCallback() {
      this.pause();
    }

    start() {
      const source = this.querySelector(":scope > script[type='application/json']");
      if (this.stage || !source) return;
      const data = JSON.parse(source.textContent);
      if (!pictures(data).every((name) => name in CollectivePlayer.pictures)) return;
      this.querySelector(":scope > .stage")?.remove(); // left over if the page was saved while in use
      this.told = data.told ?? [[...this.querySelectorAll(".still li")].map((item) => item.textContent)];
      this.figures = data.figures; // of a family
      const still = this.querySelector(".still img"); // inline SVG prints in the page's text colour
      if (still) still.outerHTML = decodeURIComponent(still.src.slice(still.src.indexOf(",") + 1));
      this.build(data.choices ?? []);
      this.data = data;
      if (!this.figures) this.swap(data);
      this.dataset.lmSuppressShortcuts = "true"; // or JupyterLab handles the arrow keys as commands for its cells
      this.addEventListener("keydown", (event) => this.onKey(event));
      this.closest(".opening")?.addEventListener("collective-answer", () => this.play(), { once: true });
      this.choose();
      if (this.closest(".tag_hero") && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.play();
    }

    build(choices) {
      this.at = 0;
      this.svg = make("svg", { role: "img" });
      this.over = make("div", { class: "over", "aria-hidden": true });
      this.buttons = Object.fromEntries(Object.entries(BUTTONS).map(([name, [label, d]]) => [name,
        make("button", { type: "button", "aria-label": label, title: label }, make("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, make("path", { d })))]));
      this.slow = make("button", { type: "button", class: "slow", "aria-pressed": false }, "slow");
      this.slider = make("input", { type: "range", min: 0, value: 0, "aria-label": "Step" });
      this.live = make("p", { "aria-live": "polite" });
      this.longest = make("p", { "aria-hidden": "true" });
      this.say = make("div", { class: "say" }, this.live, this.longest);
      this.legend = make("ul", { class: "legend" });
      this.view = 0;
      this.views = make("div", { class: "views" });
      this.toLab = make("a", { class: "to-lab", hidden: "" }, "Open in the Lab");
      this.heading = make("strong", {}, this.getAttribute("aria-label"));
      this.stage = make("div", { class: "stage", tabindex: -1 }, make("div", { class: "top" }, this.heading, this.views, this.toLab),
        ...this.ask(choices), this.svg, this.over, make("div", { class: "controls" }, ...Object.values(this.buttons), this.slow, this.slider), make("div", { class: "aside" }, this.say, this.legend));
      this.append(this.stage);
      new ResizeObserver(() => this.measure()).observe(this.stage); // also when it first comes into view
      this.svg.onpointerdown = this.svg.onpointermove = this.svg.onpointerup = (event) => this.point(event);
      this.svg.onpointerleave = () => this.picture.hover?.(this.svg);
      const { first, back, play, forward, last } = this.buttons;
      first.onclick = () => this.step(0);
      back.onclick = () => this.step(this.at - 1);
      play.onclick = () => (this.timer ? this.pause() : this.play());
      this.slow.onclick = () => this.slowDown(this.slow.ariaPressed !== "true");
      forward.onclick = () => this.step(this.ahead());
      last.onclick = () => this.step(this.last);
      this.slider.oninput = () => this.step(Number(this.slider.value));
    }

    // Returns the questions, each as a row of radio buttons or a box. `this.answers` has the number of each answer.
    ask(choices) {
      this.answers = choices.map(([, , at]) => at);
      this.counts = choices.map(([, answers]) => answers.length);
      if (!choices.length) return [];
      const long = choices.some(([, answers]) => answers.join("").length > LETTERS);
      const rows = choices.map(([question, answers, at], index) => {
        const pick = (place) => {
          this.answers[index] = place;
          this.choose();
        };
        if (long) {
          const box = make("select", { "aria-label": question }, ...answers.map((answer) => make("option", {}, answer)));
          box.selectedIndex = at;
          box.onchange = () => pick(box.selectedIndex);
          return make("label", {}, make("span", {}, question), box);
        }
        return this.row(make("legend", {}, question), answers, at, pick);
      });
      const asks = make("div", { class: "choices" }, ...rows);
      asks.onkeydown = (event) => event.stopPropagation(); // there the arrow keys pick an answer
      return [asks];
    }

    // Returns a row of joined radio buttons.
    row(legend, answers, at, pick) {
      const name = `choice-${++questions}-${Date.now()}`;
      return make("fieldset", {}, legend, ...answers.map((answer, place) => {
        const radio = make("input", { type: "radio", name });
        radio.checked = place === at;
        radio.onchange = () => pick(place);
        return make("label", {}, radio, make("span", {}, answer));
      }));
    }

    // Pictures with a clock can run slowly.
    slowDown(slow) {
      this.pause();
      this.slow.ariaPressed = slow;
      this.picture.slowDown?.(slow);
      this.picture.show(this.svg, this.at, false);
    }

    // Shows the buttons that switch between a figure's views.
    offer(views) {
      const titles = views?.map(([title]) => title) ?? [];
      if (this.views.dataset.titles === titles.join()) return;
      this.views.dataset.titles = titles.join();
      this.views.replaceChildren(...(titles.length ? [this.row(make("legend", { class: "spoken" }, "view"), titles, this.view, (place) => {
        this.view = place;
        this.choose();
      })] : []));
      this.views.onkeydown = (event) => event.stopPropagation();
    }

    // Shows the figure or story for the current answers, at the same step if it has as many.
    choose() {
      const number = this.answers.reduce((place, answer, index) => place * this.counts[index] + answer, 0);
      this.pause();
      this.words = this.told[number];
      if (this.data.captions?.[number]) this.heading.textContent = this.data.captions[number];
      if (this.figures) this.swap(this.figures[number]);
      else if (this.data.views) this.swap(this.data);
      else this.picture.pick?.(number);
      const texts = this.figures ? this.words : this.told.flat();
      this.longest.textContent = texts.reduce((a, b) => (b.length > a.length ? b : a)); // reserves the space for any text
      this.go(this.at);
    }

    swap(figure) {
      if (this.picture) this.picture.at = null; // cancels the end of an animation in progress
      this.picture?.halt?.();
      this.offer(figure?.views);
      const data = figure?.views?.[this.view][1] ?? figure;
      const picture = (this.picture = data ? new CollectivePlayer.pictures[data.picture](data) : NOTHING);
      picture.arrived = () => this.tell();
      this.last = this.slider.max = picture.last;
      this.svg.setAttribute("viewBox", `0 0 ${picture.width} ${picture.height}`);
      this.fitted = 0;
      this.stage.style.maxWidth = picture.maxWidth ?? "";
      this.stage.classList.toggle("refused", !data);
      this.slow.hidden = !picture.slowDown;
      this.link([figure, ...(figure?.views ?? []).map(([, view]) => view)].find((each) => each?.lab)?.lab);
      picture.slowDown?.(this.slow.ariaPressed === "true");
      this.svg.replaceChildren();
      this.over.replaceChildren();
      picture.over = this.over;
      this.arrange();
      this.fit();
      this.explain();
    }

    // Links a schedule to the Lab, which only the book has.
    link(fragment) {
      const root = document.documentElement.dataset.content_root;
      this.toLab.hidden = !fragment || root === undefined;
      if (!this.toLab.hidden) this.toLab.href = `${root}lab.html#${fragment}`;
    }

    explain() {
      this.legend.replaceChildren(...this.picture.legend().map(([width, height, nodes, text]) =>
        make("li", {}, make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...nodes), text)));
    }

    // Only the observer reads the width: reading it elsewhere forces a layout of the whole page.
    measure() {
      this.room = Math.round(this.stage.clientWidth);
      this.arrange();
      this.fit();
      // A picture laid out anew is at the end of its step.
      this.tell();
    }

    // Puts the words at the right of the picture, if the page is wide enough for both.
    arrange() {
      const beside = this.picture.side && this.room >= WIDE && !(this.picture.least > this.room - SIDE);
      this.stage.classList.toggle("wide", Boolean(beside));
      this.width = beside ? this.room - SIDE : this.room;
    }

    // Lays the picture out for the width, if it can; a unit of its SVG is then a pixel.
    fit() {
      if (!this.picture.fit || !this.width || this.width === this.fitted) return;
      this.picture.fit((this.fitted = this.width));
      this.svg.setAttribute("viewBox", `0 0 ${this.picture.width} ${this.picture.height}`);
      this.explain();
      this.picture.show(this.svg, Math.min(this.at, this.last), false);
    }

    // On an axis, the pointer selects a step. Elsewhere, a click goes to the next step, and a finger swipes to it.
    point({ type, clientX, clientY, pointerType, buttons, target }) {
      const { left, top, width } = this.svg.getBoundingClientRect(), scale = this.picture.width / width;
      if (type === "pointermove" && !(buttons & 1)) return this.picture.hover?.(target, (clientX - left) * scale, (clientY - top) * scale);
      if (type === "pointerdown") this.stage.focus({ preventScroll: true });
      if (type !== "pointerup" && (type === "pointerdown" || this.seeking)) {
        const at = this.picture.seek?.((clientX - left) * scale, (clientY - top) * scale);
        this.seeking = at !== undefined;
        if (this.seeking) return this.step(at);
      }
      const moved = clientX - (this.from ?? clientX);
      if (type === "pointerdown") this.from = clientX;
      if (type !== "pointerup") return;
      if (this.seeking) this.seeking = false;
      else if (pointerType !== "touch") this.step(this.ahead());
      else if (Math.abs(moved) > SWIPE) this.step(this.at + (moved < 0 ? 1 : -1));
    }

    onKey(event) {
      const steps = { ArrowLeft: this.at - 1, ArrowRight: this.ahead(), Home: 0, End: this.last };
      const onButton = event.target instanceof HTMLButtonElement; // there the space bar presses the button
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in steps) this.step(steps[event.key]);
      else if (event.key === " " && !onButton) this.buttons.play.click();
      else return;
      event.preventDefault();
      event.stopPropagation(); // some pages turn at an arrow key
    }

    // The next step; the current one, if its motion has been stopped.
    ahead() {
      return this.picture.late?.(this.at) ? this.at : this.at + 1;
    }

    play() {
      if (this.ahead() > this.last) this.go(0);
      const next = () => {
        if (this.ahead() > this.last) return this.pause();
        const lasts = this.picture.lasts?.(this.ahead()) || (this.picture.pace ?? PLAY_MS);
        this.timer = setTimeout(next, lasts);
        this.go(this.ahead());
      };
      next();
      this.showPlaying();
    }

    pause() {
      clearTimeout(this.timer);
      this.timer = null;
      this.picture?.halt?.();
      if (this.words) this.tell();
      if (this.stage) this.showPlaying();
    }

    showPlaying() {
      const [label, icon] = this.timer ? ["Pause", PAUSE] : BUTTONS.play;
      this.buttons.play.setAttribute("aria-label", label);
      this.buttons.play.title = label;
      this.buttons.play.querySelector("path").setAttribute("d", icon);
    }

    // A step by hand stops the playing.
    step(to) {
      this.pause();
      this.go(to);
    }

    go(to) {
      const at = Math.max(0, Math.min(this.last, to)), forward = [this.at + 1, this.ahead()].includes(at);
      this.at = at;
      this.dataset.step = at;
      this.picture.show(this.svg, at, forward && !matchMedia("(prefers-reduced-motion: reduce)").matches);
      this.tell();
    }

    // Says in the text and on the slider what the picture shows.
    tell() {
      const at = this.picture.passed?.() ?? this.at, told = this.words[at], words = this.picture.retold?.(told) ?? told;
      this.slider.value = at;
      this.slider.style.setProperty("--part", `${(100 * at) / (this.last || 1)}%`);
      this.slider.setAttribute("aria-valuetext", this.picture.name(at));
      // Screen readers read again whatever is written again.
      if (this.live.textContent !== words) this.live.textContent = words;
      this.svg.setAttribute("aria-label", words);
      this.say.classList.toggle("guilty", this.picture.alarms(at));
    }
  }

  customElements.define("collective-player", CollectivePlayer);
})();
