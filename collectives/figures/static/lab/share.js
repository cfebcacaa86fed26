// Takes a schedule away and brings it back: as the fragment of an address, as a Python cell, and from either. What is read
// is checked, and refused in one sentence.
//
// A fragment is fields joined by "&", the version first: v=1&ranks=4&chunks=4&contract=all_reduce&root=0&name=...&steps=...,
// with steps separated by ";", transfers by ",", and "~" for the arrow: 3:0~1+,0:1~2+;2:0~1+. A puzzle's fragment is
// v=1&puzzle=broadcast-4, with steps if there are some. A race adds view=race&race=..., whose parts are separated by "!":
// collective, ranks, the two schedules, machine, ranks in a node, bytes, and for a machine of one's own alpha and beta of a link
// and across, and the ports. Its schedule is on the board.
(() => {
  const Lab = globalThis.CollectiveLab, { refuse } = Lab;
  const VERSION = "1", LONGEST = 60000;
  const FIELDS = ["v", "puzzle", "ranks", "chunks", "contract", "root", "lengths", "name", "steps", "view", "race"];

  const pack = (steps) => steps.map((each) => each.map((t) => Lab.print(t).replace("→", "~")).join(",")).join(";");

  // Returns the fragment of a schedule, or of a puzzle with the schedule as its answer; null if it is too long for an address.
  const toFragment = ({ ranks, chunks, collective, root, lengths, name, steps }, puzzle = null, view = null, race = null) => {
    const own = { ranks, chunks, contract: collective, root, lengths: lengths?.join("."), name: name === "schedule" ? null : name };
    const fields = { v: VERSION, ...(puzzle ? { puzzle } : own), steps: steps.length ? pack(steps) : null, view, race: race?.join("!") };
    const text = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined)
      .map(([key, value]) => `${key}=${encodeURIComponent(value).replace(/%(3A|2C|3B|2B|7E|21)/g, decodeURIComponent)}`).join("&");
    return text.length > LONGEST ? null : text;
  };

  // Reads a fragment. Returns {puzzle, schedule, view, race}; the schedule is null if the fragment names only a puzzle.
  const fromFragment = (text, puzzles) => {
    if (text.length > LONGEST) refuse(`the address has ${Lab.commas(text.length)} characters after the #; the Lab reads ${Lab.commas(LONGEST)}`);
    const pairs = text.split("&").map((part) => {
      const at = part.indexOf("=");
      if (at < 1) refuse(`the address has ${Lab.short(part)} after the #; its parts look like ranks=4`);
      return [part.slice(0, at), decoded(part.slice(at + 1))];
    });
    const fields = new Map(pairs), twice = pairs.find(([name], place) => pairs.findIndex(([other]) => other === name) < place);
    if (twice) refuse(`the address has the field ${Lab.short(twice[0])} twice`);
    const unknown = [...fields.keys()].find((field) => !FIELDS.includes(field));
    if (unknown !== undefined) refuse(`the address has an unknown field ${Lab.short(unknown)}; the Lab knows ${FIELDS.join(", ")}`);
    if (fields.get("v") !== VERSION) refuse(`the address has version ${Lab.short(fields.get("v") ?? null)}; this page reads version ${VERSION}`);
    const view = fields.get("view") ?? null, id = fields.get("puzzle");
    if (view !== null && !["build", "race"].includes(view)) refuse(`the address has the view ${Lab.short(view)}; it must be build or race`);
    const race = fields.get("race")?.split("!") ?? null;
    if (id !== undefined) {
      const puzzle = puzzles.find((each) => each.id === id) ?? refuse(`there is no puzzle ${Lab.short(id)}`);
      return { puzzle, view, race, schedule: fields.has("steps") ? Lab.validate({ ...Lab.startOf(puzzle), steps: stepsOf(fields.get("steps")) }) : null };
    }
    const number = (field, least, most) => (fields.has(field) ? Lab.whole(/^\d{1,6}$/.test(fields.get(field)) ? Number(fields.get(field)) : fields.get(field), least, most, field) : null);
    const contract = fields.get("contract") ?? null, digits = fields.get("lengths")?.split(".") ?? null, lengths = digits?.map(Number) ?? null;
    if (contract !== null && !Lab.CONTRACTS.includes(contract)) refuse(`there is no contract ${Lab.short(contract)}; use one of ${Lab.CONTRACTS.join(", ")}`);
    if (digits && !digits.every((each) => /^\d{1,15}$/.test(each))) refuse(`lengths is ${Lab.short(fields.get("lengths"))}; it must be whole numbers with dots between them`);
    const ranks = number("ranks", 1, Lab.MOST.ranks) ?? refuse("the address lacks the field 'ranks'"), chunks = number("chunks", 1, Lab.MOST.chunks) ?? refuse("the address lacks the field 'chunks'");
    const name = (fields.get("name") ?? "schedule").slice(0, Lab.MOST.letters);
    return { puzzle: null, view, race, schedule: Lab.validate({ ranks, chunks, collective: contract, root: number("root", 0, ranks - 1), lengths, name, steps: stepsOf(fields.get("steps") ?? "") }) };
  };

  // Steps may be empty, so they are read one by one.
  const stepsOf = (text) => (text === "" ? [] : text.split(";").map((each, number) => {
    const read = Lab.parseSteps(each.includes("step") ? refuse(`step ${number}: ${Lab.short(each)} is not a list of transfers`) : each);
    return read[0] ?? Lab.step([]);
  }));

  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return refuse(`the address has ${Lab.short(text)}, which is not a text`);
    }
  };

  // A cell that makes the schedule in Python, proves it and draws it.
  const toPython = (schedule) => {
    const { ranks, chunks, collective, root, lengths, name } = schedule, given = [`world_size=${ranks}`, `num_chunks=${chunks}`, `name=${JSON.stringify(name)}`];
    if (collective) given.push(`collective="${collective}"`);
    if (root !== null) given.push(`root=${root}`);
    if (lengths) given.push(`lengths=(${lengths.join(", ")},)`);
    const check = collective ? `contracts.${collective}.check(schedule)  # silent if it keeps its promise\n` : "";
    return `from collectives import Schedule, contracts, draw\n\nschedule = Schedule.parse(\n    """\n${Lab.printAll(schedule).replace(/^/gm, "    ")}\n    """,\n    ${given.join(",\n    ")},\n)\n${check}draw(schedule)\n`;
  };

  Object.assign(Lab, { toFragment, fromFragment, toPython });
})();
