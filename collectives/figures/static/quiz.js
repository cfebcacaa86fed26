// Asks the questions that Python wrote into the element, and says at once what an answer stands for. Every quiz carries
// this script; the first one to run defines the element.
(() => {
  if (customElements.get("collective-quiz")) return;

  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  class CollectiveQuiz extends HTMLElement {
    // While the page is still being read the children are not there yet; moved about later, all is ready.
    connectedCallback() {
      if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => this.start());
      else this.start();
    }

    start() {
      const source = this.querySelector(":scope > script[type='application/json']");
      if (this.live || !source) return;
      this.querySelector(":scope > .live")?.remove(); // left behind where a page was saved in use
      const questions = JSON.parse(source.textContent);
      this.live = make("ol", { class: "live" }, ...questions.map((question) => make("li", {}, question.typed ? this.typed(question) : this.chosen(question))));
      this.append(this.live);
      this.dataset.ready = "";
      this.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take the keys for its cells
      this.addEventListener("keydown", (event) => event.stopPropagation()); // as some pages would
    }

    // A question whose answers are buttons: each can be tried, and says what it stands for.
    chosen({ text, options, right }) {
      const said = make("p", { role: "status" });
      const buttons = options.map(([answer, why], index) => {
        const button = make("button", { type: "button", "aria-pressed": "false" }, answer);
        button.onclick = () => {
          for (const other of buttons) other.setAttribute("aria-pressed", other === button);
          button.dataset.verdict = index === right ? "right" : "wrong";
          this.say(said, index === right, why);
        };
        return button;
      });
      return make("fieldset", {}, make("legend", {}, text), make("div", { class: "options" }, ...buttons), said);
    }

    // A question whose answer is a number to type.
    typed({ text, unit, tolerance, options, right }) {
      const said = make("p", { role: "status" }), input = make("input", { inputmode: "decimal", autocomplete: "off", size: 10, "aria-label": unit ? `number, in ${unit}` : "number" });
      const form = make("form", {}, input, ...(unit ? [make("span", { "aria-hidden": "true" }, unit)] : []), make("button", {}, "Check"));
      form.onsubmit = (event) => {
        event.preventDefault();
        const number = Number(input.value.replace(/[,\s]/g, ""));
        if (!input.value.trim() || Number.isNaN(number)) return this.say(said, false, "That is no number.");
        const near = options.findIndex(([answer]) => Math.abs(number - answer) <= tolerance * Math.abs(answer));
        this.say(said, near === right, near >= 0 ? options[near][1] : number < options[right][0] ? "Too small." : "Too large.");
      };
      return make("fieldset", {}, make("legend", {}, text), form, said);
    }

    say(said, isRight, why) {
      said.dataset.verdict = isRight ? "right" : "wrong";
      said.replaceChildren(make("strong", {}, isRight ? "Right. " : "Not so. "), why);
    }
  }

  customElements.define("collective-quiz", CollectiveQuiz);
})();
