/* The page: a WebSocket that brings frames and states and takes controls.

   A frame is shown unless a newer one, or one of a newer epoch, was shown already: decoding may finish out of order, and a
   cut must be final. A state says what the server holds; fields follow it, except those that a person is editing. */

const at = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
const withToken = (path) => (token === null ? path : `${path}?token=${encodeURIComponent(token)}`);

const view = { stream: null, number: -1n, epoch: -1n, next: null, decoding: false, times: [], missed: 0n };
const link = { socket: null, tries: 0, timer: 0, lastHeard: 0 };
let state = null;

/* ---- frames ---- */

function showStatus(kind, text) {
  const pill = at("status");
  pill.dataset.kind = kind;
  const words = pill.querySelector("span");
  if (words.textContent !== text) words.textContent = text;
}

function draw(bitmap) {
  const canvas = at("video");
  if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
    canvas.width = bitmap.width;
    canvas.height = bitmap.height;
    at("screen").style.aspectRatio = `${bitmap.width} / ${bitmap.height}`;
  }
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  at("empty").hidden = true;
}

function flashCut() {
  const badge = at("badge");
  badge.textContent = "cut";
  badge.hidden = false;
  setTimeout(() => { badge.hidden = true; }, 900);
}

/* The newest frame that came while another was decoded; the ones between are missed. */
async function decode() {
  if (view.decoding) return;
  view.decoding = true;
  while (view.next !== null) {
    const frame = view.next;
    view.next = null;
    let bitmap = null;
    try {
      bitmap = await createImageBitmap(new Blob([frame.jpeg], { type: "image/jpeg" }));
    } catch {
      complain("A frame could not be decoded.");
      continue;
    }
    if (frame.stream === view.stream && frame.epoch >= view.epoch && frame.number > view.number) {
      if (view.number >= 0n && frame.epoch === view.epoch) view.missed += frame.number - view.number - 1n;
      if (view.epoch >= 0n && frame.epoch > view.epoch) flashCut();
      view.number = frame.number;
      view.epoch = frame.epoch;
      draw(bitmap);
      view.times.push(performance.now());
      at("fact-chunk").textContent = frame.chunk;
      at("fact-epoch").textContent = frame.epoch;
    }
    bitmap.close();
  }
  view.decoding = false;
}

function takeFrame(buffer) {
  if (buffer.byteLength <= 32) return;
  const head = new DataView(buffer);
  const frame = {
    stream: view.stream, number: head.getBigUint64(0, true), chunk: head.getBigUint64(8, true),
    epoch: head.getBigUint64(16, true), jpeg: new Uint8Array(buffer, 32),
  };
  if (frame.epoch < view.epoch || (view.next !== null && frame.epoch < view.next.epoch)) return;
  view.next = frame;
  decode();
}

function shownRate() {
  const now = performance.now();
  view.times = view.times.filter((time) => time > now - 2000);
  return view.times.length / 2;
}

/* ---- the state of the server ---- */

function complain(message) {
  const place = at("problem");
  place.querySelector("span").textContent = message;
  place.hidden = false;
}

