// Draws the report from the document that the page carries, which is that of `report --json`.
// Text reaches the page through text nodes and attributes alone, so that no name can be markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const COLORS = 8;
  const STATES = {
    runs: "its plan runs there",
    elsewhere: "a miss; a plan that is stored for another target would run there",
    missing: "a miss: no stored plan runs there",
    declined: "declined: no engine takes the graph for it",
    unmet: "its plan does not run there",
    damaged: "its plan is damaged",
  };

  function add(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "onclick" || name === "oninput") node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }
  const h = (tag, attributes, ...children) => add(document.createElement(tag), attributes, children);
  const s = (tag, attributes, ...children) => add(document.createElementNS(SVG, tag), attributes, children);
  const color = (index) => `var(--c${index % COLORS})`;
  const mark = (word, title) => h("span", { class: `mark ${word}`, title: title }, word);
  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const short = (digest) => h("code", { title: digest }, digest.slice(0, 12));
  const shown = (object) => Object.entries(object).map(([name, value]) => `${name}=${value}`).join(" ");

  function bytes(size) {
    if (size === null || size === undefined) return "-";
    let unit = 0;
    while (size >= 1024 && unit < 3) { size /= 1024; unit += 1; }
    return `${unit ? size.toFixed(1) : size} ${["B", "KiB", "MiB", "GiB"][unit]}`;
  }
  const seconds = (time) => (time === null ? "-" : `${time.toFixed(2)} s`);

  // What is looked for and how tables are sorted is in the fragment: a view can be kept and sent.
  const view = new URLSearchParams(location.hash.slice(1));
  function keep(name, value) {
    if (value) view.set(name, value); else view.delete(name);
    history.replaceState(null, "", `#${view}`);
  }

  const page = document.getElementById("page");
  const nav = h("nav");
  function section(id, title, note, ...content) {
    nav.append(h("a", { href: `#${id}`, onclick: (event) => {
      event.preventDefault();
      document.getElementById(id).scrollIntoView();
    } }, title));
    page.append(h("section", { id: id },
      h("div", { class: "head" }, h("h2", {}, title), h("span", { class: "note" }, note || "")), ...content));
  }

  // A table whose columns are [title, class, value to sort and find by, cell (else the value)].
  function table(id, columns, rows) {
    if (!rows.length) return [h("p", { class: "empty" }, "none")];
    const body = h("tbody");
    const heads = columns.map(([title, kind], index) => h("th", { class: kind === "num" ? "num" : null, scope: "col" },
      h("button", { onclick: () => sort(index, true) }, title)));
    const found = h("span", { class: "quiet", id: `${id}-found` });
    const texts = rows.map((row) => columns.map((column) => String(column[2](row) ?? "")).join("\n").toLowerCase());
    let order = rows.map((_, index) => index);
    const made = rows.map((row) => h("tr", {}, columns.map(([, kind, value, cell]) =>
      h("td", { class: kind }, cell ? cell(row) : String(value(row) ?? "-")))));
    let by = null;
    function draw() {
      const words = (view.get(`${id}.q`) || "").toLowerCase().split(" ").filter(Boolean);
      const left = order.filter((index) => words.every((word) => texts[index].includes(word)));
      body.replaceChildren(...left.map((index) => made[index]));
      found.textContent = left.length === rows.length ? "" : `${left.length} of ${rows.length}`;
    }
    function sort(index, isClick) {
      const falls = by === index ? !(heads[index].getAttribute("aria-sort") === "descending") : columns[index][1] === "num";
      apply(index, falls);
      if (isClick) keep(`${id}.sort`, `${falls ? "-" : ""}${columns[index][0]}`);
    }
    function apply(index, falls) {
      by = index;
      const value = columns[index][2];
      const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b
        : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true }));
      order = rows.map((_, place) => place).sort((a, b) => (falls ? -1 : 1) * compare(value(rows[a]) ?? -1, value(rows[b]) ?? -1) || a - b);
      heads.forEach((head, place) => {
        if (place === index) head.setAttribute("aria-sort", falls ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      draw();
    }
    const search = h("input", { type: "search", placeholder: "find", "aria-label": `find in ${id}`,
      value: view.get(`${id}.q`) || "", oninput: (event) => { keep(`${id}.q`, event.target.value); draw(); } });
    const wanted = view.get(`${id}.sort`);
    const place = wanted ? columns.findIndex(([title]) => title === wanted.replace(/^-/, "")) : -1;
    if (place >= 0) apply(place, wanted.startsWith("-")); else draw();
    return [
      rows.length > 5 || view.get(`${id}.q`) ? h("div", { class: "head" }, search, found) : null,
      h("div", { class: "wide" }, h("table", { id: `${id}-table` }, h("thead", {}, h("tr", {}, heads)), body)),
    ];
  }

  // Which branch serves which values of a symbol, on a logarithmic scale. Earlier branches win.
  function rangeBars(plan) {
    const bars = Object.entries(plan.symbols).map(([symbol, domain]) => {
      const width = 150, low = Math.log2(domain.min + 1), high = Math.log2(domain.max + 2);
      const at = (value) => ((Math.log2(value + 1) - low) / (high - low || 1)) * width;
      const parts = plan.dispatch.map((entry, index) => [entry, index, entry.bounds[symbol]])
        .filter(([, , bounds]) => bounds).reverse();
      const drawn = parts.map(([entry, index, [from, to]]) => s("rect", {
        x: at(Math.max(from, domain.min)).toFixed(1), y: 1, height: 12, fill: color(index),
        width: Math.max(1, at(Math.min(to, domain.max) + 1) - at(Math.max(from, domain.min)) - 0.5).toFixed(1),
      }, s("title", {}, `${symbol} ${from}..${to}: ${entry.branch}`)));
      const whole = s("rect", { x: 0, y: 1, width: width, height: 12, fill: "var(--line)" },
        s("title", {}, `${symbol} ${domain.min}..${domain.max}`));
      return h("div", { class: "bar", title: `${symbol} in ${domain.min}..${domain.max}` },
        s("svg", { viewBox: `0 0 ${width} 14`, width: width, height: 14, role: "img",
          "aria-label": `ranges of ${symbol}` }, whole, drawn),
        h("span", { class: "quiet" }, `${symbol} ${domain.min}..${domain.max}`));
    });
    if (!plan.dispatch.length) return bars.length ? bars : "-";
    return [...bars, h("details", {}, h("summary", {}, count(plan.dispatch.length, "branch").replace("branchs", "branches")),
      h("ul", {}, plan.dispatch.map((entry) => h("li", {}, h("b", {}, entry.branch), ` when ${entry.when}`))))];
  }

  // Rectangles whose areas are as the sizes, as square as rows of them can be.
  function squarify(items, x, y, width, height) {
    const total = items.reduce((sum, item) => sum + item.size, 0), placed = [];
    let rest = items.map((item) => ({ item, area: (item.size / total) * width * height }));
    const worst = (row, side) => {
      const sum = row.reduce((a, b) => a + b.area, 0);
      return Math.max(...row.map((each) => Math.max((side * side * each.area) / (sum * sum), (sum * sum) / (side * side * each.area))));
    };
    while (rest.length) {
      const side = Math.min(width, height);
      let used = 1;
      while (used < rest.length && worst(rest.slice(0, used + 1), side) <= worst(rest.slice(0, used), side)) used += 1;
      const row = rest.slice(0, used), depth = row.reduce((a, b) => a + b.area, 0) / side;
      let along = 0;
      for (const { item, area } of row) {
        const length = area / depth;
        placed.push(width >= height ? { item, x, y: y + along, w: depth, h: length } : { item, x: x + along, y, w: length, h: depth });
        along += length;
      }
      if (width >= height) { x += depth; width -= depth; } else { y += depth; height -= depth; }
      rest = rest.slice(used);
    }
    return placed;
  }

  function treemap() {
    const MOST = 300;
    const sized = data.kernels.filter((kernel) => kernel.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    if (!sized.length) return [h("p", { class: "empty" }, "none")];
    const templates = [...new Set(sized.map((kernel) => kernel.template))];
    const items = sized.slice(0, MOST).map((kernel) => ({ size: kernel.bytes, kernel, group: templates.indexOf(kernel.template) }));
    items.sort((a, b) => a.group - b.group || b.size - a.size);
    const left = sized.slice(MOST);
    if (left.length) items.push({ size: left.reduce((sum, kernel) => sum + kernel.bytes, 0), group: -1, more: left.length });
    const boxes = squarify(items, 0, 0, 1000, 300).map(({ item, x, y, w, h: tall }) => {
      const label = item.kernel ? item.kernel.key.slice(0, 8) : `${item.more} more`;
      return s("g", {}, s("rect", { x: x.toFixed(1), y: y.toFixed(1), width: Math.max(0.5, w - 1.5).toFixed(1),
        height: Math.max(0.5, tall - 1.5).toFixed(1), fill: item.group < 0 ? "var(--quiet)" : color(item.group), rx: 2 }),
      w > 74 && tall > 34 ? s("text", { class: "inside", x: (x + 6).toFixed(1), y: (y + 16).toFixed(1) }, label) : null,
      w > 74 && tall > 34 ? s("text", { class: "inside", x: (x + 6).toFixed(1), y: (y + 30).toFixed(1) }, bytes(item.size)) : null,
      s("title", {}, item.kernel ? `${item.kernel.template} ${item.kernel.key.slice(0, 12)}: ${bytes(item.size)}` : label));
    });
    return [
      h("div", { class: "legend" }, templates.map((name, index) => h("span", {}, h("i", { style: `background:${color(index)}` }), name))),
      s("svg", { viewBox: "0 0 1000 300", role: "img", "aria-label": "sizes of kernels", id: "treemap" }, boxes),
    ];
  }

  // Several values of one symbol make a line, anything else a bar; one colour for each file.
  function charts() {
    const files = [...new Set(data.benches.map((bench) => bench.file))];
    const groups = new Map();
    for (const bench of data.benches) {
      const key = JSON.stringify([bench.name, bench.target]);
      groups.set(key, [...(groups.get(key) || []), bench]);
    }
    const lines = [], bars = [];
    for (const group of groups.values()) {
      const names = Object.keys(group[0].symbols);
      const values = new Set(group.map((bench) => bench.symbols[names[0]]));
      if (names.length === 1 && values.size > 1) lines.push(lineChart(group, names[0], files)); else bars.push(...group);
    }
    const legend = h("div", { class: "legend" }, files.map((file, index) => h("span", {}, h("i", { style: `background:${color(index)}` }), file)));
    return [legend, lines.length ? h("div", { class: "charts" }, lines) : null, bars.length ? barChart(bars, files) : null];
  }

  function us(time) {
    for (const unit of ["us", "ms"]) {
      if (time < 1000) return `${Number(time.toPrecision(3))} ${unit}`;
      time /= 1000;
    }
    return `${Number(time.toPrecision(3))} s`;
  }

  function barChart(benches, files) {
    const most = Math.max(...benches.map((bench) => bench.microseconds));
    const rows = benches.slice(0, 200), step = 20, left = 300, right = 210, width = 1000;
    const drawn = rows.map((bench, index) => {
      const long = Math.max(1, (bench.microseconds / most) * (width - left - right));
      const name = `${bench.name} ${shown(bench.symbols)}`;
      const rate = bench.tflops ? `, ${bench.tflops.toPrecision(3)} TFLOP/s` : "";
      return s("g", { transform: `translate(0 ${index * step})` },
        s("text", { x: left - 8, y: 14, "text-anchor": "end" }, name.length > 44 ? `${name.slice(0, 43)}...` : name),
        s("rect", { x: left, y: 3, width: long.toFixed(1), height: 14, rx: 2, fill: color(files.indexOf(bench.file)) },
          s("title", {}, `${name} for ${bench.target}: ${us(bench.microseconds)}${rate}`)),
        s("text", { x: left + long + 6, y: 14, class: "axis" }, `${us(bench.microseconds)}${rate}`));
    });
    return h("div", { class: "wide" }, s("svg", { viewBox: `0 0 ${width} ${rows.length * step + 4}`, id: "bench-bars",
      style: "min-width:640px", role: "img", "aria-label": "time of a call" }, drawn));
  }

  function lineChart(group, symbol, files) {
    const width = 460, height = 220, left = 58, bottom = 26, top = 8, right = 10;
    const xs = group.map((bench) => bench.symbols[symbol]), ys = group.map((bench) => bench.microseconds);
    const scale = (values, from, to) => {
      const low = Math.log2(Math.max(1, Math.min(...values))), high = Math.log2(Math.max(1, Math.max(...values)));
      return (value) => from + ((Math.log2(Math.max(1, value)) - low) / (high - low || 1)) * (to - from);
    };
    const x = scale(xs, left, width - right), y = scale(ys, height - bottom, top);
    const ends = (values) => [...new Set([Math.min(...values), Math.max(...values)])];
    const grid = [...new Set(xs)].map((value) => s("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: height - bottom }));
    const drawn = files.map((file, index) => {
      const points = group.filter((bench) => bench.file === file).sort((a, b) => a.symbols[symbol] - b.symbols[symbol]);
      const path = points.map((bench) => `${x(bench.symbols[symbol]).toFixed(1)},${y(bench.microseconds).toFixed(1)}`).join(" ");
      return [s("polyline", { points: path, fill: "none", stroke: color(index), "stroke-width": 2 }),
        points.map((bench) => s("circle", { cx: x(bench.symbols[symbol]).toFixed(1), cy: y(bench.microseconds).toFixed(1), r: 3.5, fill: color(index) },
          s("title", {}, `${file}: ${symbol}=${bench.symbols[symbol]}: ${us(bench.microseconds)}${bench.tflops ? `, ${bench.tflops.toPrecision(3)} TFLOP/s` : ""}`)))];
    }).flat(2);
    const labels = [
      ends(xs).map((value, index) => s("text", { class: "axis", x: x(value), y: height - 8, "text-anchor": index ? "end" : "start" }, `${symbol}=${value}`)),
      ends(ys).map((value) => s("text", { class: "axis", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, us(value))),
    ].flat();
    return h("div", {}, h("h3", {}, `${group[0].name} for ${group[0].target}`),
      s("svg", { viewBox: `0 0 ${width} ${height}`, class: "bench-line", role: "img", "aria-label": `time of a call by ${symbol}` }, grid, drawn, labels));
  }

  const nameOf = (row) => row.names.join(", ") || row.graph_key.slice(0, 12);
  const totals = data.totals;
  const card = (value, label, bad) => h("div", { class: bad ? "card bad" : "card" }, h("b", {}, value), h("span", {}, label));
  page.append(
    h("h1", {}, data.store),
    h("p", { class: "lead" }, `what this store holds, as cudnn-aot ${data.version} reads it`),
    nav,
    h("div", { class: "cards" },
      card(totals.graphs.toLocaleString("en"), "graphs"),
      card(totals.plans.toLocaleString("en"), "plans"),
      card(totals.declined.toLocaleString("en"), "declined", totals.declined > 0),
      card(totals.kernels.toLocaleString("en"), "kernels"),
      card(bytes(totals.bytes), "of code"),
      card(data.targets.length.toLocaleString("en"), "targets"),
      card(data.problems.length.toLocaleString("en"), "faults", data.problems.length > 0)),
  );

  if (data.problems.length) {
    section("damage", "Damage", "a build makes again what is damaged", ...table("damage", [
      ["file", "text", (row) => row.path],
      ["what is wrong", "text", (row) => row.what],
    ], data.problems));
  }

  section("plans", "Plans", "one row for each graph and target; the bar shows which branch serves which values of a symbol", ...table("plans", [
    ["graph", "text", nameOf],
    ["target", "", (row) => row.target],
    ["status", "", (row) => row.status, (row) => mark(row.status, row.fault || row.reasons.join("; "))],
    ["engine", "", (row) => row.engine || "-"],
    ["knobs", "text", (row) => shown(row.knobs) || "-"],
    ["ranges", "", (row) => Object.keys(row.symbols).join(" "), rangeBars],
    ["kernels", "num", (row) => row.kernels.length],
    ["bytes", "num", (row) => row.bytes, (row) => bytes(row.bytes)],
    ["workspace", "num", (row) => row.workspace_bytes, (row) => bytes(row.workspace_bytes)],
    ["key", "", (row) => row.graph_key, (row) => short(row.graph_key)],
  ], data.plans));

  const refused = data.plans.filter((row) => row.status !== "built");
  if (refused.length) {
    section("declined", "Declined or damaged", "graphs without a plan, and why", ...table("declined", [
      ["graph", "text", nameOf],
      ["target", "", (row) => row.target],
      ["status", "", (row) => row.status, (row) => mark(row.status)],
      ["because", "text", (row) => row.fault || row.reasons.join("; ")],
    ], refused));
  }

  const machineCell = (machine) => (row) => mark(row.on[machine.name], `${nameOf(row)} on ${machine.name}: ${STATES[row.on[machine.name]]}`);
  section("machines", "Where graphs run", "every known target as a machine of its kind; what a process misses that asks for that target",
    h("div", { class: "legend" }, Object.entries(STATES).map(([word, text]) => h("span", {}, mark(word), ` ${text}`))),
    ...table("machines", [
      ["machine", "", (row) => row.name],
      ["arch", "", (row) => row.gpu_arch || "-"],
      ...Object.keys(STATES).map((state) => [state, "num", (row) => row.graphs[state] || 0]),
      ["what is not met", "text", (row) => row.unmet.map((flag) => `${flag.target}: ${flag.flag}, wants ${flag.want}, got ${flag.got} (${count(flag.plans, "plan")})`).join("; "),
        (row) => (row.unmet.length ? h("details", {}, h("summary", {}, count(row.unmet.length, "requirement")), h("ul", {}, row.unmet.map((flag) =>
          h("li", {}, `plans for ${flag.target}: ${flag.flag}, wants ${flag.want}, got ${flag.got} (${count(flag.plans, "plan")})`)))) : "-")],
    ], data.machines),
    h("p", {}),
    ...table("graphs", [
      ["graph", "text", nameOf],
      ...data.machines.map((machine) => [machine.name, "", (row) => row.on[machine.name], machineCell(machine)]),
    ], data.graphs));

  section("sizes", "Sizes", "the area is the size of a linked kernel, the colour its template", ...treemap(),
    h("p", {}),
    ...table("targets", [
      ["target", "", (row) => row.name],
      ["arch", "", (row) => row.gpu_arch || "-"],
      ["plans", "num", (row) => row.plans],
      ["declined", "num", (row) => row.declined],
      ["kernels", "num", (row) => row.kernels],
      ["bytes", "num", (row) => row.bytes, (row) => bytes(row.bytes)],
    ], data.targets));

  section("kernels", "Kernels", "each is stored once, whatever number of plans run it", ...table("kernels", [
    ["key", "", (row) => row.key, (row) => short(row.key)],
    ["template", "text", (row) => row.template || row.fault],
    ["arch", "", (row) => row.gpu_arch || "-"],
    ["toolchain", "", (row) => shown(row.toolchain) || "-", (row) => h("span", { title: shown(row.toolchain) },
      [row.toolchain["nvidia-cutlass-dsl"], row.toolchain.dsl_flavor].filter(Boolean).join(" ") || "-")],
    ["options", "text", (row) => row.options.join(" ") || "-"],
    ["bytes", "num", (row) => row.bytes, (row) => bytes(row.bytes)],
    ["compile", "num", (row) => row.seconds, (row) => seconds(row.seconds)],
    ["plans", "num", (row) => row.plans.length, (row) => (row.plans.length ? h("details", {}, h("summary", {}, String(row.plans.length)),
      h("ul", {}, row.plans.map((index) => h("li", {}, `${nameOf(data.plans[index])} for ${data.plans[index].target}`)))) : "0")],
  ], data.kernels));

  if (data.benches.length) {
    const wrong = data.benches.filter((bench) => !bench.correct).length;
    section("benchmarks", "Benchmarks", `median time of a call, as the files say${wrong ? `; ${count(wrong, "result")} of them wrong` : ""}`, ...charts(),
      h("p", {}),
      ...table("benches", [
        ["graph", "text", (row) => row.name],
        ["target", "", (row) => row.target],
        ["symbols", "", (row) => shown(row.symbols) || "-"],
        ["time", "num", (row) => row.microseconds, (row) => us(row.microseconds)],
        ["TFLOP/s", "num", (row) => row.tflops, (row) => (row.tflops === null ? "-" : row.tflops.toPrecision(3))],
        ["result", "", (row) => (row.correct ? "right" : "wrong"), (row) => mark(row.correct ? "right" : "wrong")],
        ["file", "text", (row) => row.file],
      ], data.benches));
  }

  if (data.builds.length) {
    section("builds", "Builds", "from the documents of `build --json`", ...table("builds", [
      ["file", "text", (row) => row.file],
      ["jobs", "num", (row) => row.jobs],
      ["graphs", "num", (row) => row.graphs],
      ["compiled", "num", (row) => row.compiled],
      ["already there", "num", (row) => row.hits],
      ["time", "num", (row) => row.seconds, (row) => seconds(row.seconds)],
    ], data.builds));
  }

  document.documentElement.dataset.drawn = "yes";
})();
