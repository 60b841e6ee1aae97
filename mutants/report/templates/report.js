"use strict";
(function () {
  const settings = JSON.parse(document.getElementById("settings").textContent);
  const FIRST = 16, ONE = FIRST + settings.steps / 2, PAGE = 100, CONTEXT = 3;
  const STATE = Object.fromEntries(settings.states.map((name, code) => [name, code]));
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/g;
  const PAIR = /[\ud800-\udbff][\udc00-\udfff]/g;

  // ---------------------------------------------------------------- texts and elements: never HTML from data

  function visible(text) {
    const show = (part) => part.replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
    const pairs = text.match(PAIR) || [];
    return text.split(PAIR).map((part, i) => show(part) + (pairs[i] || "")).join("");
  }

  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) {
        made.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
      }
    }
    return made;
  }

  function table(label, heads, rows) {
    const head = el("tr", {}, heads.map(([text, cls]) => el("th", { scope: "col", class: cls }, text)));
    return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
      el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
  }

  function choice(label, options, change) {
    const select = el("select", { onchange: (event) => change(event.target.value) },
      options.map(([value, text]) => el("option", { value }, text)));
    return el("label", {}, label + " ", select);
  }

  function amount(value) {
    if (value === null || value === undefined) return "nothing compared";
    if (value === "inf") return "\u221e";
    if (value >= 1000 || (value < 0.001 && value > 0)) return value.toExponential(1);
    return String(Number(value.toPrecision(3)));
  }

  function ratioOf(code) {
    return Math.pow(10, settings.floor + ((code - FIRST) / settings.steps) * settings.decades);
  }

  function codeText(code) {
    if (code === STATE.missing) return "not measured";
    if (code === STATE.pass) return "passes: no error";
    if (code === STATE.refused) return "refused the shape";
    if (code === STATE.value) return "shown: infinite error";
    if (code < FIRST) return "shown: " + settings.states[code];
    let text = amount(ratioOf(code));
    if (code <= ONE && Number(text) >= 1) text = "just below 1";
    if (code > ONE && Number(text) <= 1) text = "just above 1";
    return (code > ONE ? "shown: " : "passes: ") + text + " \u00d7 tolerance";
  }

  const kills = (code) => code > ONE || (code >= STATE.crash && code <= STATE.value);
  const height = (code) => (code > ONE ? code : kills(code) ? 1e6 : code >= FIRST ? code : code === STATE.pass ? 1 : 0);

  // ---------------------------------------------------------------- blocks

  const unpacked = new Map();

  function block(name) {
    if (!unpacked.has(name)) unpacked.set(name, unpack(document.getElementById("block-" + name).textContent));
    return unpacked.get(name);
  }

  async function unpack(text) {
    const bytes = bytesOf(text);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function bytesOf(text) {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }

  async function problem(at) {
    const data = await block("p" + at);
    if (typeof data.codes === "string") {
      const planes = bytesOf(data.codes), n = planes.length / 2;
      data.codes = new Uint16Array(n);
      for (let i = 0; i < n; i++) data.codes[i] = planes[i] * 256 + planes[n + i];
    }
    return data;
  }

  // ---------------------------------------------------------------- one mutant

  function diff(lines, hunks) {
    const out = [];
    const line = (cls, sign, number, parts) =>
      out.push(el("span", { class: "line " + cls }, sign + String(number).padStart(4) + "  ", parts));
    let next = 0;
    for (const [start, removed, added] of hunks) {
      const from = Math.max(next, start - 1 - CONTEXT);
      if (from > next) line("gap", " ", "", "\u22ef");
      for (let i = from; i < start - 1; i++) line("", " ", i + 1, lines[i]);
      const alike = removed === added.length;
      for (let i = 0; i < removed; i++) {
        line("cut", "-", start + i, alike ? marked(lines[start - 1 + i], added[i]) : lines[start - 1 + i]);
      }
      for (let i = 0; i < added.length; i++) {
        line("add", "+", start + i, alike ? marked(added[i], lines[start - 1 + i]) : added[i]);
      }
      next = start - 1 + removed;
      const following = hunks.find((hunk) => hunk[0] - 1 >= next && hunk[0] !== start);
      const until = Math.min(lines.length, next + CONTEXT, following ? following[0] - 1 : lines.length);
      for (; next < until; next++) line("", " ", next + 1, lines[next]);
    }
    return el("pre", { class: "diff", tabindex: "0", "aria-label": "Source diff" }, out);
  }

  function marked(text, other) {
    let a = 0, b = 0;
    const most = Math.min(text.length, other.length);
    while (a < most && text[a] === other[a]) a++;
    while (b < most - a && text[text.length - 1 - b] === other[other.length - 1 - b]) b++;
    const end = text.length - b;
    return [text.slice(0, a), a < end ? el("mark", {}, text.slice(a, end)) : null, text.slice(end)];
  }

  const ID = /^[\w.-]+$/; // of what may be pasted into a shell

  async function showMutant(panel, index, at, i) {
    const data = await problem(at), m = data.mutants, own = m.substrate[i];
    const width = data.shape[1], codes = data.codes.subarray(i * width, (i + 1) * width);
    const [substrate, backend, style] = data.substrates[own];
    const about = index.operators.find((o) => o[0] === m.operator[i]);
    const survivor = index.survivors.find((s) => s[0] === at && s[1] === i);
    const state = { "1": "witnessed, shows by " + m.shows[i], "0": "unwitnessed", "-1": "undecided: cells are missing" };
    const facts = [m.family[i], data.name, substrate + " (" + backend + ", " + style + "), line " + m.line[i],
      state[m.witnessed[i]], m.held[i] ? "held-out half" : "selected half"];
    const parts = [el("h4", {}, m.operator[i] + ": " + m.detail[i]), el("p", { class: "quiet" }, facts.join("; "))];
    const lines = data.sources[own], hunks = m.hunks[i];
    if (lines && hunks) parts.push(diff(lines, hunks));
    else parts.push(el("p", {}, "No diff: the source of this substrate is not at hand, or it changed after it was measured."));
    if (about && about[1]) parts.push(el("p", {}, about[1] + " Why a check may miss it: " + about[2]));
    if (m.witnessed[i] === 1) parts.push(checkers(index, data, survivor, i));
    const pool = data.entries.map((e, c) => c).filter((c) => data.entries[c].role === "pool" && data.entries[c].admitted);
    const ranked = pool.filter((c) => codes[c] !== STATE.missing).sort((a, b) => height(codes[b]) - height(codes[a]));
    const title = m.witnessed[i] === 1 ? "Inputs that show it most (" + m.by[i] + " of " + pool.length + " show it)"
      : "Inputs that came closest";
    parts.push(table(title, [[title], ["error / tolerance"]],
      ranked.slice(0, 6).map((c) => el("tr", {}, el("td", {}, data.entries[c].label), el("td", {}, codeText(codes[c]))))));
    parts.push(el("p", {}, el("code", {}, "kernelward mutate " + substrate + " --show " + m.uid[i])));
    const near = survivor && survivor[10].length && survivor[10][0] ? [survivor[10][0][0]] : [];
    for (const c of new Set([...ranked.slice(0, 1), ...near])) {
      const ids = [m.uid[i], data.entries[c].uid], words = [index.replay[0], ...ids, index.replay[1]];
      if (ids.every((id) => ID.test(id))) parts.push(el("p", {}, el("code", {}, words.join(" "))));
    }
    panel.replaceChildren(...parts);
  }

  function checkers(index, data, survivor, i) {
    let nth = 0;
    const rows = index.checkers.map((name, n) => {
      const missed = survivor && survivor[9] & (1 << n);
      const near = missed ? survivor[10][nth++] : null;
      const fate = data.fates[name][i];
      const text = near ? "misses it; closest: " + data.entries[near[0]].label + ", " + amount(near[1]) + " of what it allows"
        : fate === 1 ? "detects it" : fate === 0 ? "misses it; nothing was compared" : "unknown: cells are missing";
      return el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: fate === 0 ? "bad" : null }, text));
    });
    return table("Checkers", [["checker"], ["what it says"]], rows);
  }

  // ---------------------------------------------------------------- lists of mutants

  /* Rows are objects: at, i, name, detail, kernel, and cells, the [text, smaller text] beside. Gives what shows others. */
  function list(place, label, heads, index, panel) {
    const body = el("tbody"), more = el("button", { class: "more", type: "button" });
    const head = el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)));
    place.append(el("table", { "aria-label": label }, el("thead", {}, head), body), more);
    let rows = [], shown = 0, chosen = 0;
    const select = (tr, row) => {
      for (const other of body.querySelectorAll("[aria-selected]")) other.removeAttribute("aria-selected");
      tr.setAttribute("aria-selected", "true");
      const mine = ++chosen;
      const draft = el("div");
      showMutant(draft, index, row.at, row.i).then(() => { if (mine === chosen) panel.replaceChildren(...draft.childNodes); });
    };
    const extend = () => {
      for (const row of rows.slice(shown, shown + PAGE)) {
        const tr = el("tr", {}, el("th", { scope: "row" }, el("button", { type: "button" }, row.name),
          el("div", { class: "more-text" }, row.detail), el("div", { class: "sub" }, row.kernel)),
          row.cells.map(([main, rest]) => el("td", {}, main, rest ? el("div", { class: "sub" }, rest) : null)));
        tr.addEventListener("click", () => select(tr, row));
        body.append(tr);
      }
      shown = Math.min(rows.length, shown + PAGE);
      more.hidden = shown >= rows.length;
      more.textContent = "show " + Math.min(PAGE, rows.length - shown) + " more of " + rows.length;
    };
    more.addEventListener("click", extend);
    body.addEventListener("keydown", (event) => {
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const to = step && event.target.closest("tr")[step];
      if (to) { event.preventDefault(); to.querySelector("button").focus(); }
    });
    return (wanted) => {
      rows = wanted; shown = 0; body.replaceChildren(); extend();
      if (rows.length) select(body.firstElementChild, rows[0]);
      else { chosen++; panel.replaceChildren(el("p", {}, "Nothing to show.")); }
    };
  }

  function survivors(index, place) {
    const bit = (name) => 1 << index.checkers.indexOf(name);
    const [official, own] = settings.head, EITHER = "either", NONE = "none";
    const wanted = { mode: EITHER, family: "", problem: "", text: "" };
    const count = el("span", { "aria-live": "polite" });
    const place_ = el("div", { class: "list", tabindex: "0", role: "region", "aria-label": "List of survivors" });
    const panel = el("div", { class: "detail", role: "region", "aria-label": "Chosen mutant", tabindex: "0" });
    const show = list(place_, "Survivors", ["mutant", "missed by", "came closest", "would be caught by"], index, panel);
    const label = (at, near, more) => near === null ? ["nothing compared"]
      : [amount(near[1]) + "\u00a0\u00d7 allowed", index.entries[at][near[0]][1] + (more || "")];

    function row(s) {
      const [at, i, , operator, family, substrate, line, detail, , bits, near, closest, best, catching] = s;
      const missed = index.checkers.filter((name, n) => bits & (1 << n));
      const main = wanted.mode === EITHER ? (bits & bit(own) ? own : official) : wanted.mode;
      const mine = missed.includes(main) ? near[missed.indexOf(main)] : closest;
      const said = missed.filter((name) => !name.includes("@") || name === own).join(", ") || missed.join(", ");
      return { at, i, name: index.operators[operator][0], detail: index.families[family] + ": " + detail,
        kernel: index.problems[at] + ", " + substrate + ":" + line,
        cells: [said ? [said] : ["no input shows it"], label(at, mine),
          best === null ? ["no admitted input"] : label(at, best, catching > 1 ? ", and " + (catching - 1) + " more" : "")] };
    }

    function refresh() {
      const mask = wanted.mode === EITHER ? bit(official) | bit(own) : wanted.mode === NONE ? 0 : bit(wanted.mode);
      const near = (s) => (s[11] === null ? -1 : s[11][1] === "inf" ? Infinity : s[11][1]);
      const found = index.survivors.filter((s) => (mask ? s[9] & mask : s[8] === "" && s[9] === 0)
        && (!wanted.family || index.families[s[4]] === wanted.family)
        && (!wanted.problem || String(s[0]) === wanted.problem)
        && (!wanted.text || (index.operators[s[3]][0] + " " + s[7] + " " + s[5] + " " + s[2]).toLowerCase().includes(wanted.text)));
      if (mask) found.sort((a, b) => (b[9] & bit(own)) - (a[9] & bit(own)) || a[4] - b[4] || a[0] - b[0]);
      else found.sort((a, b) => near(b) - near(a));
      count.textContent = found.length + (found.length === 1 ? " mutant" : " mutants");
      show(found.map(row));
    }

    const set = (key) => (value) => { wanted[key] = value; refresh(); };
    const text = el("input", { type: "search", oninput: (event) => set("text")(event.target.value.toLowerCase()) });
    const families = [...index.families].sort().map((name) => [name, name]);
    const problems = index.problems.map((name, at) => [String(at), name]);
    const modes = [[EITHER, "witnessed, missed by " + official + " or " + own],
      ...index.checkers.map((name) => [name, "witnessed, missed by " + name]), [NONE, "unwitnessed: no admitted input shows them"]];
    place.append(el("div", { class: "filters", role: "group", "aria-label": "Filters" }, choice("show", modes, set("mode")),
      choice("family", [["", "all"], ...families], set("family")), choice("problem", [["", "all"], ...problems], set("problem")),
      el("label", {}, "search ", text), count), el("div", { class: "split" }, place_, panel));
    refresh();
  }

  // ---------------------------------------------------------------- heat map

  const maps = [];

  function palette() {
    const style = getComputedStyle(document.documentElement), get = (name) => style.getPropertyValue("--" + name).trim();
    const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const low = parts(get("heat-low")), high = parts(get("heat-high"));
    const ramp = Array.from({ length: 32 }, (_, k) => "rgb(" + low.map((v, c) => Math.round(v + (high[c] - v) * k / 31)).join(",") + ")");
    const named = Object.fromEntries(["value", "crash", "hang", "race", "refused", "missing", "text", "quiet"].map((n) => [n, get(n)]));
    return { ramp, ...named };
  }

  function colour(code, p) {
    if (code === STATE.missing) return p.missing;
    if (code === STATE.refused) return p.refused;
    if (code >= STATE.crash && code <= STATE.race) return p[settings.states[code]];
    if (kills(code)) return p.value;
    if (code === STATE.pass) return p.ramp[0];
    const decade = Math.log10(ratioOf(code)); // from a thousandth of the tolerance to all of it
    return p.ramp[Math.max(0, Math.min(31, Math.round((decade + 3) / 3 * 31)))];
  }

  function heatMap(index, data, at, panel) {
    const [n, width] = data.shape, m = data.mutants;
    const used = (c) => { for (let i = 0; i < n; i++) if (data.codes[i * width + c] !== STATE.missing) return true; return false; };
    const order = (c) => (data.entries[c].role === "pool" ? 0 : 1e9) - data.entries[c].kills;
    const columns = data.entries.map((e, c) => c).filter(used).sort((a, b) => order(a) - order(b));
    const families = [...new Set(m.family)].sort();
    const rank = (i) => families.indexOf(m.family[i]) * 1e6 + [1, 2, 0][m.witnessed[i] + 1] * -1 + (1e3 - m.by[i]);
    const rows = Array.from({ length: n }, (_, i) => i).sort((a, b) => rank(a) - rank(b));
    const left = 110, top = 150, w = Math.max(7, Math.min(22, Math.floor(630 / Math.max(1, columns.length))));
    const h = n <= 80 ? 13 : n <= 300 ? 8 : n <= 1200 ? 4 : n <= 5000 ? 2 : 1;
    const canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map",
      "aria-label": "Heat map of " + n + " mutants by " + columns.length + " entries; arrow keys move, Enter shows the mutant" });
    const said = el("output", { "aria-live": "polite" }, "Point at a cell, or use the arrow keys; a click or Enter shows the mutant.");
    const cursor = { row: 0, column: 0 }, ring = el("div", { class: "ring", hidden: "" });

    function draw() {
      const p = palette(), tall = top + n * h + 4, wide = left + columns.length * w + 70;
      const scale = tall * devicePixelRatio > 30000 ? 1 : devicePixelRatio;
      canvas.width = wide * scale; canvas.height = tall * scale;
      canvas.style.width = wide + "px"; canvas.style.height = tall + "px";
      const g = canvas.getContext("2d");
      g.scale(scale, scale);
      g.font = "11px system-ui, sans-serif"; g.fillStyle = p.quiet; g.textBaseline = "middle";
      const every = Math.max(1, Math.ceil(11 / w));
      columns.forEach((c, k) => {
        if (k % every) return;
        g.save(); g.translate(left + k * w + w / 2, top - 6); g.rotate(-Math.PI / 3);
        const text = visible(data.entries[c].label);
        g.fillText(text.length > 27 ? text.slice(0, 26) + "\u2026" : text, 0, 0); g.restore();
      });
      const gap = h > 5 ? 1 : 0, side = w > 5 ? 1 : 0;
      let family = null, free = 0;
      rows.forEach((i, r) => {
        const y = top + r * h;
        if (m.family[i] !== family) {
          family = m.family[i];
          g.fillStyle = p.quiet;
          if (y >= free) { g.fillText(visible(family), 0, y + Math.max(h / 2, 6)); free = y + 13; }
          if (r) g.fillRect(0, y - 0.5, left + columns.length * w, 0.5);
        }
        columns.forEach((c, k) => {
          g.fillStyle = colour(data.codes[i * width + c], p);
          g.fillRect(left + k * w, y, w - side, h - gap);
        });
      });
      const first = columns.findIndex((c) => data.entries[c].role === "protocol");
      if (first > 0) { g.fillStyle = p.text; g.fillRect(left + first * w - 1, top - 8, 1, n * h + 8); }
    }

    function move(row, column) {
      cursor.row = Math.max(0, Math.min(n - 1, row));
      cursor.column = Math.max(0, Math.min(columns.length - 1, column));
      const place = { left: left + cursor.column * w - 2, top: top + cursor.row * h - 2, width: w + 3, height: Math.max(h, 2) + 3 };
      for (const [name, value] of Object.entries(place)) ring.style[name] = value + "px";
      ring.hidden = false;
      const i = rows[cursor.row], c = columns[cursor.column], e = data.entries[c];
      const unit = e.role === "protocol" ? " (official entry)" : "";
      said.textContent = visible(m.operator[i] + ": " + m.detail[i] + " | " + e.label + unit + " | " + codeText(data.codes[i * width + c]));
    }

    const choose = () => showMutant(panel, index, at, rows[cursor.row]);
    const find = (event) => {
      const box = canvas.getBoundingClientRect();
      return [Math.floor((event.clientY - box.top - top) / h), Math.floor((event.clientX - box.left - left) / w)];
    };
    canvas.addEventListener("mousemove", (event) => {
      const [row, column] = find(event);
      if (row >= 0 && row < n && column >= 0 && column < columns.length) move(row, column);
    });
    canvas.addEventListener("click", (event) => { move(...find(event)); choose(); });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
        PageUp: [-20, 0], PageDown: [20, 0] }[event.key];
      if (by) { event.preventDefault(); move(cursor.row + by[0], cursor.column + by[1]); }
      else if (event.key === "Enter") { event.preventDefault(); choose(); }
    });
    maps.push(draw);
    draw();
    return [legend(), el("div", { class: "map", tabindex: "-1" }, canvas, ring), said];
  }

  function legend() {
    const items = [["--heat-low", "passes, a thousandth of the tolerance or less"], ["--heat-high", "passes, near the tolerance"],
      ["--value", "shown by a value"], ["--crash", "crash"], ["--hang", "hang"], ["--race", "race"],
      ["--refused", "refused the shape"], ["--missing", "not measured"]];
    return el("div", { class: "legend" }, items.map(([name, text]) => {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("width", "12"); svg.setAttribute("height", "12"); svg.setAttribute("aria-hidden", "true");
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      rect.setAttribute("width", "12"); rect.setAttribute("height", "12");
      rect.style.fill = "var(" + name + ")";
      svg.append(rect);
      return el("span", {}, svg, text);
    }), el("span", {}, "right of the line: entries of official protocols, by margin over 0.01 where they have no tolerance of ours"));
  }

  // ---------------------------------------------------------------- one problem

  async function showProblem(body, index, at) {
    const data = await problem(at), m = data.mutants, n = data.shape[0];
    const panel = el("div", { class: "detail", role: "region", "aria-label": "Chosen mutant", tabindex: "0" });
    const filters = el("div", { class: "filters", role: "group", "aria-label": "Filters" });
    const box = el("div", { class: "list", tabindex: "0", role: "region", "aria-label": "Mutants of " + data.name });
    const left = el("div", {}, n ? heatMap(index, data, at, panel) : null, el("h3", {}, "Mutants"), filters, box);
    body.replaceChildren(el("div", { class: "split" }, left, panel), el("h3", {}, "Entries"), entries(index, data),
      el("h3", {}, "Substrates"), table("Substrates", [["substrate"], ["backend"], ["style"], ["status"], ["what the clean run said"]],
        data.substrates.map(([name, ...rest]) => el("tr", {}, el("th", { scope: "row" }, name), rest.map((text) => el("td", {}, text))))));
    const show = list(box, "Mutants", ["mutant", "state", "shown by"], index, panel);
    const state = (i) => m.witnessed[i] === 1 ? "witnessed: " + m.shows[i] : m.witnessed[i] === 0 ? "unwitnessed" : "undecided";
    const by = (i) => m.by[i] === 1 ? "only " + data.entries[m.only[i]].label : m.by[i] + " entries";
    const filter = (mode) => {
      const kept = [];
      for (let i = 0; i < n; i++) {
        if (mode === "" || (mode === "unwitnessed" && m.witnessed[i] === 0) || (mode === "undecided" && m.witnessed[i] < 0)
          || (mode === "alone" && m.by[i] === 1)
          || (data.fates[mode] && m.witnessed[i] === 1 && data.fates[mode][i] === 0)) kept.push(i);
      }
      show(kept.map((i) => ({ at, i, name: m.operator[i], detail: m.family[i] + ": " + m.detail[i],
        kernel: data.substrates[m.substrate[i]][0] + ":" + m.line[i], cells: [[state(i)], [by(i)]] })));
    };
    filters.append(choice("show", [["", "all " + n], ...index.checkers.map((name) => [name, "missed by " + name]),
      ["alone", "shown by one entry alone"], ["unwitnessed", "unwitnessed"], ["undecided", "undecided"]], filter));
    filter("");
  }

  function entries(index, data) {
    const order = data.entries.map((e, c) => c).sort((a, b) =>
      (data.entries[a].role === "pool" ? 0 : 1) - (data.entries[b].role === "pool" ? 0 : 1)
      || Number(data.entries[b].admitted) - Number(data.entries[a].admitted) || data.entries[b].kills - data.entries[a].kills);
    const rows = order.map((c) => {
      const e = data.entries[c], [word, alone, within] = e.worth || ["", "", -1];
      const said = word === "redundant" ? "redundant beside " + data.entries[within].label : word;
      const refused = e.admitted ? "may judge" : e.reason + (e.detail ? ": " + e.detail : "");
      return el("tr", {}, el("th", { scope: "row", title: e.uid }, e.label), el("td", { class: "n" }, e.kills), el("td", { class: "n" }, alone),
        el("td", {}, said), el("td", { class: "n" }, e.tolerance ? e.tolerance.map(amount).join(", ") : "-"),
        el("td", { class: "n" }, (e.bytes / 1024).toFixed(0)), el("td", {}, refused), el("td", {}, e.in.map((k) => index.checkers[k]).join(", ")));
    });
    return table("Entries of " + data.name, [["entry"], ["shows", "n"], ["alone", "n"], ["worth"], ["tolerance", "n"], ["KiB", "n"],
      ["validity"], ["asked by"]], rows);
  }

  // ---------------------------------------------------------------- start

  function opened() {
    const target = /^#problem-\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.open) target.scrollIntoView();
    else target.open = true; // what it shows then scrolls to it
  }

  async function start() {
    const place = document.getElementById("survivors");
    if (!place) return;
    if (typeof DecompressionStream === "undefined") {
      place.append(el("p", {}, "This browser cannot unpack the list (it has no DecompressionStream); the tables below are whole."));
      return;
    }
    const index = await block("index");
    survivors(index, place);
    for (const details of document.querySelectorAll("details.problem")) {
      details.addEventListener("toggle", () => {
        const body = details.querySelector(".body");
        if (!details.open || body.hasChildNodes()) return;
        showProblem(body, index, Number(details.id.slice(8))).then(() => {
          if (location.hash === "#" + details.id) details.scrollIntoView();
        });
      });
    }
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(query).addEventListener("change", () => maps.forEach((draw) => draw()));
    }
    addEventListener("hashchange", opened);
    opened();
    document.documentElement.dataset.ready = String(Math.round(performance.now())); // milliseconds since the page began to load
  }

  start();
})();
