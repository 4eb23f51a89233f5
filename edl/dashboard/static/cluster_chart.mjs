// The Gantt chart of a cluster: a lane for each slot of a host, a box for each job on it.

import { Component } from "./vendor/preact.mjs";
import { html } from "./html.mjs";
import { clock, counted, duration, percent } from "./format.mjs";
import { Card } from "./view.mjs";

const PERIODS = [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "1 day"], [604800, "1 week"]];
const LANE = 13;
const GAP = 7; // between two hosts
const BOTTOM = 20; // for the times

function told(box, host, now) {
  const until = box.to_s === null ? "now" : clock(box.to_s, now);
  return `${box.job}: ${counted(box.lanes, "slot")} of ${host}, ${clock(box.from_s, now)} to ${until} (${duration((box.to_s ?? now) - box.from_s)})`;
}

/** Return the text that fits into a number of pixels. */
function fitting(text, wide) {
  const most = Math.floor(wide / 6.6);
  if (text.length <= most) return text;
  return most < 4 ? "" : `${text.slice(0, most - 1)}…`;
}

/**
 * Properties: `chart`, `problem`, `filter`, `hosts`, `chosen` (a job), `colours` (a JobColours),
 * `onChart(change)`, `onChoose(job)`.
 */
export class SlotChart extends Component {
  constructor() {
    super();
    this.state = { width: 800 };
  }

  componentDidMount() {
    this.sizes = new ResizeObserver(([entry]) =>
      this.setState({ width: Math.max(220, entry.contentRect.width) }));
    this.sizes.observe(this.box);
  }

  componentWillUnmount() { this.sizes.disconnect(); }

  render({ chart, problem, filter, hosts, onChart }, { width }) {
    const note = chart === null ? "" : chart.use.length
      ? "Each row is a host, or several together; the darker, the more of its slots are in use. Choose a host, a period or the name of a job to see each job."
      : "Each lane is a slot of a host, each box a job that had it.";
    const cut = chart?.cut_s ? ` What was before ${clock(chart.cut_s, chart.to_s)} is not shown.` : "";
    return html`
      <${Card} name="slots" title="Slots over time" note="${note}${cut}" wide>
        <div class="tools">
          <div class="choice" role="group" aria-label="Period">
            ${PERIODS.map(([seconds, text]) => html`<button type="button" aria-pressed=${filter.period === seconds}
              onClick=${() => onChart({ period: seconds })}>${text}</button>`)}
          </div>
          <div class="choice">
            <select aria-label="Host" value=${filter.host} onChange=${(event) => onChart({ host: event.target.value })}>
              <option value="">all hosts</option>
              ${hosts.filter((one) => one.host).map((one) => html`<option value=${one.host}>${one.host}</option>`)}
            </select>
            <input type="search" placeholder="Name of a job" aria-label="Jobs of the chart by name" maxlength="100" value=${filter.job}
              onInput=${(event) => onChart({ job: event.target.value })} />
          </div>
        </div>
        ${problem && html`<p class="aside tone-warning">The history cannot be read: ${problem}</p>`}
        <div class="gantt" ref=${(element) => { this.box = element ?? this.box; }}>
          ${chart === null ? html`<p class="muted empty">Waiting for the history…</p>`
            : chart.rows.length || chart.use.length ? this.drawn(chart, width)
              : html`<p class="muted empty">No host offers slots, and none was used in this time.</p>`}
        </div>
      <//>`;
  }

  drawn(chart, width) {
    const rows = chart.rows.length ? chart.rows : chart.use;
    const label = Math.min(130, Math.max(48, Math.min(width / 4, 12 + 6.6 * Math.max(...rows.map((row) => row.host.length)))));
    const wide = Math.max(80, width - label);
    const x = (at) => label + ((Math.min(chart.to_s, Math.max(chart.from_s, at)) - chart.from_s) / (chart.to_s - chart.from_s)) * wide;
    let top = 0;
    const drawn = rows.map((row) => {
      const tall = chart.rows.length ? row.lanes * LANE : LANE + 5;
      const at = top;
      top += tall + (chart.rows.length ? GAP : 2);
      return { row, at, tall };
    });
    const high = top + BOTTOM;
    const ticks = [0.25, 0.5, 0.75].map((part) => chart.from_s + part * (chart.to_s - chart.from_s));
    const said = `${counted(chart.jobs, "job")} had slots on ${counted(rows.length, "host")} between ${clock(chart.from_s, chart.to_s)} and ${clock(chart.to_s)}; the table of jobs has each of them.`;
    return html`
      <svg role="img" aria-label=${said} width=${width} height=${high} viewBox="0 0 ${width} ${high}">
        ${ticks.map((at) => html`<line class="tick" x1=${x(at)} x2=${x(at)} y1="0" y2=${top} />`)}
        ${drawn.map(({ row, at, tall }) => html`
          <g key=${row.host}>
            <text class="host" x="0" y=${at + Math.min(tall - 1, tall / 2 + 4)}>${fitting(row.host, label - 8)}<title>${row.host}</title></text>
            <rect class="track" x=${label} y=${at} width=${wide} height=${tall} />
            ${chart.rows.length ? this.boxes(row, at, x, chart.to_s) : this.use(row, at, tall, label, wide)}
          </g>`)}
        <text class="time" x=${label} y=${high - 4}>${clock(chart.from_s, chart.to_s)}</text>
        <text class="time end" x=${width} y=${high - 4}>${clock(chart.to_s)}</text>
      </svg>`;
  }

  boxes(row, top, x, now) {
    const { chart, colours, onChoose } = this.props;
    const isShown = chart.rows.some((one) => one.boxes.some((box) => box.job === this.props.chosen));
    const chosen = isShown ? this.props.chosen : null;
    return row.boxes.map((box) => {
      const left = x(box.from_s);
      const wide = Math.max(1.5, x(box.to_s ?? now) - left);
      const tall = box.lanes * LANE - 1;
      const classes = ["box", `hue-${colours.of(box.job)}`, box.to_s === null && "open",
        chosen !== null && (chosen === box.job ? "chosen" : "other")].filter(Boolean).join(" ");
      return html`
        <g key="${box.submission} ${box.lane} ${box.from_s}" class=${classes} onClick=${() => onChoose(box.job)}>
          <title>${told(box, row.host, now)}</title>
          <rect x=${left} y=${top + box.lane * LANE + 0.5} width=${Math.max(1, wide - 0.5)} height=${tall} rx="2" />
          <text x=${left + 4} y=${top + box.lane * LANE + 0.5 + tall / 2 + 3.5}>${fitting(box.job, wide - 8)}</text>
        </g>`;
    });
  }

  use(row, top, tall, left, wide) {
    const step = wide / row.use.length;
    const mean = row.use.reduce((sum, one) => sum + one, 0) / row.use.length;
    return html`<title>${row.host}: ${counted(row.slots, "slot")}, ${percent(mean, 0)} in use</title>
      ${row.use.map((one, number) => one > 0 && html`<rect class="use" x=${left + number * step} y=${top} width=${step + 0.3} height=${tall}
        style=${{ opacity: 0.15 + 0.85 * one }} />`)}`;
  }
}
