// The console in the browser: live updates, keys, copying, charts. Every page works without it.
"use strict";

const byId = (id) => document.getElementById(id);
const say = (text) => { byId("said").textContent = text; };

// -- theme

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = getComputedStyle(root).getPropertyValue("--is-dark").trim() === "1";
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("kohort-theme", root.dataset.theme);
  drawCharts();
});

// -- live: one event after each sample; nothing moves while somebody selects or types

let paused = false;
let missed = false;
let unanswered = false;

function busy() {
  const active = document.activeElement;
  const types = active && ["INPUT", "SELECT", "TEXTAREA"].includes(active.tagName);
  const selection = document.getSelection();
  const selects = selection && !selection.isCollapsed;
  return paused || document.hidden || Boolean(types) || Boolean(selects) ||
    Boolean(document.querySelector("dialog[open]"));
}

function showLive() {
  const still = busy();
  byId("live").classList.toggle("still", still || unanswered);
  byId("live").setAttribute("aria-pressed", String(!paused));
  byId("live-text").textContent = paused ? "paused" : unanswered ? "no answer" : still ? "waiting" : "live";
}

// The figures of a page whose console does not answer are old: it must not say that it is live.
function answers(does) {
  if (unanswered === does) say(does ? "the console answers again" : "the console does not answer");
  unanswered = !does;
  showLive();
}

function refresh() {
  const part = byId("part");
  if (!part || part.dataset.live !== "yes") return;
  if (busy()) { missed = true; showLive(); return; }
  missed = false;
  const focused = document.activeElement && document.activeElement.closest("#part a");
  const href = focused ? focused.getAttribute("href") : null;
  const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
  htmx.ajax("GET", location.pathname + location.search, { target: "#part", swap: "innerHTML" })
    .then(() => {
      for (const id of open) if (id && byId(id)) byId(id).open = true;
      if (href) {
        const again = [...part.querySelectorAll("a")].find((a) => a.getAttribute("href") === href);
        if (again) again.focus({ preventScroll: true });
      }
      updateCharts();
    }, () => { missed = true; });
}

// Somebody may have begun to type while the answer was under way. An error takes the place of the
// figures, which htmx alone would leave as they are.
document.addEventListener("htmx:beforeSwap", (event) => {
  const answer = event.detail;
  if (answer.target.id !== "part") return;
  answers(true);
  if (busy()) {
    answer.shouldSwap = false;
    missed = true;
    showLive();
  } else if (answer.xhr.status >= 400) {
    answer.shouldSwap = true;
    answer.isError = false;
  }
});
document.addEventListener("htmx:sendError", () => answers(false));

byId("live").addEventListener("click", () => {
  paused = !paused;
  say(paused ? "updates are paused" : "updates continue");
  showLive();
  if (!paused && missed) refresh();
});
for (const name of ["selectionchange", "focusin", "focusout", "visibilitychange"]) {
  document.addEventListener(name, () => {
    showLive();
    if (missed && !busy()) setTimeout(() => { if (missed) refresh(); }, 300);
  });
}

// One stream for all tabs: a browser opens six connections to a host, and no more. It begins with the
// number of the last sample: one that was taken between the page and the stream is not missed.
function listen() {
  let shown = byId("part").dataset.sample;
  const heard = (number) => {
    answers(number !== "");
    if (number === "" || number === shown) return;
    shown = number;
    refresh();
  };
  if (window.SharedWorker) {
    const worker = new SharedWorker("/static/events.js");
    worker.port.onmessage = (event) => heard(event.data);
    worker.port.start();
  } else {
    const source = new EventSource("/events");
    for (const name of ["hello", "sample"]) source.addEventListener(name, (event) => heard(event.data));
    source.addEventListener("error", () => heard(""));
  }
}
if (byId("part") && byId("part").dataset.live === "yes") listen();
showLive();

// On a narrow screen the areas scroll: show the present one.
document.querySelector(".areas a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

// -- keys

let row = -1;
document.addEventListener("keydown", (event) => {
  const types = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (types && event.key === "Escape") { event.target.blur(); return; }
  if (types || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); byId("find").focus(); }
  if (event.key === "p") byId("live").click();
  if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll("tr.row a")].filter((a) => a.closest("th"));
    if (!links.length) return;
    const now = links.indexOf(document.activeElement);
    row = Math.min(links.length - 1, Math.max(0, (now < 0 ? row : now) + (event.key === "j" ? 1 : -1)));
    links[row].focus();
  }
});

// -- copying, selecting

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) {
    const text = byId(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      say("copied");
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(byId(button.dataset.copy));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
    }
  }
  const all = event.target.closest("[data-select]");
  if (all) {
    for (const box of document.querySelectorAll(`input[name="${all.dataset.select}"]`)) box.checked = all.checked;
  }
});

// -- charts: the figures come from the page's own JSON

const charts = new Map();

function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

async function chartData(name) {
  const address = new URL(location.href);
  address.searchParams.set("format", "json");
  const answer = await fetch(address);
  return answer.ok ? (await answer.json())[name] : null;
}

function draw(box, data) {
  const colours = [theme("--accent"), theme("--warn")];
  const axis = { stroke: theme("--muted"), grid: { stroke: theme("--line"), width: 1 }, ticks: { stroke: theme("--line") } };
  const options = {
    width: Math.max(240, box.clientWidth), height: 220,
    legend: { live: true },
    scales: { x: { time: true }, 1: { range: (u, low, high) => [0, Math.max(1, high || 1)] }, 2: { range: (u, low, high) => [0, Math.max(1, high || 1)] } },
    axes: [axis, { ...axis, scale: "1", size: 64 }, ...(data.lines.length > 1 ? [{ ...axis, scale: "2", side: 1, size: 56, grid: { show: false } }] : [])],
    series: [{}, ...data.names.map((label, n) => ({ label, scale: String(n + 1), stroke: colours[n % 2], width: 2, points: { show: data.at_s.length < 30 } }))],
  };
  box.replaceChildren();
  charts.set(box, new uPlot(options, [data.at_s, ...data.lines], box));
}

async function drawCharts() {
  for (const box of document.querySelectorAll("[data-chart]")) {
    const data = await chartData(box.dataset.chart);
    if (!data) continue;
    if (data.at_s.length < 2) { box.textContent = "The history begins now: there is a line after the second sample."; continue; }
    draw(box, data);
  }
}

async function updateCharts() {
  for (const box of document.querySelectorAll("[data-chart]")) {
    const data = await chartData(box.dataset.chart);
    if (!data || data.at_s.length < 2) continue;
    if (charts.has(box)) charts.get(box).setData([data.at_s, ...data.lines]);
    else draw(box, data);
  }
}

window.addEventListener("resize", () => {
  for (const [box, chart] of charts) chart.setSize({ width: Math.max(240, box.clientWidth), height: 220 });
});
drawCharts();

// -- the player: the next line of a story every second, until it is stopped or ends

const play = byId("play");
if (play) {
  play.hidden = false;
  let timer = 0;
  const stop = () => {
    clearTimeout(timer);
    timer = 0;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  };
  const step = async () => {
    const next = document.querySelector('#part a[rel="next"]');
    if (!next) return stop();
    const address = next.getAttribute("href");
    await htmx.ajax("GET", address, { target: "#part", swap: "innerHTML" });
    history.replaceState(null, "", address);
    if (timer) timer = setTimeout(step, Number(play.dataset.every || 1000));
  };
  play.addEventListener("click", () => {
    if (timer) return stop();
    play.textContent = "Stop";
    play.setAttribute("aria-pressed", "true");
    timer = setTimeout(step, 0);
  });
}