function bytesText(bytes) {
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function showRecording(recording) {
  const button = at("record");
  button.disabled = !recording.allowed;
  button.title = recording.allowed ? "" : "Start carry stream with --record-to FOLDER to record";
  button.setAttribute("aria-pressed", recording.on);
  button.querySelector("span").textContent = recording.on ? "Stop" : "Record";
  const note = recording.on || recording.name
    ? `${recording.on ? "recording" : "recorded"} ${recording.name} · ${recording.frames} frames · ${bytesText(recording.bytes)}`
      + (recording.dropped > 0 ? ` · ${recording.dropped} missed` : "")
    : "";
  at("recording").textContent = recording.error || note;
}

function secondsText(seconds) {
  return seconds > 0 ? (seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`) : "–";
}

function chunksText(chunks) {
  return chunks > 0 ? ` (${chunks.toFixed(1)} chunks)` : "";
}

function takeState(news) {
  if (view.stream !== news.stream) { /* a server that was started anew counts from the start */
    Object.assign(view, { stream: news.stream, number: -1n, epoch: -1n, next: null });
  }
  state = news;
  state.shown = shownRate();
  const { figures } = state;
  if (figures.paused || state.controls.pause) showStatus("paused", "paused");
  else if (figures.state === "streaming" || figures.state === "") showStatus("live", "live");
  else showStatus("bad", figures.state);
  at("fact-fps").textContent = state.shown.toFixed(1);
  at("fact-first").textContent = secondsText(figures.first_frame_seconds);
  at("fact-prompt").textContent = secondsText(figures.prompt_seconds) + chunksText(figures.prompt_chunks);
  at("fact-gpu-box").hidden = !figures.gpu_total;
  at("fact-gpu").textContent = figures.gpu_total ? `${(figures.gpu_used / 1e9).toFixed(1)} of ${(figures.gpu_total / 1e9).toFixed(0)} GB` : "–";
  at("fact-viewers").textContent = figures.viewers;
  at("fact-missed").textContent = view.missed;
  showRecording(state.recording);
  fields.follow(state.controls);
  at("prompt-note").textContent = news.note ?? "";
  at("prompt-note").hidden = !news.note;
  charts.forEach((chart) => chart.add(state));
}

function takeText(text) {
  const news = JSON.parse(text);
  if (news.error !== undefined) {
    complain(news.error);
    fields.answered(false);
  } else if (news.done) {
    at("problem").hidden = true;
    fields.answered(true);
  } else { /* a seed may be larger than a number of this language holds: its digits, then */
    news.controls.seed = text.match(/"seed": ?(\d+)/)?.[1] ?? news.controls.seed;
    takeState(news);
  }
}

/* ---- the connection ---- */

function lose(message) {
  const wait = Math.min(8, 0.5 * 2 ** link.tries) * (0.75 + 0.5 * Math.random());
  const until = performance.now() + 1000 * wait;
  link.tries++;
  at("screen").classList.add("dim");
  at("lost").hidden = false;
  at("empty").hidden = true;
  showStatus("bad", "disconnected");
  clearInterval(link.timer);
  const tell = () => {
    const left = Math.ceil((until - performance.now()) / 1000);
    at("lost-text").textContent = left > 0 ? `${message} Trying again in ${left} s.` : `${message} Trying again.`;
    if (left <= 0) connect();
  };
  link.timer = setInterval(tell, 250);
  tell();
}

function connect() {
  clearInterval(link.timer);
  showStatus("waiting", link.tries === 0 ? "connecting" : "reconnecting");
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}${withToken("/ws")}`);
  socket.binaryType = "arraybuffer";
  link.socket = socket;
  link.lastHeard = performance.now();
  socket.onmessage = ({ data }) => {
    if (socket !== link.socket) return;
    link.lastHeard = performance.now();
    if (link.tries > 0 || !at("lost").hidden) {
      link.tries = 0;
      at("lost").hidden = true;
      at("screen").classList.remove("dim");
      at("empty").hidden = view.number >= 0n;
    }
    typeof data === "string" ? takeText(data) : takeFrame(data);
  };
  socket.onclose = ({ code, reason }) => {
    if (socket !== link.socket) return;
    link.socket = null;
    fields.sent = null;
    lose(code === 1013 ? "There are too many viewers." : reason ? `The server hung up: ${reason}.` : "The connection is lost.");
  };
}

/* A state comes twice a second: long silence means that the other side is gone, whatever TCP believes. */
setInterval(() => {
  if (link.socket !== null && performance.now() - link.lastHeard > 15000) link.socket.close();
}, 2000);

function send(change) {
  if (link.socket === null || link.socket.readyState !== WebSocket.OPEN) {
    complain("Not connected: nothing was changed.");
    return false;
  }
  link.socket.send(typeof change === "string" ? change : JSON.stringify(change));
  return true;
}

async function record() {
  const on = state?.recording.on;
  const stamp = new Date().toISOString().slice(0, 19).replace(/[-:]/g, "").replace("T", "-");
  try {
    const answer = await fetch(withToken("/api/record"), {
      method: "POST", body: JSON.stringify(on ? { stop: true } : { path: `carry-${stamp}.avi` }),
    });
    if (!answer.ok) complain((await answer.json()).error);
  } catch {
    complain("Not connected: nothing was changed.");
  }
}
