// Charts by uPlot as components: they keep their canvas over updates, and follow width and theme.

import { Component } from "./vendor/preact.mjs";
import { html } from "./html.mjs";

/** Return the value of a custom property of the style sheet, such as "--ink". */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const HEIGHT = 190;

/**
 * A chart. Properties: `make()` returns uPlot's options without size, `data` its columns, `label`
 * says in words what the chart shows.
 */
export class Chart extends Component {
  componentDidMount() {
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.onTheme = () => this.draw();
    this.theme.addEventListener("change", this.onTheme);
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.element);
    this.draw();
  }

  componentWillUnmount() {
    this.theme.removeEventListener("change", this.onTheme);
    this.sizes.disconnect();
    this.plot?.destroy();
  }

  // uPlot owns what is below the element.
  shouldComponentUpdate(next) {
    if (next.label !== this.props.label) this.element.setAttribute("aria-label", next.label);
    this.latest = next;
    if (next.data !== this.props.data) this.plot?.setData(next.data);
    return false;
  }

  draw() {
    const { make, data } = this.latest ?? this.props;
    this.plot?.destroy();
    this.plot = new window.uPlot(
      { width: Math.max(200, this.element.clientWidth), height: HEIGHT, ...make() }, data, this.element,
    );
  }

  resize() {
    const width = Math.max(200, this.element.clientWidth);
    if (this.plot && this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
  }

  render({ label }) {
    return html`<div class="chart" ref=${(element) => { this.element = element ?? this.element; }} role="img" aria-label=${label}></div>`;
  }
}

/** Return an axis of uPlot in the page's colours. */
export function axis(more = {}) {
  const stroke = colour("--muted");
  const grid = { stroke: colour("--line"), width: 1 };
  return { stroke, grid, ticks: { show: false }, font: "12px system-ui", gap: 6, ...more };
}

/** Return a time axis. */
export function timeAxis() {
  return axis({ values: (_, splits) => tickTexts(splits), size: 30, space: 70, grid: { show: false } });
}

const DAY_S = 23 * 3600; // the shortest one, when clocks are put forward

/**
 * Return the texts of ticks, whose times are in seconds: hours and minutes, with seconds where they
 * differ. A tick of another day than the one before has its day; a midnight has the day alone, and
 * so has each tick if they are a day or more apart.
 */
function tickTexts(splits) {
  const apart = splits.length > 1 ? splits[1] - splits[0] : 60;
  const seconds = apart < 60 ? { second: "2-digit" } : {};
  return splits.map((at, number) => {
    const time = new Date(1000 * at);
    const before = new Date(1000 * (splits[number - 1] ?? at));
    const day = time.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    const text = time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...seconds });
    if (apart >= DAY_S) return day;
    if (before.toDateString() === time.toDateString()) return text;
    return time.getHours() + time.getMinutes() + time.getSeconds() === 0 ? day : `${day} ${text}`;
  });
}

/** Return the columns of stacked series: running sums, the first one at the bottom. */
export function stacked(columns) {
  const sums = [];
  let below = columns[0].map((value) => (value === null ? null : 0));
  for (const column of columns) {
    below = column.map((value, at) => (value === null ? null : below[at] + value));
    sums.push(below);
  }
  return sums;
}
