"use strict";
/* Small charts over the last two minutes: lines of numbers that come twice a second. */

const CHART_POINTS = 240;

class Chart {
  /* lines: {name, of(state) -> number or null, plain: its value stands elsewhere}; guide(state): a dashed line, or null; top(state): the least height of the axis;
     mean: over how many states a point is. */
  constructor(into, { title, about, lines, text, format, guide = () => null, top = () => 0, mean = 1 }) {
    Object.assign(this, { lines, text, format, guide, top, mean, points: [], recent: [], guideAt: null, least: 0 });
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    caption.textContent = title;
    caption.title = about;
    this.value = document.createElement("b");
    this.value.textContent = "–";
    caption.append(this.value);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", title);
    this.legend = document.createElement("ul");
    lines.forEach((line, i) => {
      const item = document.createElement("li");
      item.className = `c${i}`;
      line.label = document.createElement("span");
      line.label.textContent = line.name;
      item.append(document.createElement("i"), line.label);
      this.legend.append(item);
    });
    figure.append(caption, this.canvas, this.legend);
    into.append(figure);
    this.title = title;
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  add(state) {
    this.recent.push(this.lines.map((line) => line.of(state)));
    if (this.recent.length > this.mean) this.recent.shift();
    const point = this.lines.map((_, i) => {
      const known = this.recent.map((values) => values[i]).filter((value) => value !== null);
      return known.length === 0 || this.recent[this.recent.length - 1][i] === null ? null : known.reduce((a, b) => a + b) / known.length;
    });
    this.points.push(point);
    if (this.points.length > CHART_POINTS) this.points.shift();
    this.guideAt = this.guide(state);
    this.least = this.top(state);
    this.value.textContent = this.text(state);
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.text(state)}`);
    this.lines.forEach((line, i) => {
      line.label.textContent = point[i] === null || line.plain ? line.name : `${line.name} ${this.format(point[i])}`;
    });
    this.draw();
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (width === 0 || height === 0) return;
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);

    const all = this.points.flat().filter((value) => value !== null);
    const most = niceTop(Math.max(this.least, this.guideAt ?? 0, ...all, 1e-9));
    const bottom = height - 4;
    const toY = (value) => bottom - (value / most) * (bottom - 14);
    const toX = (i) => width - (this.points.length - 1 - i) * (width / (CHART_POINTS - 1));

    pen.strokeStyle = colour("--line");
    pen.lineWidth = 1;
    for (const value of [0, most / 2, most]) {
      const y = Math.round(toY(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(0, y);
      pen.lineTo(width, y);
      pen.stroke();
    }
    pen.fillStyle = colour("--faint");
    pen.font = "10.5px system-ui, sans-serif";
    pen.fillText(this.format(most), 0, 10);
    if (this.guideAt !== null) {
      pen.strokeStyle = colour("--faint");
      pen.setLineDash([3, 4]);
      pen.beginPath();
      pen.moveTo(0, toY(this.guideAt));
      pen.lineTo(width, toY(this.guideAt));
      pen.stroke();
      pen.setLineDash([]);
    }
    const colours = ["--accent", "--second", "--third"].map(colour);
    for (let line = this.lines.length - 1; line >= 0; line--) this.drawLine(pen, line, toX, toY, bottom, colours[line]);
  }

  drawLine(pen, line, toX, toY, bottom, colour) {
    pen.strokeStyle = colour;
    pen.lineWidth = line === 2 ? 1.25 : 1.75;
    pen.lineJoin = "round";
    let run = [];
    const finish = () => {
      if (run.length === 0) return;
      pen.beginPath();
      run.forEach(([x, y], i) => {
        i === 0 ? pen.moveTo(x, y) : pen.lineTo(x, y);
      });
      pen.stroke();
      if (line === 0) { /* the first line has a ground under it */
        pen.lineTo(run[run.length - 1][0], bottom);
        pen.lineTo(run[0][0], bottom);
        pen.globalAlpha = 0.09;
        pen.fillStyle = colour;
        pen.fill();
        pen.globalAlpha = 1;
      }
      run = [];
    };
    this.points.forEach((point, i) => (point[line] === null ? finish() : run.push([toX(i), toY(point[line])])));
    finish();
  }
}

/* The next of 1, 2, 5, 10, ... times a power of ten. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999) ?? 10 * power;
}

function makeCharts(into) {
  const ms = (seconds) => (seconds === null || !(seconds > 0) ? null : 1000 * seconds);
  const timeText = (value) => (value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value.toFixed(value < 10 ? 1 : 0)} ms`);
  return [
    new Chart(into, {
      title: "Frames a second", about: "Dashed: the pace that was asked for",
      format: (v) => v.toFixed(v < 9.95 ? 1 : 0), top: (s) => s.figures.pace,
      text: (s) => s.figures.fps.toFixed(1), guide: (s) => s.figures.pace || null,
      lines: [{ name: "made", of: (s) => s.figures.fps }, { name: "shown here", of: (s) => s.shown }],
    }),
    new Chart(into, {
      title: "Time of a chunk", about: "The mesh generates while stage 0 decodes; the period is from one chunk to the next",
      format: timeText,
      text: (s) => (s.figures.last.period > 0 ? timeText(1000 * s.figures.last.period) : "–"),
      lines: [
        { name: "mesh", of: (s) => ms(s.figures.last.stage1) }, { name: "stage 0", of: (s) => ms(s.figures.last.stage0) },
        { name: "period", plain: true, of: (s) => ms(s.figures.last.period) },
      ],
    }),
    new Chart(into, {
      title: "Overlap score", about: "1: the slower stage alone sets the pace, 0: the stages take turns; dashed: the gate",
      format: (v) => v.toFixed(2), top: () => 1, guide: (s) => s.figures.overlap.gate,
      text: (s) => (s.figures.overlap.score === null ? "–" : s.figures.overlap.score.toFixed(2)),
      lines: [{ name: "score", of: (s) => s.figures.overlap.score }],
    }),
    new Chart(into, {
      title: "Queue, mean of 4 s", about: "Chunks that were sent to the mesh and not shown yet; dashed: the most",
      format: (v) => (Number.isInteger(v) ? String(v) : v.toFixed(1)), mean: 8, top: (s) => Math.max(2, s.figures.depth),
      guide: (s) => s.figures.depth || null, text: (s) => `${s.figures.under_way} of ${s.figures.depth}`,
      lines: [{ name: "under way", of: (s) => s.figures.under_way }, { name: "to decode", of: (s) => s.figures.decoded_waiting }],
    }),
  ];
}
