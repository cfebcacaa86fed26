// Asks the questions that Python wrote into the element, and explains an answer at once. Every quiz carries this script;
// the first copy to run defines the element.
(() => {
  if (customElements.get("collective-quiz")) return;

  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  // Returns what places a number, in per cent of a line from 0. The line is logarithmic if the numbers differ over 30-fold.
  const places = (numbers) => {
    const high = Math.max(...numbers), low = Math.min(...numbers), log = low > 0 && high > 30 * low;
    const along = (number) => (log ? Math.log(number / low) / Math.log(high / low) : (number - Math.min(0, low)) / (high - Math.min(0, low)));
    return (number) => Math.round(1000 * (0.04 + 0.92 * (along(number) || 0))) / 10;
  };

  class CollectiveQuiz extends HTMLElement {
    // While the page loads, the element has no children yet. When an element is moved later, they are there.
    connectedCallback() {
      if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => this.start());
      else this.start();
    }

    start() {
      const source = this.querySelector(":scope > script[type='application/json']");
      if (this.live || !source) return;
      this.querySelector(":scope > .live")?.remove(); // left over if the page was saved while in use
      const questions = JSON.parse(source.textContent);
      this.live = make("ol", { class: "live" }, ...questions.map((question) => make("li", {}, question.typed ? this.typed(question) : this.chosen(question))));
      this.append(this.live);
      this.dataset.ready = "";
      this.dataset.lmSuppressShortcuts = "true"; // or JupyterLab handles the keys as commands for its cells
      this.addEventListener("keydown", (event) => event.stopPropagation()); // some pages handle keys too
    }

    // A question with a button for each answer. The reader can try them all; each shows its explanation.
    chosen({ text, options, right }) {
      const reply = make("p", { role: "status" });
      const buttons = options.map(([answer, why], index) => {
        const button = make("button", { type: "button", "aria-pressed": "false" }, answer);
        button.onclick = () => {
          for (const other of buttons) other.setAttribute("aria-pressed", other === button);
          button.dataset.verdict = index === right ? "right" : "wrong";
          this.say(reply, index === right, why);
        };
        return button;
      });
      return make("fieldset", {}, make("legend", {}, text), make("div", { class: "options" }, ...buttons), reply);
    }

    // A question that takes a typed number.
    typed({ text, unit, tolerance, options, right }) {
      const reply = make("p", { role: "status" }), input = make("input", { inputmode: "decimal", autocomplete: "off", size: 10, "aria-label": unit ? `number, in ${unit}` : "number" });
      const form = make("form", {}, input, ...(unit ? [make("span", { "aria-hidden": "true" }, unit)] : []), make("button", {}, "Check"));
      const line = make("div", { class: "line", "aria-hidden": "true" }), tried = [];
      form.onsubmit = (event) => {
        event.preventDefault();
        const number = Number(input.value.replace(/[,\s]/g, ""));
        if (!input.value.trim() || !Number.isFinite(number)) return this.say(reply, false, "That isn't a number.");
        const near = options.findIndex(([answer]) => Math.abs(number - answer) <= tolerance * Math.abs(answer));
        this.say(reply, near === right, near >= 0 ? options[near][1] : number < options[right][0] ? "Too small." : "Too large.");
        tried.push(number);
        this.mark(line, tried, options.map(([answer]) => answer), near === right ? options[right][0] : undefined);
      };
      const lines = this.closest(".opening") ? [line] : [];
      return make("fieldset", {}, make("legend", {}, text), form, ...lines, reply);
    }

    // Marks each number that the reader has committed to, as a ghost, and the right one once it is found.
    mark(line, tried, answers, found) {
      const place = places([...tried, ...answers]), at = (number, kind, text = "") => {
        const label = make("span", {}, text), node = make("i", { class: kind }, ...(text ? [label] : []));
        node.style.left = `${place(number)}%`;
        label.style.transform = `translateX(-${place(number)}%)`; // so that it stays within the line
        return node;
      };
      const ghosts = [...new Set(tried)].map((number) => at(number, "ghost", number === tried[0] ? `first, ${number.toLocaleString("en")}` : ""));
      line.replaceChildren(...ghosts, ...(found === undefined ? [] : [at(found, "found")]));
    }

    say(reply, isRight, why) {
      reply.dataset.verdict = isRight ? "right" : "wrong";
      reply.replaceChildren(make("strong", {}, isRight ? "Right. " : "Not quite. "), why);
      this.dispatchEvent(new CustomEvent("collective-answer", { bubbles: true })); // starts the figure of an opening
    }
  }

  customElements.define("collective-quiz", CollectiveQuiz);
})();
