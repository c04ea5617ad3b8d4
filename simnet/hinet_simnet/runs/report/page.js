// Draws the story's timeline and curves. Text of a trace only ever goes through textContent.
"use strict";
const story = JSON.parse(document.getElementById("story").textContent);
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.hidden = true;

function draw(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return parent.appendChild(made);
}

function time(s) {
  if (s < 60) return s.toFixed(s < 10 ? 2 : 1) + " s";
  const two = (n) => String(n).padStart(2, "0");
  const whole = Math.floor(s), days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  const clock = days || hours ? hours + ":" + two(minutes) + ":" + two(whole % 60) : minutes + ":" + two(whole % 60);
  return days ? days + " d " + clock : clock;
}

function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; n >= 1024 && at < 4; at++) n /= 1024;
  return (at && n < 100 ? n.toFixed(1) : n.toFixed(0)) + " " + units[at];
}

function say(event, text) {
  tip.hidden = !text;
  tip.textContent = text;
  const right = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6));
  const below = event.clientY + 16 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16;
  tip.style.left = right + "px";
  tip.style.top = below + "px";
}

const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 180, 300, 600, 1800, 3600, 7200,
  21600, 43200, 86400, 172800, 604800];
function ticks(from, to, count) {
  const step = steps.find((s) => (to - from) / s <= count) || (to - from) / count;
  const found = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(t);
  return found;
}
function tickText(t, span) {
  if (span < 20 && t) {
    const digits = span < 0.05 ? 4 : span < 2 ? 2 : 1, near = Number(t.toFixed(digits));
    return near < 60 ? near.toFixed(digits) + " s" : time(near) + (near % 1).toFixed(digits).slice(1);
  }
  return t < 60 ? Math.round(t * 100) / 100 + " s" : time(t);
}

// ---- the timeline ---------------------------------------------------------------------------------------------------

const looks = { found: ["●", "join"], joined: ["●", "join"], start: ["▲", "start"], thaw: ["▲", "start"], kill: ["✕", "kill"],
  crash: ["✕", "kill"], stop: ["✕", "call"], freeze: ["◆", "act"], clone: ["◆", "act"], disk: ["◆", "act"], clock: ["◆", "act"],
  lie: ["◆", "act"], call: ["▪", "call"], finding: ["▼", "bad"] };
const messagesDrawn = 500;
const box = document.getElementById("timeline");
const whole = Math.max(story.end, 1e-3);
let from = 0, to = whole;

