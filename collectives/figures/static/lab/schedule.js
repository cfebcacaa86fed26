// A collective as data, as in collectives/schedule.py: steps of transfers, each moving chunks from one rank to another.
//
// A schedule is {ranks, chunks, steps, name, collective, root, lengths}; a step is a list of transfers with the step's
// `phase`, a text; a transfer is {src, dst, chunk, combine, into, count}. It carries `count` chunks, starting at `chunk`,
// and they land in the chunks starting at `into`. All transfers of a step read the state before the step.
//
// Schedules are read from the notation that they print, "0:1→2+", and from the JSON of collectives/formats/json.py.
(() => {
  const Lab = (globalThis.CollectiveLab ??= {});
  const COPY = "copy", REDUCE = "reduce";
  const FORMAT = "collectives-schedule", VERSION = 1;
  const CONTRACTS = ["broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "all_to_all_uneven", "barrier"];
  // Limits that keep a page quick, whatever it is given.
  const MOST = { ranks: 128, chunks: 4096, slots: 16384, steps: 1024, moved: 32768, characters: 2 ** 20, letters: 200 };

  class ScheduleError extends Error {}
  const refuse = (text) => {
    throw new ScheduleError(text);
  };

  const transfer = (src, dst, chunk, combine = COPY, into = chunk, count = 1) => ({ src, dst, chunk, combine, into, count });
  const step = (transfers, phase = "") => Object.assign([...transfers], { phase });
  const empty = (ranks, chunks, more = {}) => ({ ranks, chunks, steps: [], name: "schedule", collective: null, root: null, lengths: null, ...more });

  // The same step with one chunk per transfer.
  const singles = (transfers) => transfers.flatMap((t) =>
    Array.from({ length: t.count }, (_, n) => ({ ...t, chunk: t.chunk + n, into: t.into + n, count: 1 })));

  // --- the notation ---

  const run = (first, count) => (count === 1 ? `${first}` : `${first}-${first + count - 1}`);
  const print = ({ src, dst, chunk, combine, into, count }) =>
    `${run(chunk, count)}:${src}→${dst}${into === chunk ? "" : `:${run(into, count)}`}${combine === REDUCE ? "+" : ""}`;
  const printStep = (transfers) => transfers.map(print).join("  ");
  const printAll = ({ steps }) => steps.map((each, number) => `step ${number}: ${printStep(each)}`.trimEnd()).join("\n");

  const TRANSFER = /^(\d{1,6})(?:-(\d{1,6}))?:(\d{1,6})(?:→|->|>|~)(\d{1,6})(?::(\d{1,6})(?:-(\d{1,6}))?)?(\+?)$/;
  const HEAD = /^step (\d{1,6}):/;

  // Reads one transfer; `where` begins the message if it can't be read.
  const parseTransfer = (word, where) => {
    const match = TRANSFER.exec(word);
    if (!match) refuse(`${where}: ${short(word)} is not a transfer; write chunk:src→dst, such as 0:1→2, and a + at the end to add`);
    const [first, last, src, dst, lands, end] = match.slice(1, 7).map((digits) => (digits === undefined ? null : Number(digits)));
    const count = last === null ? 1 : last - first + 1, landing = end === null ? 1 : end - lands + 1;
    if (count < 1 || (lands !== null && landing !== count)) refuse(`${where}: ${word} must name as many chunks at its end as at its start, in rising order`);
    return transfer(src, dst, first, match[7] ? REDUCE : COPY, lands ?? first, count);
  };

  // Reads steps, a line each; "step 0:" may stand before them. Returns a list of steps.
  const parseSteps = (text) => {
    if (text.length > MOST.characters) refuse(`the text has ${commas(text.length)} characters; the limit is ${commas(MOST.characters)}`);
    const steps = [];
    for (const line of text.split("\n").map((each) => each.trim())) {
      if (!line || line === "no steps: nothing has to move") continue;
      const where = `step ${steps.length}`, head = HEAD.exec(line);
      if (line.startsWith("... and ") || line.includes("  ... and ")) refuse(`${where}: the text is cut short, at ${short(line.slice(line.indexOf("...")))}; it must have all steps and transfers`);
      if (head && Number(head[1]) !== steps.length) refuse(`${where}: the line begins with ${short(head[0])}; steps must be numbered from 0, without gaps`);
      const words = line.slice(head ? head[0].length : 0).split(/[\s,]+/).filter(Boolean);
      steps.push(step(words.map((word) => parseTransfer(word, where))));
    }
    return steps;
  };

  // --- what can run ---

  const whole = (value, least, most, where) => {
    if (!Number.isInteger(value) || value < least || value > most) refuse(`${where} is ${short(value)}; it must be a whole number from ${least} to ${most}`);
    return value;
  };

  // Returns one line that says why a step can't run with these sizes; null if it can.
  const stepFault = (transfers, ranks, chunks) => {
    const written = new Map();
    for (const each of transfers) {
      const { src, dst, chunk, combine, into, count } = each, text = print(each);
      for (const [field, number] of [["src", src], ["dst", dst]]) {
        if (!(number >= 0 && number < ranks)) return `${text} has ${field} ${number}, but the ranks are 0 to ${ranks - 1}`;
      }
      if (count < 1) return `${src}→${dst} carries ${count} chunks; a transfer carries at least 1`;
      for (const [field, first] of [["chunk", chunk], ["into", into]]) {
        for (const number of [first, first + count - 1]) {
          if (!(number >= 0 && number < chunks)) return `${text} has ${field} ${number}, but the chunks are 0 to ${chunks - 1}`;
        }
      }
      if (src === dst) return `${text} sends rank ${src} to itself`;
      if (combine !== COPY && combine !== REDUCE) return `${src}→${dst} combines by '${combine}'; it must be 'copy' or 'reduce'`;
      for (let lands = into; lands < into + count; lands++) {
        const slot = dst * chunks + lands, other = written.get(slot) ?? each;
        written.set(slot, other);
        if (other !== each && (other.combine === COPY || combine === COPY)) return `${print(other)} and ${text} both write chunk ${lands} on rank ${dst}`;
      }
    }
    return null;
  };

  // Refuses the first transfer that can't run, and a schedule that is too big for a page.
  const validate = (schedule) => {
    const { ranks, chunks, steps, name, root, lengths } = schedule;
    whole(ranks, 1, MOST.ranks, "the number of ranks");
    whole(chunks, 1, MOST.chunks, "the number of chunks");
    if (ranks * chunks > MOST.slots) refuse(`${name} has ${commas(ranks)} ranks x ${commas(chunks)} chunks; the Lab takes at most ${commas(MOST.slots)} slots`);
    if (steps.length > MOST.steps) refuse(`${name} has ${commas(steps.length)} steps; the Lab takes at most ${commas(MOST.steps)}`);
    if (root !== null) whole(root, 0, ranks - 1, "root");
    if (lengths && lengths.length !== chunks) refuse(`lengths has ${lengths.length} numbers; it must have one for each of the ${chunks} chunks`);
    let moved = 0;
    steps.forEach((each, number) => {
      moved += each.reduce((sum, t) => sum + Math.max(t.count, 1), 0);
      if (moved > MOST.moved) refuse(`${name}, step ${number}: the steps move more than ${commas(MOST.moved)} chunks, the Lab's limit`);
      const fault = stepFault(each, ranks, chunks);
      if (fault) refuse(`${name}, step ${number}: ${fault}`);
    });
    return schedule;
  };

  // Returns the schedule of a text in the notation. Without `ranks` and `chunks`, it has just those that the text names.
  const parse = (text, { ranks = null, chunks = null, ...names } = {}) => {
    const steps = parseSteps(text), all = steps.flat();
    const most = (numbers) => 1 + all.reduce((highest, t) => Math.max(highest, ...numbers(t)), 0);
    return validate({ ...empty(ranks ?? most((t) => [t.src, t.dst]), chunks ?? most((t) => [t.chunk + t.count - 1, t.into + t.count - 1]), names), steps });
  };

  // --- JSON, with the checks and words of collectives/formats/json.py ---

  const NEEDED = ["format", "num_chunks", "steps", "version", "world_size"], OPTIONAL = ["collective", "lengths", "name", "root"];

  const toJson = ({ ranks, chunks, steps, name, collective, root, lengths }) => {
    const header = { format: FORMAT, version: VERSION, name, ...(collective && { collective }), ...(root !== null && { root }), world_size: ranks, num_chunks: chunks, ...(lengths && { lengths }) };
    const row = (t) => {
      const into = t.into === t.chunk ? null : t.into;
      return [t.src, t.dst, t.chunk, t.combine, ...(t.count > 1 ? [into, t.count] : into === null ? [] : [into])];
    };
    const lines = steps.map((each) => ` ${spaced({ ...(each.phase && { phase: each.phase }), transfers: each.map(row) })}`);
    return `${spaced(header).slice(0, -1)}, "steps": [\n${lines.join(",\n")}]}\n`;
  };

  const fromJson = (text) => {
    if (text.length > MOST.characters) refuse(`the file has ${commas(text.length)} characters; the limit is ${commas(MOST.characters)}`);
    const data = readJson(text);
    if (!isObject(data) || data.format !== FORMAT) refuse(`this is not a schedule; it must begin with {"format": "${FORMAT}", "version": ${VERSION}`);
    if (data.version !== VERSION) refuse(`the file has version ${short(data.version ?? null)}; this library reads version ${VERSION}`);
    checkFields(data, NEEDED, OPTIONAL, "the file");
    const ranks = whole(data.world_size, 1, MOST.ranks, "world_size"), chunks = whole(data.num_chunks, 1, MOST.chunks, "num_chunks");
    const steps = list(data.steps, "steps").map((each, number) => {
      const where = `step ${number}`;
      if (!isObject(each)) refuse(`${where} is ${short(each)}; it must be {"transfers": [...]}`);
      checkFields(each, ["transfers"], ["phase"], where);
      const rows = list(each.transfers, `${where}: transfers`);
      return step(rows.map((row, place) => fromRow(row, ranks, chunks, `${where}, transfer ${place}`)), line(each.phase ?? "", `${where}: phase`));
    });
    return validate({ ranks, chunks, steps, name: line(data.name ?? "schedule", "name"), collective: collectiveOf(data.collective ?? null),
      root: data.root == null ? null : whole(data.root, 0, ranks - 1, "root"), lengths: lengthsOf(data.lengths ?? null, chunks) });
  };

  const readJson = (text) => {
    try {
      return JSON.parse(text);
    } catch (error) {
      return refuse(`this is not JSON: ${error.message}`);
    }
  };

  const fromRow = (row, ranks, chunks, where) => {
    if (!Array.isArray(row) || row.length < 4 || row.length > 6) refuse(`${where} is ${short(row)}; it must be [src, dst, chunk, combine], optionally followed by into and count`);
    const [src, dst, chunk, combine, into = null, count = 1] = row;
    if (combine !== COPY && combine !== REDUCE) refuse(`${where}: combine is ${short(combine)}; it must be "copy" or "reduce"`);
    whole(src, 0, ranks - 1, `${where}: src`);
    whole(dst, 0, ranks - 1, `${where}: dst`);
    whole(chunk, 0, chunks - 1, `${where}: chunk`);
    if (into !== null) whole(into, 0, chunks - 1, `${where}: into`);
    return transfer(src, dst, chunk, combine, into ?? chunk, whole(count, 1, chunks, `${where}: count`));
  };

  const checkFields = (data, needed, optional, where) => {
    const fields = Object.keys(data).sort(), missing = needed.find((field) => !(field in data));
    if (missing) refuse(`${where} lacks the field '${missing}'`);
    const unknown = fields.find((field) => !needed.includes(field) && !optional.includes(field));
    if (unknown !== undefined) refuse(`${where} has an unknown field ${short(unknown)}; use one of ${[...needed, ...optional].sort().join(", ")}`);
  };

  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const list = (value, where) => (Array.isArray(value) ? value : refuse(`${where} is ${short(value)}; it must be a list`));
  const line = (value, where) => {
    if (typeof value !== "string" || value.length > MOST.letters || /[\p{C}\u2028\u2029]/u.test(value)) refuse(`${where} is ${short(value)}; it must be a line of at most ${MOST.letters} characters`);
    return value;
  };
  const collectiveOf = (name) => (name === null || CONTRACTS.includes(name) ? name : refuse(`collective is ${short(name)}; it must be one of ${CONTRACTS.join(", ")}`));
  const lengthsOf = (value, chunks) => {
    if (value === null) return null;
    const lengths = list(value, "lengths").map((each, place) => whole(each, 0, 2 ** 40, `lengths[${place}]`));
    return lengths.length === chunks ? lengths : refuse(`lengths has ${lengths.length} numbers; it must have one for each of the ${chunks} chunks`);
  };

  // --- how a buffer is cut ---

  // Returns where each chunk of a buffer starts and ends, `chunks + 1` numbers. Lengths differ by at most one.
  const bounds = ({ chunks, lengths, name }, elements) => {
    if (lengths) {
      const ends = lengths.reduce((sums, each) => [...sums, sums.at(-1) + each], [0]);
      return ends[chunks] === elements ? ends : refuse(`${name} is for buffers of ${ends[chunks]} elements, not ${elements}`);
    }
    const short = Math.floor(elements / chunks), longer = elements % chunks;
    return Array.from({ length: chunks + 1 }, (_, chunk) => chunk * short + Math.min(chunk, longer));
  };

  // Refuses a step in which a chunk would land in a chunk of another length.
  const checkFit = (transfers, ends) => {
    const length = (chunk) => ends[chunk + 1] - ends[chunk];
    for (const { chunk, into } of singles(transfers)) {
      if (length(chunk) !== length(into)) refuse(`chunk ${chunk} lands in chunk ${into}, which has another length; use a buffer whose length is a multiple of the number of chunks, ${ends.length - 1}`);
    }
  };

  // --- words ---

  const commas = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
  const prose = (name) => name.replaceAll("_", "-");
  const upper = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  const listed = (items) => [items.slice(0, -1).join(", "), ...items.slice(-1)].filter((text) => text !== "").join(" and ");

  // JSON as Python writes it, with a space after each comma and colon.
  const spaced = (value) => {
    if (Array.isArray(value)) return `[${value.map(spaced).join(", ")}]`;
    if (isObject(value)) return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${spaced(each)}`).join(", ")}}`;
    return JSON.stringify(value) ?? "null";
  };
  // A value as ASCII JSON, cut to 60 characters so that the message stays one line.
  const short = (value) => {
    const text = spaced(value).replace(/[^\x20-\x7e]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
    return text.length <= 60 ? text : `${text.slice(0, 57)}...`;
  };

  Object.assign(Lab, { COPY, REDUCE, CONTRACTS, MOST, ScheduleError, refuse, transfer, step, empty, singles, print, printStep, printAll, parse, parseSteps,
    stepFault, validate, toJson, fromJson, bounds, checkFit, whole, listed, commas, prose, upper, short });
})();
