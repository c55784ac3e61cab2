"use strict";
(async () => {
  const at = (id) => document.getElementById(id);
  const packs = new Map();

  // Whatever comes out of a pack is put into the page as text, never as markup.
  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    for (const child of children) if (child !== null && child !== undefined) node.append(child);
    return node;
  }

  async function unpack(id) {
    if (!packs.has(id)) {
      const bytes = Uint8Array.from(atob(at(id).textContent), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      packs.set(id, JSON.parse(await new Response(stream).text()));
    }
    return packs.get(id);
  }

  if (typeof DecompressionStream === "undefined") {
    at("problem").textContent = "This browser cannot unpack the kernels (no DecompressionStream).";
    return;
  }
  const index = await unpack("index");
  const [RUN, SAMPLE, OUTCOME, STATUS, SPEEDUP, HASH, PARENT, PLACE] = [0, 1, 2, 3, 4, 5, 6, 7];
  const total = index.workloads.reduce((sum, one) => sum + one.samples.length, 0);
  if (!total) return;
  const single = total === 1;

  const option = (value, text) => make("option", { value }, text);
  index.workloads.forEach((one, n) => at("workload").append(option(n, one.id)));
  index.runs.forEach((title, n) => at("run").append(option(n, title)));
  at("outcome").append(option("", "all"));
  index.outcomes.forEach(([, title], n) => at("outcome").append(option(n, title)));
  at("choice").hidden = single;
  at("list").hidden = single;
  at("split").hidden = false;
  if (single) at("split").className = "single";

  const link = (id, line) => `#/${encodeURIComponent(id)}/${line[RUN]}/${line[SAMPLE]}`;
  const times = (value) => (value === null ? "" : `${value.toFixed(2)}x`);
  const number = (value) =>
    typeof value !== "number" ? String(value)
      : Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en")
        : String(Number(value.toPrecision(4)));

  function swatch(n) {
    return make("span", { class: "swatch", style: `background:${index.outcomes[n][2]}` });
  }

  function table(head, rows, attributes) {
    const line = (cells, tag) =>
      make("tr", {}, ...cells.map((cell) => make(tag, tag === "th" ? { scope: "col" } : {}, cell)));
    return make("table", attributes, make("thead", {}, line(head, "th")),
      make("tbody", {}, ...rows.map((cells) => line(cells, "td"))));
  }

  function facts(pairs) {
    const list = make("dl");
    for (const [name, value] of pairs) {
      if (value === null || value === undefined || value === "") continue;
      list.append(make("dt", {}, name), make("dd", {}, value));
    }
    return list;
  }

  function shown() {
    const run = Number(at("run").value), wanted = at("outcome").value;
    const lines = index.workloads[Number(at("workload").value)].samples.filter(
      (line) => line[RUN] === run && (wanted === "" || line[OUTCOME] === Number(wanted)));
    if (at("order").value === "speedup") {
      lines.sort((a, b) => (b[SPEEDUP] || 0) - (a[SPEEDUP] || 0) || a[SAMPLE] - b[SAMPLE]);
    }
    return lines;
  }

  function list(chosen) {
    const workload = index.workloads[Number(at("workload").value)];
    const lines = shown();
    const body = table(["sample", "outcome", "speedup", "place"], lines.map((line) => [
      make("a", { href: link(workload.id, line) }, String(line[SAMPLE])),
      make("span", {}, swatch(line[OUTCOME]), index.outcomes[line[OUTCOME]][1]),
      times(line[SPEEDUP]), line[PLACE],
    ]), { class: "text" });
    [...body.tBodies[0].rows].forEach((row, n) => {
      if (lines[n] === chosen) {
        row.className = "chosen";
        row.querySelector("a").setAttribute("aria-current", "true");
      }
    });
    const none = lines.length ? null : make("p", {}, "No such samples.");
    at("list").replaceChildren(none || body);
  }

  function source(text, bad) {
    const block = make("pre", { class: "source", tabindex: 0, "aria-label": "Kernel" });
    text.replace(/\n$/, "").split(/\r\n|\r|\n/).forEach((row, n) => {
      const here = n + 1 === bad;
      const line = make("span", { class: here ? "row bad" : "row" },
        make("span", { class: "no", "aria-hidden": "true" }, String(n + 1)),
        here ? make("span", { class: "unseen" }, "The failure points here: ") : null, row);
      if (here) line.id = "bad";
      block.append(line);
    });
    return block;
  }

  function checks(rows) {
    return table(["preset", "inputs", "largest error", "limit", "RMS", "limit", ""],
      rows.map((c) => [c.preset, c.draw, number(c.max_ratio), number(c.limit),
        number(c.rms_error), number(c.rms_limit), c.passed ? "right" : "wrong"]));
  }

  const fold = (title, ...content) =>
    make("details", {}, make("summary", {}, title), ...content);
  const entries = (data) => Object.entries(data || {}).map(([name, value]) => [name, number(value)]);

  async function detail(workload, line) {
    const pack = await unpack(workload.pack);
    const one = pack.samples[`${line[RUN]}/${line[SAMPLE]}`];
    const result = one.result, time = result.times, memory = result.memory;
    const near = workload.samples.filter((other) => other[RUN] === line[RUN]);
    const parent = line[PARENT] && near.find((other) => other[HASH] === line[PARENT]);
    const children = near.filter((o) => o[PARENT] === line[HASH] && o[SAMPLE] > line[SAMPLE]);
    const to = (other) => make("a", { href: link(workload.id, other) }, `sample ${other[SAMPLE]}`);
    const ms = (value) => (value === null ? null : `${number(value)} ms`);
    const mib = (used, limit) => (used === null ? null
      : `${(used / 2 ** 20).toFixed(1)} MiB${limit ? ` of ${(limit / 2 ** 20).toFixed(0)}` : ""}`);
    const family = make("span");
    children.slice(0, 40).forEach((o, n) => family.append(n ? ", " : "", to(o)));
    const title = single ? workload.id : `${workload.id}, sample ${line[SAMPLE]}`;
    const all = [
      make("h3", {}, title),
      facts([
        ["run", single ? null : index.runs[line[RUN]]],
        ["outcome", make("span", {}, swatch(line[OUTCOME]),
          `${index.outcomes[line[OUTCOME]][1]} (status ${line[STATUS]})`)],
        ["speedup", times(line[SPEEDUP])],
        ["kernel", ms(time.candidate_ms)],
        ["XLA", time.baseline_ms === null ? null
          : `${ms(time.baseline_ms)} (${time.source}${time.compiler ? `, ${time.compiler}` : ""})`],
        ["roofline", ms(time.roofline_ms)],
        ["flags", result.flags.join(", ")],
        ["failed in", result.failed_in],
        ["line", result.line],
        ["VMEM", mib(memory.vmem_used, memory.vmem_limit)],
        ["HBM", mib(memory.hbm_used, memory.hbm_limit)],
        ["made from", parent ? to(parent) : line[PARENT] ? "a text that is not in this run" : null],
        ["others made from it", children.length ? family : null],
        ["place", line[PLACE]],
        ["tokens", one.tokens && `${number(one.tokens[0])} read, ${number(one.tokens[1])} written`],
        ["text", line[HASH]],
      ]),
    ];
    if (one.final) {
      all.push(make("h3", {}, "At the published size"),
        make("p", {}, `${one.final.status}. ${one.final.message}`), checks(one.final.numerics));
    }
    if (one.plan) all.push(make("h3", {}, "Plan"), make("pre", { class: "said" }, one.plan));
    all.push(make("h3", {}, "Feedback"), make("pre", { class: "said", tabindex: 0 }, one.feedback));
    all.push(make("h3", {}, "Kernel"), source(pack.sources[line[HASH]], result.line));
    if (result.numerics.length) {
      const wrong = result.numerics.filter((check) => check.summary);
      all.push(fold("Numbers", checks(result.numerics),
        ...wrong.map((c) => make("pre", { class: "said" }, `${c.preset}, ${c.draw}: ${c.summary}`))));
    }
    const counters = entries(result.counters);
    if (counters.length) all.push(fold("Counters", table(["counter", "value"], counters)));
    if (result.loop) {
      const { slots, unit_lines: lines, ...rest } = result.loop;
      all.push(fold("Hottest loop", table(["", "value"],
        [...entries(rest), ...entries(slots).map(([n, v]) => [`slots filled, ${n}`, v])])));
    }
    const programs = entries(result.programs).map(([name, value]) => [name, `${value} ms`]);
    if (programs.length) all.push(fold("Programs", table(["program", "time"], programs)));
    const fences = Object.entries(result.shown || {});
    if (fences.length) all.push(fold("What was shown", facts(fences)));
    const plain = (value) =>
      (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
    all.push(fold("Provenance", facts(
      Object.entries(result.provenance).map(([name, value]) => [name, plain(value)]))));
    if (location.hash !== link(workload.id, line) && !single) return;  // another was asked for
    at("detail").replaceChildren(...all);
    const bad = at("bad");
    if (bad) bad.parentNode.scrollTop = bad.offsetTop - bad.parentNode.clientHeight / 2;
  }

  let told = "";
  async function follow() {
    const [, id, run, sample] = location.hash.split("/");
    if (id !== undefined) {
      const n = index.workloads.findIndex((one) => encodeURIComponent(one.id) === id);
      const line = n >= 0 && index.workloads[n].samples.find(
        (one) => one[RUN] === Number(run) && one[SAMPLE] === Number(sample));
      if (!line) {
        at("problem").textContent = `There is no kernel at ${location.hash}.`;
        return;
      }
      at("problem").textContent = "";
      at("workload").value = n;
      at("run").value = run;
      if (at("outcome").value !== "" && Number(at("outcome").value) !== line[OUTCOME]) {
        at("outcome").value = "";
      }
      list(line);
      await detail(index.workloads[n], line);
      if (!told.startsWith("#/")) at("browser").scrollIntoView();
      told = location.hash;
    } else {
      told = "";
    }
  }

  async function choose() {
    const workload = index.workloads[Number(at("workload").value)], lines = shown();
    const first = lines[0];
    list(first);
    if (first) {
      history.replaceState(null, "", link(workload.id, first));
      told = location.hash;
      await detail(workload, first);
    } else at("detail").replaceChildren();
  }

  for (const id of ["workload", "run", "outcome", "order"]) at(id).addEventListener("change", choose);
  at("choice").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", follow);
  if (single) await detail(index.workloads[0], index.workloads[0].samples[0]);
  else if (location.hash.startsWith("#/")) await follow();
  else list(null);
})();