function timeline() {
  const width = box.clientWidth, narrow = width < 560, left = narrow ? 84 : 150, top = 24;
  const high = story.lanes.length > 40 ? 14 : story.lanes.length > 16 ? 20 : 28;
  const height = top + story.lanes.length * high + 6;
  const x = (t) => left + (t - from) / (to - from) * (width - left - 8);
  box.textContent = "";
  const svg = draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, height });
  const inside = (a, b) => b >= from && a <= to;
  for (const t of ticks(from, to, narrow ? 4 : 8)) {
    draw(svg, "line", { class: "grid", x1: x(t), x2: x(t), y1: top - 4, y2: height });
    draw(svg, "text", { class: "soft", x: Math.min(x(t), width - 30), y: 14, "text-anchor": "middle" }, tickText(t, to - from));
  }
  const clip = draw(draw(svg, "defs", {}), "clipPath", { id: "plot" });
  draw(clip, "rect", { x: left - 6, y: 0, width: width - left + 6, height });
  const plot = draw(svg, "g", { "clip-path": "url(#plot)" });
  for (const [a, b] of story.shades) if (inside(a, b))
    draw(plot, "rect", { class: "shade", x: x(a), y: top - 4, width: Math.max(1.5, x(b) - x(a)), height });
  let most = 1;
  for (const lane of story.lanes) for (const n of lane.sent) most = Math.max(most, n);
  story.lanes.forEach((lane, row) => {
    const y = top + row * high + high / 2, thick = Math.max(7, high - 12);
    draw(plot, "line", { class: "rail", x1: left, x2: width, y1: y, y2: y });
    for (const [a, b, state] of lane.spans) if (inside(a, b))
      draw(plot, "rect", { class: state, x: x(a), y: y - thick / 2, width: Math.max(1, x(b) - x(a)), height: thick,
        opacity: state === "frozen" ? 0.8 : 0.22, rx: 1.5 });
    lane.sent.forEach((n, bin) => {
      const a = bin * story.bin, b = Math.min(a + story.bin, story.end);
      if (n && inside(a, b)) draw(plot, "rect", { class: "up", x: x(a), y: y - thick / 2, width: Math.max(1, x(b) - x(a)),
        height: thick, opacity: 0.15 + 0.7 * Math.log1p(n) / Math.log1p(most) });
    });
    const letters = Math.floor((left - 14) / 6.6);
    const name = lane.name.length > letters ? lane.name.slice(0, letters - 1) + "…" : lane.name;
    draw(svg, "text", { x: 8, y: y + 4, style: high < 20 ? "font-size:11px" : "" }, name);
  });
  const shown = story.messages.filter((m) => m[0] >= from && m[0] <= to);
  if (shown.length <= messagesDrawn) for (const m of shown)
    draw(plot, "line", { class: "message", x1: x(m[0]), x2: x(m[0]) + 3, y1: top + (m[1] + 0.5) * high, y2: top + (m[2] + 0.5) * high });
  for (const [t] of story.findings) if (inside(t, t))
    draw(plot, "line", { class: "finding", x1: x(t), x2: x(t), y1: top - 4, y2: height });
  story.lanes.forEach((lane, row) => lane.marks.forEach(([t, kind]) => {
    const [sign, style] = looks[kind] || ["▪", "call"];
    if (inside(t, t)) draw(plot, "text", { class: style, x: x(t), y: top + row * high + high / 2 + 4, "text-anchor": "middle",
      style: `font-size:${kind === "call" ? 9 : 11}px` }, sign);
  }));
  document.getElementById("range").textContent = `${from ? time(from) : 0} to ${time(to)}` + (shown.length > messagesDrawn ?
    `; zoom in to see single messages (${shown.length} here)` : "");
  follow(svg, { left, top, high, width, height, x, plot });
}

function follow(svg, { left, top, high, width, height, x, plot }) {
  let began = null, chosen = null;
  const at = (event) => {
    const place = svg.getBoundingClientRect();
    return [from + Math.max(0, event.clientX - place.left - left) / (width - left - 8) * (to - from),
      Math.floor((event.clientY - place.top - top) / high)];
  };
  svg.onpointermove = (event) => {
    const [t, row] = at(event);
    if (began !== null) {
      chosen = chosen || draw(plot, "rect", { class: "chosen", y: 0, height });
      chosen.setAttribute("x", Math.min(x(t), x(began)));
      chosen.setAttribute("width", Math.abs(x(t) - x(began)));
    }
    const lane = story.lanes[row], near = (to - from) / width * 8;
    if (!lane) return say(event, "");
    const lines = [`${lane.name}${lane.of ? " (" + lane.of + ")" : ""} at ${time(Math.min(t, story.end))}`];
    const n = lane.sent[Math.floor(t / story.bin)];
    if (n) lines.push(`sent ${size(n)} in ${time(story.bin)}`);
    const marks = lane.marks.filter((m) => Math.abs(m[0] - t) < near);
    for (const m of marks.slice(0, 6)) lines.push(`${time(m[0])} ${m[1]} ${m[2]}`);
    if (marks.length > 6) lines.push(`and ${marks.length - 6} more here`);
    for (const s of story.shades) if (s[0] <= t && t <= s[1]) lines.push(s[2]);
    for (const f of story.findings) if (Math.abs(f[0] - t) < near) lines.push("finding " + f[1]);
    say(event, lines.join("\n"));
  };
  svg.onpointerdown = (event) => { if (event.pointerType !== "touch") began = at(event)[0]; };
  svg.onpointerup = (event) => {
    const t = at(event)[0];
    if (began !== null && Math.abs(x(t) - x(began)) > 6) look(Math.min(t, began), Math.max(t, began));
    began = null;
  };
  svg.onpointerleave = () => { tip.hidden = true; };
  svg.ondblclick = () => look(0, whole);
}

