// The Lab: build a collective, break it, and have it proved or refuted at once; solve puzzles; race two schedules. Every
// number comes from the interpreter in schedule.js, simulate.js, contracts.js and price.js.
(() => {
  if (customElements.get("collective-lab")) return;
  const Lab = globalThis.CollectiveLab, { COPY, REDUCE, prose, upper } = Lab;
  const { make } = customElements.get("collective-player");
  const KEY = "collectives-lab", MOST_UNDO = 200, MOST_RANKS = 16, MOST_CHUNKS = 64, MOST_STEPS = 256, SAVE_MS = 400, MOST_LETTERS = 200000, MOST_DRAWN = 3000, MOST_PICTURE = 1.5e6, DONE_MS = 2000, SOLVED = "Solved.";
  const ROOTED = ["broadcast", "reduce", "scatter", "gather"], WHOLE = ["broadcast", "reduce", "all_reduce", "barrier"]; // contracts that need no shards
  const BUILT = Lab.CONTRACTS.filter((name) => name !== "all_to_all_uneven");
  const GREETING = "Drag from one slot to another to send what it holds, or tap one and then the other.";
  const KEYS = "The arrow keys move. Enter picks the slot that sends, and then the slot to write. Page Down is the next step.";
  const FORGETS = "This browser can't store anything for this page now, so copy a link before you leave to keep your work.";
  const plural = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;

  const button = (text, act, more = {}) => {
    const node = make("button", { type: "button", ...more }, text);
    node.onclick = act;
    return node;
  };
  // A row of buttons is one stop of the Tab key: the arrow keys move in it.
  const inRow = (row) => [...row.querySelectorAll("button:not(:disabled)")];
  const moveByArrows = (row) => {
    row.addEventListener("focusin", () => oneStop(row));
    row.onkeydown = (event) => {
      const buttons = inRow(row), at = buttons.indexOf(event.target), last = buttons.length - 1;
      const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at > 0 ? at - 1 : last, Home: 0, End: last }[event.key];
      if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      buttons[to].focus();
      event.preventDefault();
      event.stopPropagation(); // some pages turn at an arrow key
    };
  };
  // The stop is where the keyboard is or, from elsewhere, the row's current or main button.
  const oneStop = (row) => {
    const buttons = inRow(row), stop = buttons.find((each) => each === document.activeElement) ?? buttons.find((each) => each.matches("[aria-current=step], [aria-pressed=true], .main")) ?? buttons[0];
    for (const each of buttons) each.tabIndex = each === stop ? 0 : -1;
  };
  const field = (label, control) => make("label", { class: "field" }, make("span", {}, label), control);
  const chooser = (options, act) => {
    const select = make("select", {}, ...options.map(([value, text]) => make("option", { value }, text)));
    select.onchange = () => act(select.value);
    return select;
  };

  // What the reader's browser keeps: solved puzzles, answers, the free board, and the id of the last puzzle. Without storage, nothing is kept. What a
  // newer page has written stays as it is, so this one keeps nothing then.
  const kept = () => {
    const none = { v: 1, solved: {}, answers: {}, free: null, last: null };
    try {
      const { v, solved, answers, free, last } = JSON.parse(localStorage.getItem(KEY));
      if (v !== 1) return { ...none, newer: v > 1 };
      return { v, solved: { ...solved }, answers: { ...answers }, free, last }; // a spread, so that null or a word there does no harm
    } catch {
      return none;
    }
  };

  // What several tabs or readings know, together: of what they have in common, the last one counts.
  const merged = (...all) => ({
    v: 1, solved: Object.assign({}, ...all.map(({ solved }) => solved)), answers: Object.assign({}, ...all.map(({ answers }) => answers)),
    free: all.findLast(({ free }) => free)?.free ?? null, last: all.findLast(({ last }) => last)?.last ?? null,
  });

  class CollectiveLab extends HTMLElement {
    connectedCallback() {
      if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => this.start());
      else this.start();
    }

    start() {
      const source = this.querySelector(":scope > script[type='application/json']");
      if (this.board || !source) return;
      const { puzzles, presets, machines, lines, colours, kinds, given } = JSON.parse(source.textContent);
      Object.assign(this, { puzzles, presets, machines, lines, colours, kinds, kept: kept(), unkept: {}, boards: new Map() });
      this.paged = this.dataset.page !== undefined; // a page of its own, whose address says what it shows
      this.build();
      this.dataset.lmSuppressShortcuts = "true"; // or JupyterLab handles keys as commands for its cells
      this.open((this.paged && this.asked()) || given || `v=1&puzzle=${this.resumed().id}`);
      if (this.paged) addEventListener("hashchange", () => this.asked() && this.asked() !== this.written && this.open(this.asked()));
      addEventListener("pagehide", () => this.flush());
      addEventListener("storage", ({ key, newValue }) => {
        if (key !== null && key !== KEY) return;
        this.kept = newValue ? merged(this.kept, kept(), this.unkept) : kept(); // no value: the reader has cleared it
        this.list();
      });
    }

    // The fragment of the page's address; "" if it is only the name of a heading.
    asked() {
      const fragment = location.hash.slice(1);
      return fragment.includes("=") ? fragment : "";
    }

    // The puzzle that the reader was in before leaving the page, unless it's solved; else the first that isn't.
    resumed() {
      const { kept: { solved, last }, puzzles } = this, open = puzzles.filter(({ id }) => !solved[id]);
      return open.find(({ id }) => id === last) ?? open[0] ?? puzzles[0];
    }

    // --- the page ---

    build() {
      this.board = new Lab.Board(this);
      this.tabs = Object.fromEntries([["puzzles", "Puzzles"], ["build", "Build"], ["race", "Race"]].map(([name, text]) => [name, button(text, () => this.show(name))]));
      this.status = make("p", { role: "status", class: "status" });
      this.forgets = make("p", { role: "status", class: "help forgets" }); // empty and in the page before it is filled, or no screen reader says it
      this.card = make("div", { class: "sheet" });
      this.verdict = make("div", { class: "verdict" });
      this.steps = make("div", { class: "steps", role: "toolbar", "aria-label": "Steps" });
      this.moves = make("ul", { class: "moves", "aria-label": "Transfers of this step" });
      this.tools = {
        undo: button("Undo", () => this.undo(), { title: "Ctrl+Z" }), redo: button("Redo", () => this.redo(), { title: "Ctrl+Y" }),
        play: button("Play", () => this.play()), next: button("Next step", () => this.next(), { class: "main" }),
      };
      this.arrange = {
        insert: button("Insert a step", () => this.insert()), earlier: button("Move earlier", () => this.moveStep(-1)),
        later: button("Move later", () => this.moveStep(1)), remove: button("Delete the step", () => this.removeStep()), clear: button("Start over", () => this.clear()),
      };
      const tabs = make("div", { class: "tabs", role: "toolbar", "aria-label": "What to do" }, ...Object.values(this.tabs));
      const bar = make("div", { class: "bar", role: "toolbar", "aria-label": "Play and undo" }, this.tools.undo, this.tools.redo, make("span", { class: "space" }), this.tools.play, this.tools.next);
      const arrange = make("div", { class: "bar quiet", role: "toolbar", "aria-label": "Change the steps" }, ...Object.values(this.arrange));
      this.rows = [tabs, bar, this.steps, arrange];
      this.rows.forEach(moveByArrows);
      this.paper = make("pre", { class: "paper" });
      // Tab goes from the board to the verdict, and then to what is needed less often, below the board.
      this.workshop = make("div", { class: "workshop" }, (this.left = make("div", { class: "left" }, this.status, this.board.element, this.steps, bar)),
        make("div", { class: "right" }, this.card, this.verdict, this.sharing()), make("div", { class: "below" }, this.moves, arrange, this.typing(), this.paper));
      this.race = new Lab.Race(this);
      this.append(tabs, this.forgets, this.workshop, this.race.element);
      this.addEventListener("keydown", (event) => this.onKey(event));
      this.board.element.addEventListener("focusin", ({ target }) => this.status.textContent === GREETING && target.matches(":focus-visible") && this.say(KEYS));
    }

    typing() {
      this.text = make("textarea", { rows: 6, spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-label": "The schedule in words: a line for each step, such as 0:1→2+" });
      this.trouble = make("p", { class: "trouble", role: "alert" });
      this.text.oninput = () => this.typed(this.text.value);
      this.text.onpaste = (event) => this.tooLong(event.clipboardData.getData("text"), event);
      this.text.onblur = () => this.trouble.textContent === "" && this.write();
      const help = make("p", { class: "help" }, "A line is a step. 0:1→2 copies chunk 0 from rank 1 to rank 2; a + at the end adds it; 2-3:0→1 sends two chunks as one message; 0:1→2:3 writes chunk 0 of rank 1 into chunk 3 of rank 2. You may type -> for the arrow, or paste a schedule as JSON.");
      return make("details", { class: "typing", ...(matchMedia("(min-width: 900px)").matches && { open: "" }) }, make("summary", {}, "As text"), this.text, this.trouble, help);
    }

    sharing() {
      const names = [["Copy a link", (node) => this.copy(this.address(), "The link is copied.", node)], ["Copy as Python", (node) => this.copy(Lab.toPython(this.schedule), "The Python cell is copied.", node)],
        ["JSON", () => this.save("json", Lab.toJson(this.schedule))], ["MSCCL XML", () => this.save("xml", Lab.toMscclXml(this.schedule))], ["SVG", () => this.savePicture()]];
      return make("details", { class: "sharing", open: "" }, make("summary", {}, "Share and take away"), make("div", { class: "bar" }, ...names.map(([text, act]) => button(text, ({ currentTarget }) => this.attempt(() => act(currentTarget))))));
    }

    // --- what is open ---

    // Opens what a fragment of an address names. A bad one leaves everything as it is, and says why.
    open(fragment) {
      try {
        const { puzzle, schedule, view, race } = Lab.fromFragment(fragment, this.puzzles);
        if (race) this.race.check(race);
        const replaced = this.turnTo(puzzle, schedule);
        [this.where, this.written] = [null, fragment];
        if (race) this.race.restore(race);
        this.show(view === "race" ? view : puzzle ? "puzzles" : "build");
        if (this.view !== "race" && this.lent && this.schedule.steps.length) this.say(replaced ? "This is what the link holds. Undo brings back what you had built here." : "Press “Play” to see these steps, or change them.");
      } catch (error) {
        if (!this.schedule) this.openPuzzle(this.puzzles[0]);
        this.explain(error);
      }
    }

    // Shows the board of a puzzle, or the free one (null), as the reader left it, with all that can be undone. If a link brings
    // another schedule, the first undo brings back the reader's. Returns whether there is one to bring back.
    turnTo(puzzle, linked = null) {
      this.flush();
      this.leave();
      const left = this.boards.get(puzzle), had = left?.lent || left?.kept === this.keptOf(puzzle) ? left : null; // another window may have changed it
      const own = had && !had.lent ? had : { schedule: puzzle ? this.answer(puzzle) : this.freeBoard(), past: [] };
      const isLinked = (board) => board && Lab.toFragment(board.schedule, puzzle?.id) === Lab.toFragment(linked, puzzle?.id);
      const shown = linked ? [had, own].find(isLinked) : (had ?? own), { steps } = own.schedule;
      this.take(puzzle, shown ?? { schedule: linked, lent: true, past: steps.length ? [...own.past, [own.schedule, steps.length]] : [] });
      return !shown && steps.length > 0;
    }

    // Remembers the board before another is shown.
    leave() {
      const { schedule, puzzle, at, past, future, lent, base } = this;
      if (schedule) this.boards.set(puzzle, { schedule, at, past, future, lent, kept: base });
    }

    keptOf(puzzle) {
      return puzzle ? this.kept.answers[puzzle.id] : this.kept.free;
    }

    // The reader's own board as it was, or an empty one.
    freeBoard() {
      const empty = Lab.empty(4, 4, { collective: "all_reduce", name: "from the Lab" });
      try {
        return this.kept.free ? Lab.fromFragment(this.kept.free, []).schedule : empty;
      } catch {
        return empty;
      }
    }

    // The reader's last answer to a puzzle, or its start.
    answer(puzzle) {
      try {
        const kept = this.keptOf(puzzle);
        return kept === undefined ? Lab.startOf(puzzle) : Lab.fromFragment(`v=1&puzzle=${puzzle.id}&steps=${kept}`, this.puzzles).schedule;
      } catch {
        return Lab.startOf(puzzle);
      }
    }

    openPuzzle(puzzle) {
      this.turnTo(puzzle);
      const [given] = this.seen.have, rank = given.findIndex((row) => row.some(Boolean));
      this.board.focus = [rank, given[rank].findIndex(Boolean)];
      this.show("puzzles");
      this.status.append(make("span", { class: "spoken" }, `Puzzle ${this.puzzles.indexOf(puzzle) + 1}: ${puzzle.task}`)); // the card shows it
      if (this.workshop.getBoundingClientRect().top < 0) this.workshop.scrollIntoView();
    }

    show(view) {
      this.flush();
      if (view === "puzzles" && !this.puzzle) return this.openPuzzle(this.latest ?? this.resumed());
      if (view === "build" && this.puzzle) this.turnTo(null);
      this.view = view;
      for (const [name, tab] of Object.entries(this.tabs)) tab.setAttribute("aria-pressed", name === view);
      this.workshop.hidden = view === "race";
      this.race.element.hidden = view !== "race";
      this.update();
      (view === "race" ? this.race.element : this.left).prepend(this.status);
      this.say(view === "race" ? this.race.open() : "");
      this.settle();
    }

    // --- changing the schedule ---

    // Changes the schedule, and shows it at a step.
    set(schedule, at) {
      const seen = this.seenOf(schedule); // refuses before anything changes
      Object.assign(this, { past: [...this.past, [this.schedule, this.at]].slice(-MOST_UNDO), future: [], lent: false });
      this.restore(schedule, at, seen);
    }

    // Shows the board of a puzzle, or the free one (null). `lent`: a link brought it, so until it is changed it neither replaces
    // the reader's own nor counts as the reader's solution.
    take(puzzle, { schedule, at = 0, past = [], future = [], lent = false }) {
      const seen = this.seenOf(schedule);
      Object.assign(this, { puzzle, past, future, lent, latest: puzzle ?? this.latest });
      this.restore(schedule, at, seen);
      [this.edited, this.base] = [false, this.keptOf(puzzle)];
    }

    // The analysis of a schedule; refuses one that is too big to draw.
    seenOf(schedule) {
      const { ranks, chunks, steps } = schedule;
      if (ranks > MOST_RANKS || chunks > MOST_CHUNKS || steps.length > MOST_STEPS) {
        Lab.refuse(`this schedule has ${plural(ranks, "rank")}, ${plural(chunks, "chunk")} and ${plural(steps.length, "step")}; the Lab draws at most ${MOST_RANKS}, ${MOST_CHUNKS} and ${MOST_STEPS}`);
      }
      return Lab.analyse(Lab.validate(schedule));
    }

    restore(schedule, at, seen = Lab.analyse(schedule)) {
      Object.assign(this, { schedule, seen, at: Math.max(0, Math.min(schedule.steps.length, at)), edited: true });
      this.stop();
      this.write();
      this.update();
      this.keep();
    }

    undo() {
      if (!this.past.length) return this.refuse("There is nothing to undo.");
      this.future.push([this.schedule, this.at]);
      this.restore(...this.past.pop());
      this.say(`Undone. ${Lab.stepWords(this.seen, this.at)}`);
    }

    redo() {
      if (!this.future.length) return this.refuse("There is nothing to redo.");
      this.past.push([this.schedule, this.at]);
      this.restore(...this.future.pop());
      this.say(`Done again. ${Lab.stepWords(this.seen, this.at)}`);
    }

    // Replaces the current step; a last step without transfers disappears.
    setStep(transfers) {
      const steps = [...this.schedule.steps];
      steps[this.at] = Lab.step(transfers, steps[this.at]?.phase);
      while (steps.length && !steps.at(-1).length) steps.pop();
      this.set({ ...this.schedule, steps }, this.at);
    }

    // Draws a transfer from slot to slot in the current step. What can't be is refused in a sentence.
    draw(src, chunk, dst, into) {
      const { seen, at, puzzle, schedule } = this, here = schedule.steps[at] ?? [];
      if (src === dst) return this.refuse(`A transfer goes from one rank to another. Both slots are on rank ${src}.`);
      if (this.lacks(src, chunk)) return;
      const [combine, why] = Lab.usual(seen, at, src, chunk, dst, into), one = Lab.transfer(src, dst, chunk, combine, into);
      if (here.some((t) => Lab.singles([t]).some((each) => Lab.print(each) === Lab.print(one)))) return this.refuse(`Step ${at} already has ${Lab.print(one)}.`);
      const next = this.joined(here, one), fault = Lab.stepFault(next, schedule.ranks, schedule.chunks);
      const trouble = fault ? `${fault}, and only one can be last. Use another step: press “Next step”.` : puzzle && Lab.stepTrouble(puzzle, next, at);
      if (trouble) return this.refuse(trouble);
      this.setStep(next);
      this.did(`Step ${at}: ${Lab.sentence(one)}${why}.`);
    }

    // Whether a slot holds nothing to send in this step; says so.
    lacks(rank, chunk) {
      const { seen: { have }, at } = this;
      if (have[at][rank][chunk]) return false;
      this.refuse(have[at + 1]?.[rank][chunk] ? `Rank ${rank} gets chunk ${chunk} only at the end of this step. Press “Next step” to send it on.` : `Rank ${rank} has nothing in chunk ${chunk} yet, so it can't send it.`);
      return true;
    }

    // Adds a transfer to a step. Adjacent chunks of the same two ranks travel as one message.
    joined(transfers, one) {
      const alike = (t) => t.src === one.src && t.dst === one.dst && t.combine === one.combine && t.into - t.chunk === one.into - one.chunk;
      const beside = (t) => t.chunk + t.count === one.chunk || one.chunk + 1 === t.chunk;
      const place = this.puzzle?.single ? -1 : transfers.findIndex((t) => alike(t) && beside(t));
      if (place < 0) return [...transfers, one];
      const t = transfers[place], first = Math.min(t.chunk, one.chunk);
      return transfers.with(place, { ...t, chunk: first, into: first + t.into - t.chunk, count: t.count + 1 });
    }

    // Takes back the transfers of the current step that write a slot.
    dropInto(rank, chunk) {
      this.arrive();
      const here = this.schedule.steps[this.at] ?? [], rest = here.filter((t) => !(t.dst === rank && t.into <= chunk && chunk < t.into + t.count));
      if (rest.length === here.length) return this.refuse(`No transfer of this step writes chunk ${chunk} on rank ${rank}.`);
      this.setStep(rest);
      this.did("Taken back.");
    }

    change(place, transfer) {
      const here = this.schedule.steps[this.at], next = transfer ? here.with(place, transfer) : here.filter((_, other) => other !== place);
      const fault = Lab.stepFault(next, this.schedule.ranks, this.schedule.chunks);
      if (fault) return this.refuse(`${fault}. Use another step: press “Next step”.`);
      this.setStep(next);
      this.did(`${transfer ? `Now ${Lab.sentence(transfer)}` : "Taken back"}.`);
    }

    insert() {
      const { steps } = this.schedule;
      if (this.at >= steps.length) return this.refuse("This step is new already.");
      this.set({ ...this.schedule, steps: steps.toSpliced(this.at, 0, Lab.step([])) }, this.at);
      this.say(`A new step ${this.at}, before the others.`);
    }

    moveStep(by) {
      const { steps } = this.schedule, to = this.at + by;
      if (this.at >= steps.length || to < 0 || to >= steps.length) return this.refuse("This step can't move further.");
      this.set({ ...this.schedule, steps: steps.toSpliced(this.at, 1).toSpliced(to, 0, steps[this.at]) }, to);
      this.did(`It is step ${to} now.`);
    }

    removeStep() {
      if (this.at >= this.schedule.steps.length) return this.refuse("This step has no transfers yet.");
      this.set({ ...this.schedule, steps: this.schedule.steps.toSpliced(this.at, 1) }, this.at);
      this.did("The step is deleted.");
    }

    clear() {
      this.set(this.puzzle ? Lab.startOf(this.puzzle) : { ...this.schedule, steps: [], name: "from the Lab" }, 0);
      this.say("Started over. Undo brings it back.");
    }

    // Reads what was typed or pasted, in the notation or as JSON. What can't be read changes nothing.
    typed(text) {
      try {
        const { ranks, chunks, collective, root, lengths, name } = this.schedule;
        const schedule = text.trimStart().startsWith("{") ? Lab.fromJson(text) : { ranks, chunks, collective, root, lengths, name, steps: Lab.parseSteps(text) };
        if (this.puzzle && (schedule.ranks !== ranks || schedule.chunks !== chunks)) Lab.refuse(`this puzzle has ${plural(ranks, "rank")} and ${plural(chunks, "chunk")}, the schedule ${schedule.ranks} and ${schedule.chunks}`);
        const own = { ...schedule, collective: this.puzzle ? collective : schedule.collective, root: this.puzzle ? root : schedule.root };
        this.reading = true; // the text stays as it was typed
        this.set(own, own.steps.length);
        this.trouble.textContent = "";
        this.say(this.told());
      } catch (error) {
        if (!(error instanceof Lab.ScheduleError)) throw error;
        this.trouble.textContent = `${upper(error.message)}. The board shows the last schedule that could be read.`;
      } finally {
        this.reading = false;
      }
    }

    tooLong(text, event) {
      if (text.length <= MOST_LETTERS) return;
      event.preventDefault();
      this.trouble.textContent = `The text that you pasted has ${Lab.commas(text.length)} characters; the Lab reads ${Lab.commas(MOST_LETTERS)}.`;
    }

    // Writes the schedule into the text field.
    write() {
      this.paper.textContent = Lab.printAll(this.schedule);
      if (this.reading) return;
      this.text.value = this.paper.textContent;
      this.trouble.textContent = "";
    }

    // --- going through the steps ---

    go(at) {
      this.stop();
      this.at = Math.max(0, Math.min(this.schedule.steps.length, at));
      this.update();
      this.say(`${Lab.stepWords(this.seen, this.at)} ${this.at < this.schedule.steps.length ? "" : this.told()}`.trim());
    }

    next() {
      this.arrive();
      if (this.at >= this.schedule.steps.length) return this.told() === SOLVED ? this.did("") : this.refuse("This step is empty. Drag from one slot to another first.");
      const run = (this.run = {});
      this.board.animate(() => this.run === run && this.go(this.at + 1));
    }

    // Lets data that is under way arrive at once, so that an action during the animation needn't wait.
    arrive() {
      if (this.run) this.go(this.at + 1);
      else this.stop();
    }

    play() {
      if (this.playing) return this.stop();
      const forward = () => {
        if (this.at >= this.schedule.steps.length) return this.stop();
        const run = (this.run = {});
        this.board.animate(() => {
          if (this.run !== run) return;
          this.run = null;
          this.at++;
          this.update();
          this.playing = setTimeout(forward, 350);
        });
      };
      if (this.at >= this.schedule.steps.length) this.go(0);
      this.tools.play.textContent = "Stop";
      this.playing = setTimeout(forward, 150);
    }

    stop() {
      clearTimeout(this.playing);
      this.playing = this.run = null;
      this.tools.play.textContent = "Play";
    }

    onKey(event) {
      if (!(event.ctrlKey || event.metaKey) || event.altKey || event.target === this.text || this.view === "race") return;
      const key = event.key.toLowerCase();
      if (key === "z" && !event.shiftKey) this.undo();
      else if (key === "y" || key === "z") this.redo();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    // --- showing ---

    update() {
      if (this.view === "race") return this.rows.forEach(oneStop);
      this.board.render();
      this.list();
      const { steps } = this.schedule;
      this.refill(this.steps, Array.from({ length: steps.length + 1 }, (_, number) =>
        button(number < steps.length ? `step ${number}` : steps.length ? "new step" : "step 0", () => this.go(number), { "aria-current": number === this.at ? "step" : "false", ...(this.seen.fault?.step === number && { class: "guilty", "aria-label": `step ${number}, goes wrong` }) })));
      const here = steps[this.at] ?? [];
      this.refill(this.moves, here.map((t, place) => make("li", {}, make("code", {}, Lab.print(t)),
        button(t.combine === REDUCE ? "adds" : "copies", () => this.change(place, { ...t, combine: t.combine === REDUCE ? COPY : REDUCE }), { title: "Switch between adding and copying", "aria-label": `${Lab.print(t)} ${t.combine === REDUCE ? "adds" : "copies"}; switch` }),
        button("×", () => this.change(place, null), { "aria-label": `Take back ${Lab.print(t)}` }))));
      this.moves.hidden = !here.length;
      this.tools.undo.disabled = !this.past.length;
      this.tools.redo.disabled = !this.future.length;
      this.tools.play.disabled = !steps.length;
      for (const name of ["insert", "earlier", "later", "remove"]) this.arrange[name].disabled = this.at >= steps.length;
      this.rows.forEach(oneStop);
      this.judge();
    }

    // The puzzle's card, or the set-up of a free board.
    list() {
      if (this.view === "puzzles" && this.puzzle) this.refill(this.card, this.puzzleCard());
      else if (this.view === "build") this.refill(this.card, this.setup());
    }

    // Replaces what is in a box. The keyboard stays on the control in the same place, or goes to the board if that is gone.
    refill(box, nodes) {
      const controls = () => [...box.querySelectorAll("button, select, input")], place = controls().indexOf(document.activeElement);
      box.replaceChildren(...nodes);
      if (place < 0) return;
      const same = controls()[place];
      (same && !same.disabled ? same : this.board.buttonAt(...this.board.focus))?.focus({ preventScroll: true });
    }

    puzzleCard() {
      const { puzzle, puzzles } = this, number = puzzles.indexOf(puzzle), turn = (by) => this.openPuzzle(puzzles[(number + by + puzzles.length) % puzzles.length]);
      const all = chooser(puzzles.map(({ id, title }, place) => [id, `${place + 1}. ${title}${this.kept.solved[id] ? " ✓" : ""}`]), (id) => this.openPuzzle(puzzles.find((each) => each.id === id)));
      all.value = puzzle.id;
      all.setAttribute("aria-label", "Puzzle");
      const solved = Object.keys(this.kept.solved).length, shown = this.hints?.id === puzzle.id ? this.hints.count : 0;
      const hint = button(shown === puzzle.hints.length ? "No more hints" : shown ? "Next hint" : "A hint", () => {
        this.hints = { id: puzzle.id, count: shown + 1 };
        this.list();
        this.say(`Hint ${shown + 1} of ${puzzle.hints.length}: ${puzzle.hints[shown]}`);
      });
      hint.disabled = shown === puzzle.hints.length;
      return [
        make("div", { class: "pick" }, all, button("‹", () => turn(-1), { "aria-label": "Previous puzzle" }), button("›", () => turn(1), { "aria-label": "Next puzzle" }), make("p", { class: "count" }, `${solved} of ${puzzles.length} solved`)),
        make("p", { class: "task" }, puzzle.task),
        ...(Lab.rules(puzzle).length ? [make("ul", { class: "rules" }, ...Lab.rules(puzzle).map((rule) => make("li", {}, rule)))] : []),
        make("ol", { class: "hints" }, ...puzzle.hints.slice(0, shown).map((text) => make("li", {}, text))), hint,
      ];
    }

    setup() {
      const { schedule } = this, { collective, ranks, chunks, root } = schedule;
      const contract = chooser([...BUILT.map((name) => [name, prose(name)]), ["", "none"]], (name) => this.resize({ collective: name || null }));
      contract.value = collective ?? "";
      const size = (value, most, act) => {
        const input = make("input", { type: "number", min: 1, max: most, value });
        input.onchange = () => act(Number(input.value));
        return input;
      };
      const rootAt = chooser(Array.from({ length: ranks }, (_, rank) => [rank, rank]), (rank) => this.resize({ root: Number(rank) }));
      rootAt.value = root ?? 0;
      const fitting = this.presets.filter((each) => each.ranks === ranks && (each.collective === collective || collective === null));
      const load = chooser([["", fitting.length ? "choose an algorithm" : "none for this size"], ...fitting.map((each, place) => [place, each.name])], (place) => place !== "" && this.load(fitting[place]));
      return [
        make("div", { class: "fields" }, field("contract", contract), field("ranks", size(ranks, MOST_RANKS, (count) => this.resize({ ranks: count }))),
          field("chunks", size(chunks, MOST_CHUNKS, (count) => this.resize({ chunks: count }, true))), ...(ROOTED.includes(collective) ? [field("root", rootAt)] : []), field("load", load)),
        make("div", { class: "bar" }, button("Race it against another", () => this.attempt(() => this.race.demand() || this.show("race")))),
      ];
    }

    load(preset) {
      const { name, ranks, chunks, collective, root, steps } = preset;
      this.set(Lab.parse(steps, { ranks, chunks, collective, root, name }), 0);
      this.say(`${upper(name)}: ${plural(this.schedule.steps.length, "step")}.`);
    }

    // Another contract or size: an empty board, unless the steps still fit.
    resize(more, keepChunks = false) {
      this.attempt(() => {
        const next = { ...this.schedule, ...more, name: "from the Lab", lengths: null };
        Lab.whole(next.ranks, 1, MOST_RANKS, "the number of ranks");
        Lab.whole(next.chunks, 1, MOST_CHUNKS, "the number of chunks");
        next.root = ROOTED.includes(next.collective) ? Math.min(next.root ?? 0, next.ranks - 1) : null;
        if (!keepChunks && next.collective && !WHOLE.includes(next.collective) && next.chunks % next.ranks) next.chunks = next.ranks;
        const fits = next.steps.every((each) => !Lab.stepFault(each, next.ranks, next.chunks));
        this.set(fits ? next : { ...next, steps: [] }, fits ? this.at : 0);
        this.say(fits ? "" : "The steps didn't fit this size, so the board is empty. Undo brings them back.");
      }, () => this.list());
    }

    judge() {
      const { seen, schedule, puzzle } = this, { fault, goal, done } = seen;
      const sent = Math.max(0, ...Array.from({ length: schedule.ranks }, (_, rank) => schedule.steps.flat().reduce((sum, t) => sum + (t.src === rank ? t.count : 0), 0)));
      const cost = `${plural(schedule.steps.length, "step")}, ${plural(schedule.steps.flat().length, "message")}; the busiest rank sends ${plural(sent, "chunk")}${schedule.chunks > 1 ? `, ${Number((sent / schedule.chunks).toPrecision(3))} times its buffer of ${schedule.chunks}` : ""}.`;
      const goals = puzzle ? Lab.judge(puzzle, schedule, fault) : [], solved = puzzle && goals.every(([, met]) => met);
      const state = !schedule.collective ? "open" : fault ? (fault.spoilt ? "bad" : "open") : puzzle && !solved ? "open" : "good";
      const head = !schedule.collective ? "No contract to check." : solved ? `Solved. ${puzzle.best}` : fault || puzzle ? this.told() : `Proved: ${prose(schedule.collective)}, for every input.`;
      const bar = make("progress", { max: goal, value: done, "aria-label": "slots finished" });
      this.verdict.className = `verdict ${state}`;
      this.refill(this.verdict, [make("p", { class: "head" }, head), ...(schedule.collective ? [bar] : []), ...(fault && schedule.steps.length ? [make("p", {}, fault.message)] : []),
        ...(puzzle ? [make("ul", { class: "goals" }, ...goals.slice(1).map(([text, met]) => make("li", { class: fault ? "" : met ? "met" : "missed" }, text)))] : []), make("p", { class: "cost" }, cost),
        ...(solved ? [make("p", {}, `${puzzle.why} `, this.link(puzzle.page)), button("Next puzzle", () => this.openPuzzle(this.puzzles[(this.puzzles.indexOf(puzzle) + 1) % this.puzzles.length]), { class: "main" })] : [])]);
      if (solved && !this.lent && !this.kept.solved[puzzle.id]) this.store({ solved: { [puzzle.id]: true } });
    }

    // A link to a chapter; only where the book is.
    link(page) {
      const name = `Chapter ${Number(page.slice(0, 2))} explains it.`, root = document.documentElement.dataset.content_root;
      return root === undefined ? name : make("a", { href: `${root}${page}.html` }, name);
    }

    // What a change has done, for those who can't see the verdict.
    told() {
      const { fault, goal, done } = this.seen;
      if (!this.schedule.collective) return "";
      if (fault) return `${done} of ${plural(goal, "slot")} finished.`;
      if (!this.puzzle) return "The contract is met.";
      const [open] = Lab.judge(this.puzzle, this.schedule, fault).find(([, met]) => !met) ?? [];
      return open ? `The result is right, but the puzzle isn't solved: ${open[0].toLowerCase()}${open.slice(1).replace(/\.$/, "")}.` : SOLVED;
    }

    // Says what the reader has changed. That the puzzle is solved comes first: a long line is cut at its end.
    did(text) {
      const told = this.told();
      this.say(told === SOLVED ? `${told} ${text}` : `${text} ${told}`);
      this.status.classList.toggle("solved", told === SOLVED);
    }

    say(text) {
      this.status.textContent = text || (this.schedule.steps.length || this.view === "race" ? "" : GREETING);
      this.status.classList.remove("wrong", "solved");
    }

    // Says why nothing has happened.
    refuse(text) {
      this.say(text);
      this.status.classList.add("wrong");
    }

    explain(error) {
      if (!(error instanceof Lab.ScheduleError)) throw error;
      this.refuse(`${upper(error.message)}.`);
    }

    // Runs an action; what it refuses is said in a sentence.
    attempt(act, otherwise = () => {}) {
      try {
        return act();
      } catch (error) {
        this.explain(error);
        otherwise();
      }
    }

    // --- keeping and sharing ---

    keep() {
      clearTimeout(this.saving);
      this.saving = setTimeout(() => this.settle(), SAVE_MS);
    }

    // Keeps what waits to be kept, before another tab or puzzle is shown.
    flush() {
      if (this.saving && this.where === this.here()) this.settle();
    }

    settle() {
      clearTimeout(this.saving);
      this.saving = null;
      const fragment = Lab.toFragment(this.schedule, this.puzzle?.id);
      if (fragment === null) return this.tooBigToKeep();
      // A board that the reader only looks at is no change, and another tab may have kept a newer one. `where` is null while a page opens.
      const { puzzle, kept } = this, last = this.latest?.id ?? kept.last, steps = (/(?:^|&)steps=([^&]*)/.exec(fragment) ?? ["", ""])[1];
      if (this.edited && !this.lent) {
        this.store({ ...(puzzle ? { answers: { [puzzle.id]: steps } } : { free: fragment }), last });
        [this.edited, this.base] = [false, this.keptOf(puzzle)];
      } else if (last !== kept.last && this.where) this.store({ last });
      if (this.paged) this.publish(this.fragment());
      this.where = this.here();
    }

    here() {
      return `${this.view} ${this.puzzle?.id}`;
    }

    // Puts what is shown into the page's address. Another tab or puzzle is a new entry of the history, so Back returns to this one.
    publish(fragment) {
      const another = this.where && this.where !== this.here();
      history[another ? "pushState" : "replaceState"](null, "", `#${(this.written = fragment)}`);
    }

    // The address must not go on naming what was here before.
    tooBigToKeep() {
      if (this.paged) this.publish("");
      this.where = this.here();
      this.say("This schedule is too long for an address, so it isn't kept when you leave. Save it as JSON.");
    }

    // Keeps changes, on top of what is stored by now: another tab may have kept more since this one read it.
    store(more) {
      const stored = kept(), had = Object.keys(this.kept.solved).length; // another tab may have the newer page, too
      this.unkept = merged(this.unkept, more);
      this.kept = merged(this.kept, stored, this.unkept);
      if (Object.keys(this.kept.solved).length !== had) this.list();
      if (stored.newer) return;
      try {
        localStorage.setItem(KEY, JSON.stringify(this.kept));
        this.unkept = {};
      } catch {
        this.forgets.textContent = FORGETS; // a private window, or a full one
      }
    }

    // The state of the page: the board, and the race if that is shown.
    fragment() {
      return this.view === "race" ? Lab.toFragment(this.schedule, this.puzzle?.id, "race", this.race.parts()) : Lab.toFragment(this.schedule, this.puzzle?.id);
    }

    address() {
      const fragment = this.fragment() ?? Lab.refuse("this schedule is too long for an address; save it as JSON");
      return `${location.href.split("#")[0]}#${fragment}`;
    }

    // Copies a text. For two seconds, the button that was pressed says so: the line above may be out of view.
    async copy(text, done, { firstChild: label }) {
      try {
        await navigator.clipboard.writeText(text);
        this.say(done);
        if (label.data === done) return;
        setTimeout((name) => (label.data = name), DONE_MS, label.data);
        label.data = done;
      } catch {
        this.text.closest("details").open = true;
        this.text.value = text; // no clipboard: the text is there to be copied by hand
        this.text.select();
        this.say("The browser allows no copying, so the text is in the field below. Press Ctrl+C.");
      }
    }

    // All steps in one picture, or the current one if that would be too large.
    savePicture() {
      const { schedule: { ranks, chunks, steps }, at } = this, few = ranks * chunks * (steps.length + 1) <= MOST_DRAWN;
      const whole = few ? Lab.toSvg(this, [...steps.keys(), steps.length]) : "", all = few && whole.length <= MOST_PICTURE;
      this.save("svg", all ? whole : Lab.toSvg(this, [at]), all ? "" : `-step-${at}`);
      if (!all) this.say(`All steps are too large for one picture, so the file has step ${at}. ${this.status.textContent}`);
    }

    save(ending, text, more = "") {
      const name = `${Lab.fileName(this.schedule, this.puzzle)}${more}.${ending}`;
      const link = make("a", { href: URL.createObjectURL(new Blob([text])), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href));
      this.say(`Saved as ${name}.`);
    }
  }

  customElements.define("collective-lab", CollectiveLab);
})();
