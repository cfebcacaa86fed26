// Renders formulas for katex.py: one JSON request a line on stdin, one JSON reply a line on stdout.
const katex = require("katex");
const lines = require("readline").createInterface({ input: process.stdin });

function render({ tex, display }) {
  try {
    return { html: katex.renderToString(tex, { displayMode: display, strict: "error", trust: false }) };
  } catch (error) {
    return { error: error.message };
  }
}

lines.on("line", (line) => console.log(JSON.stringify(render(JSON.parse(line)))));
