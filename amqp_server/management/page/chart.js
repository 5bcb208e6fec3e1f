// Lines over time, drawn as SVG. The legend shows the values at the time under the pointer, or the newest ones.

import {fill, h, say, svg} from "./dom.js";
import {clock} from "./format.js";

const HEIGHT = 170;
const LEFT_MIN = 52;
/** Width of a letter of a label. */
const LETTER = 6.2;
const RIGHT = 8;
const TOP = 10;
const BOTTOM = 22;
const WIDTH_MIN = 240;

/** Turn the API's samples, the newest first, into points of time and value. */
export function lengths(details) {
  return (details?.samples ?? []).map((each) => [each.timestamp, each.sample]).reverse();
}

/** For a counter: its growth per second. */
export function rates(details) {
  const points = lengths(details);
  return points
    .slice(1)
    .map(([time, value], index) => [
      time,
      Math.max(0, ((value - points[index][1]) * 1000) / (time - points[index][0] || 1)),
    ]);
}

/** The next of 2, 5, 10, 20 … units; of bytes a unit is the largest of B, KiB, MiB, … that fits. */
function round(value, kilo) {
  if (value <= 2) return 2;
  const unit = kilo ** Math.floor(Math.log(value) / Math.log(kilo));
  const power = unit * 10 ** Math.floor(Math.log10(value / unit));
  return power * [1, 2, 5, 10].find((each) => each * power >= value);
}

export class Chart {
  /** `format` makes a text of a value; `kilo` is 1024 for bytes. */
  constructor(title, format, kilo = 1000) {
    this.format = format;
    this.kilo = kilo;
    this.title = title;
    this.drawing = svg("svg", {class: "chart", role: "img", "aria-label": title, height: HEIGHT});
    this.legend = h("ul", {class: "legend"});
    this.when = h("span", {class: "when"});
    this.element = h("figure", {class: "card"}, h("figcaption", {}, title, this.when), this.drawing, this.legend);
    this.series = [];
    this.draw();
    this.drawing.addEventListener("pointermove", (event) => this.look(event));
    this.drawing.addEventListener("pointerleave", () => this.tell(null));
  }

  /** series: {label, points} */
  show(series) {
    this.series = series;
    this.draw();
    this.tell(null);
  }

  draw() {
    const width = Math.max(WIDTH_MIN, this.drawing.parentElement?.clientWidth - 24 || 0);
    const points = this.series.flatMap((each) => each.points);
    const times = points.map(([time]) => time);
    this.first = times.length ? times.reduce((one, other) => Math.min(one, other)) : 0;
    this.last = times.length ? times.reduce((one, other) => Math.max(one, other)) : 1;
    this.width = width;
    const most = round(points.reduce((largest, [, value]) => Math.max(largest, value), 0), this.kilo);
    const ticks = [0, 0.5, 1].map((part) => [part * most, this.format(part * most)]);
    const left = Math.max(LEFT_MIN, 10 + LETTER * Math.max(...ticks.map(([, label]) => label.length)));
    this.left = left;
    const x = (time) => left + ((time - this.first) / (this.last - this.first || 1)) * (width - left - RIGHT);
    const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
    this.x = x;
    const grid = ticks.map(([value, label]) => [
      svg("line", {class: "grid", x1: left, x2: width - RIGHT, y1: y(value), y2: y(value)}),
      svg("text", {class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end"}, label),
    ]);
    const ends = times.length
      ? [
          svg("text", {class: "tick", x: left, y: HEIGHT - 6}, clock(this.first)),
          svg("text", {class: "tick", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end"}, clock(this.last)),
        ]
      : [];
    const lines = this.series.map((each, index) => {
      const path = each.points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
      return svg("polyline", {class: `line line-${index}`, points: path});
    });
    this.cursor = svg("line", {class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    fill(this.drawing, grid, ends, lines, this.cursor);
  }

  look(event) {
    const box = this.drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / (box.width || 1)) * this.width;
    const share = Math.min(1, Math.max(0, (at - this.left) / (this.width - this.left - RIGHT)));
    this.tell(this.first + share * (this.last - this.first));
  }

  tell(time) {
    const values = this.series.map((each) => nearest(each.points, time));
    if (this.legend.children.length !== this.series.length) {
      const items = this.series.map((each, index) =>
        h("li", {}, h("span", {class: `dot dot-${index}`}), each.label, " ", h("output", {})),
      );
      fill(this.legend, items);
    }
    values.forEach((point, index) => {
      say(this.legend.children[index].querySelector("output"), point ? this.format(point[1]) : "–");
    });
    const point = values.find((each) => each);
    say(this.when, time !== null && point ? ` at ${clock(point[0])}` : "");
    if (time !== null && point) {
      this.cursor.setAttribute("x1", this.x(point[0]));
      this.cursor.setAttribute("x2", this.x(point[0]));
    }
    this.cursor.setAttribute("visibility", time !== null && point ? "visible" : "hidden");
    const told = this.series.map((each, index) => `${each.label} ${values[index] ? this.format(values[index][1]) : "–"}`);
    if (time === null) this.drawing.setAttribute("aria-label", `${this.title}: ${told.join(", ")}`);
  }
}

function nearest(points, time) {
  if (!points.length) return null;
  if (time === null) return points[points.length - 1];
  return points.reduce((best, each) => (Math.abs(each[0] - time) < Math.abs(best[0] - time) ? each : best));
}