function look(a, b) {
  const span = Math.min(whole, Math.max(1e-4, b - a));
  from = Math.max(0, Math.min(a, whole - span));
  to = from + span;
  timeline();
}

if (box) {
  const middle = (factor) => look((from + to) / 2 - (to - from) / 2 * factor, (from + to) / 2 + (to - from) / 2 * factor);
  const by = (share) => look(from + (to - from) * share, to + (to - from) * share);
  document.getElementById("in").onclick = () => middle(0.5);
  document.getElementById("out").onclick = () => middle(2);
  document.getElementById("back").onclick = () => by(-0.4);
  document.getElementById("on").onclick = () => by(0.4);
  document.getElementById("all").onclick = () => look(0, whole);
}

// ---- curves ---------------------------------------------------------------------------------------------------------

function number(name, n) {
  if (/byte/.test(name)) return size(n);
  return Number.isInteger(n) ? n.toLocaleString("en") : Math.abs(n) >= 100 ? n.toFixed(0) : String(Number(n.toPrecision(3)));
}

function curve(parent, name, points) {
  const card = parent.appendChild(document.createElement("div"));
  card.className = "curve";
  const now = card.appendChild(document.createElement("span"));
  now.className = "small";
  card.appendChild(document.createElement("b")).textContent = name;
  const width = Math.max(200, card.clientWidth - 20), height = 120, left = 54;
  const values = points.map((p) => p[1]), low = Math.min(0, ...values), most = Math.max(...values), high = most > low ? most : low + 1;
  const x = (t) => left + t / whole * (width - left - 6), y = (v) => 8 + (high - v) / (high - low) * (height - 30);
  const last = number(name, values[values.length - 1]);
  now.textContent = "last " + last;
  const svg = draw(card, "svg", { viewBox: `0 0 ${width} ${height}`, height });
  for (const v of [low, (low + high) / 2, high]) {
    draw(svg, "line", { class: "grid", x1: left, x2: width, y1: y(v), y2: y(v) });
    draw(svg, "text", { class: "soft", x: left - 6, y: y(v) + 4, "text-anchor": "end" }, number(name, v));
  }
  for (const t of ticks(0, whole, 4)) draw(svg, "text", { class: "soft", x: Math.min(x(t), width - 24), y: height - 4,
    "text-anchor": t ? "middle" : "start" }, tickText(t, whole));
  for (const [t] of story.findings) draw(svg, "line", { class: "finding", x1: x(t), x2: x(t), y1: 8, y2: height - 22 });
  let path = "";
  points.forEach(([t, v], place) => { path += (place ? `H${x(t).toFixed(1)}V` : `M${x(t).toFixed(1)},`) + y(v).toFixed(1); });
  draw(svg, "path", { class: "line", d: path });
  if (points.length === 1) draw(svg, "circle", { class: "up", cx: x(points[0][0]), cy: y(points[0][1]), r: 3 });
  svg.onpointermove = (event) => {
    const t = (event.clientX - svg.getBoundingClientRect().left - left) / (width - left - 6) * whole;
    let found = points[0];
    for (const p of points) if (p[0] <= t) found = p;
    now.textContent = `${time(Math.max(0, t))}: ${number(name, found[1])}`;
  };
  svg.onpointerleave = () => { now.textContent = "last " + last; };
}

function curves() {
  const parent = document.getElementById("curves");
  if (!parent) return;
  parent.textContent = "";
  for (const [name, points] of story.curves) curve(parent, name, points);
}

let wide = 0;
function all() {
  if (innerWidth === wide) return;
  wide = innerWidth;
  if (box) timeline();
  curves();
}
addEventListener("resize", all);
all();
